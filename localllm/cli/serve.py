"""`localllm serve`: models for other programs, by OpenAI's interface."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import click

from localllm.errors import ConfigurationError

from .completion import ModelName
from .context import check_flags, long_context, with_room
from .loading import LOAD_SETTINGS, resolve
from .options import Size, load_options, split_options

if TYPE_CHECKING:
    from localllm.server.pool import LanguageModel, ModelSource

DEFAULT_PARALLEL = 4


@click.command()
@click.argument("models", type=ModelName(), nargs=-1)
@click.option("--host", help="Address to listen on; 127.0.0.1 (this computer only) by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 8080 by default, 0 takes a free one.")
@click.option("--api-key", help="Key that clients must send (better: LOCALLLM_API_KEY).")
@click.option("--parallel", type=click.IntRange(1), help="Answers in the making at a time, per model; 4 by default.")
@click.option("--keep-alive", type=click.FloatRange(0.1), help="Unload a model after so many idle seconds.")
@click.option("--memory", type=Size(), help="Bytes that all loaded models and their compiled code may take together.")
@click.option(
    "--keep-cache",
    type=click.FloatRange(0.1),
    default=900.0,
    help="Keep keys and values of answered prompts for so many idle seconds; 900 by default.",
)
@click.option("--cors-origin", multiple=True, help="Web page that may call from a browser: https://page.example")
@click.option("--allow-host", multiple=True, help="Further name by which this computer may be called.")
@click.option("--any-model", is_flag=True, help="With one model: answer to every model name.")
@click.option("--max-body", type=Size(), help="Largest request body; 8MiB by default.")
@click.option("--drain-seconds", type=click.FloatRange(0), default=600.0, help="Time for running answers at the end.")
@click.option("--log-prompts", is_flag=True, help="Write what clients send into the log.")
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
@load_options
def serve(models: tuple[str, ...], **options: Any) -> None:
    """Serve MODELS (names or .gguf files; the default model when none is given) until Ctrl-C or SIGTERM.

    The chat page is at http://HOST:PORT/, the interface for programs at http://HOST:PORT/v1.
    """
    from localllm.settings import Settings

    load, _ = split_options(options)
    check_flags(load)
    settings = Settings.load({name: load.get(name) for name in (*LOAD_SETTINGS, "host", "port", "api_key", "parallel")})
    names = models or (settings.model or _default_model(),)
    keywords = {name: getattr(settings, name) for name in LOAD_SETTINGS if getattr(settings, name) is not None}
    keywords["parallel"] = settings.parallel or DEFAULT_PARALLEL
    keywords["keep_cache"] = options["keep_cache"]
    memory = _for_models(options["memory"])
    sources = [_source(name, keywords, bounded=memory is not None) for name in names]
    twice = [source.name for source in sources if [other.name for other in sources].count(source.name) > 1]
    if twice:
        raise ConfigurationError(f"two models are named {twice[0]}")
    _log(verbose=bool(options["verbose"]))

    from localllm.server.body import BodyLimits
    from localllm.server.options import ServerOptions
    from localllm.server.pool import ModelPool
    from localllm.server.running import Server
    from localllm.spare_memory import use_one_arena

    use_one_arena()
    limits = BodyLimits(size=options["max_body"]) if options["max_body"] else BodyLimits()
    server_options = ServerOptions(
        host=settings.host,
        port=settings.port,
        api_key=settings.api_key,
        cors_origins=options["cors_origin"],
        allowed_hosts=tuple(name.lower() for name in options["allow_host"]),
        body=limits,
        drain_seconds=options["drain_seconds"],
        log_prompts=options["log_prompts"],
    )
    if warning := server_options.warning():
        click.echo(f"warning: {warning}", err=True)

    def make_pool() -> ModelPool:
        return ModelPool(sources, keep_alive=options["keep_alive"], memory=memory, any_name=options["any_model"])

    server = Server(make_pool, server_options, _announce)
    with contextlib.suppress(SystemExit):  # uvicorn's way to say that it could not listen
        server.run()
    if not server.started:
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}",
            hint="Is another server running there? Choose another with --port (0 takes a free one) or --host.",
        )


def _default_model() -> str:
    from localllm.paths import Paths
    from localllm.store import Store
    from localllm.store.listing import default_model

    name = default_model(Store(Paths.from_environment()))
    click.echo(f"serving {name}, as no model was named", err=True)
    return name


def _source(name: str, keywords: dict[str, Any], *, bounded: bool) -> ModelSource:
    from localllm.gguf_io import open_gguf
    from localllm.needs import bytes_needed
    from localllm.paths import Paths
    from localllm.server.pool import ModelSource
    from localllm.store.defaults import load_keywords

    found = resolve(name)
    facts = found.path.stat()
    whole = with_room(load_keywords(found.entry, Paths.from_environment().cache) | keywords)
    with open_gguf(found.path):  # a server that could never answer does not start
        pass

    def load() -> LanguageModel:
        from localllm.llm import LLM

        llm = LLM(found.path, **whole)
        if warning := long_context(llm):
            click.echo(warning, err=True)
        return llm

    sampling = {} if found.entry is None else found.entry.sampling
    needs = bytes_needed(found.path, whole) if bounded else None
    return ModelSource(
        found.name,
        load,
        size_bytes=facts.st_size if needs is None else needs.total,
        vocabulary_bytes=0 if needs is None else needs.vocabulary,
        created=int(facts.st_mtime),
        sampling=sampling,
    )


def _for_models(memory: int | None) -> int | None:
    """What the bound leaves for models."""
    from localllm.needs import CODE_BYTES

    if memory is not None and memory <= CODE_BYTES:
        raise ConfigurationError(
            f"--memory {memory} is too little: code alone may take {CODE_BYTES} bytes",
            hint="Code is compiled when a model is loaded for the first time. Give it more, such as --memory 1GiB.",
        )
    return None if memory is None else memory - CODE_BYTES


def _announce(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"listening on http://{shown}:{port} (chat page: /, for programs: /v1)", err=True)


def _log(*, verbose: bool) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("localllm.server").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL if not verbose else logging.INFO)
