"""The Python API: a loaded model that generates, chats, scores and measures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from localllm.errors import RequestError
from localllm.sampling import SamplingParameters, parameters_of

from .completion import Completion, collect

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from localllm.cache import ContextPolicy
    from localllm.chat_template import ChatTemplate
    from localllm.engine import Engine, Generation
    from localllm.events import Event
    from localllm.gguf_io import GGUFFile
    from localllm.kernels.executor import Device, Executor, LoadProgress, MemoryUse, Mode
    from localllm.kernels.hybrid.placement import Placement
    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import ModelSpec
    from localllm.speculation import Speculation
    from localllm.tokenizer import Tokenizer
    from localllm.turbo.record import TurboRecord

DEFAULT_CONTEXT = 8192  # tokens, where the model was trained for more


class LLM:
    """A model in memory.

    `model`: a pulled or catalogue name, or the path of a .gguf file (`pull=True` fetches a catalogue model that is not
    here). `threads` None: as many as measure fastest. `vram` in bytes. `context` in tokens, None: what the model was
    trained for, at most 8192. `kv_policy`: a part of the keys only, see docs/kv.md. `window`/`sinks`: so many tokens
    only. `context_policy`: what happens when the context is full. `keep_cache`: idle seconds until cached prefixes are
    dropped. `speculate`: how to guess ahead (auto, off, lookup, next, model:NAME, heads:FILE), for speed only.
    `chat_template`: a Jinja file instead of the model's own. Close it. Raises LocalLLMError and its subclasses.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: Device = "auto",
        threads: int | None = None,
        vram: int | None = None,
        context: int | None = None,
        kv: KVType = "f16",
        kv_policy: str | None = None,
        window: int | None = None,
        sinks: int | None = None,
        context_policy: ContextPolicy = "error",
        mode: Mode | None = None,
        speculate: str = "auto",
        parallel: int = 1,
        keep_cache: float | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        pull: bool = False,
        progress: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        from localllm.cache import parse_kv_policy
        from localllm.chat_template import ChatTemplate
        from localllm.engine import Engine, EngineOptions
        from localllm.gguf_io import open_gguf
        from localllm.hardware import detect
        from localllm.kernels.executor import ExecutorOptions
        from localllm.kernels.registry import open_executor
        from localllm.load_options import check_load_options
        from localllm.models import load_spec
        from localllm.profiles.rates import measured_rates
        from localllm.repacked import repacked_file
        from localllm.speculation import Target, check_choice, open_speculation
        from localllm.store import resolve_model
        from localllm.tokenizer import Tokenizer
        from localllm.turbo.record import load_turbo

        check_load_options(threads, vram, mode)
        self._closed = False
        self._turbo: TurboRecord | None = None
        self._kv: KVType = kv
        self._template: ChatTemplate | None = None
        self._selective = None if kv_policy is None else parse_kv_policy(kv_policy)
        check_choice(speculate)
        guess = "off" if self._selective and speculate == "auto" else speculate
        self.path = resolve_model(model, pull=pull).path
        self._file: GGUFFile = open_gguf(self.path)
        speculation: Speculation | None = None
        try:
            self.spec: ModelSpec = load_spec(self._file, context=context)
            if mode == "turbo":
                self._turbo = load_turbo(self.path)
            Tokenizer.check_kind(self._file)
            self.context = min(self.spec.context_length, DEFAULT_CONTEXT) if context is None else context
            target = Target(self._file, self.spec, device, threads, self.context, parallel, progress)
            speculation = open_speculation(guess, target)
            engine_options = EngineOptions(
                context=self.context,
                kv_type=kv,
                window=window,
                sinks=sinks,
                context_policy=context_policy,
                parallel=parallel,
                keep_cache=keep_cache,
                selective=self._selective,
                speculation=speculation,
            )
            self._slides, self._window = engine_options.slides, window
            engine_options.policy(self.spec)  # what cannot work is said before minutes are spent on the weights
            with ThreadPoolExecutor(1) as pool:  # the tokenizer is built while the weights are loaded
                tokenizer = pool.submit(Tokenizer.from_gguf, self._file)
                if chat_template is not None:
                    self._template = ChatTemplate.from_file(chat_template, tokenizer.result())

                def report(event: LoadProgress) -> None:
                    if tokenizer.done():
                        tokenizer.result()  # a vocabulary that cannot be used ends the load
                    if progress is not None:
                        progress(event)

                split, profiled = device in ("auto", "hybrid"), device not in ("cuda", "reference")
                options = ExecutorOptions(
                    threads=threads,
                    mode=mode,
                    vram=vram,
                    progress=report,
                    selective=self._selective,
                    repacked=repacked_file(self._file) if profiled else None,
                    kv_pages=engine_options.pages(self.spec, ExecutorOptions().max_rows),
                    kv_type=kv,
                    rates=measured_rates(self.path, len(self.spec.layers)) if profiled else (),
                    turbo=None if self._turbo is None else self._turbo.turbo,
                    main_memory=detect().available_bytes if split else None,
                )
                executor = open_executor(self.spec, device, options)
                try:
                    self.tokenizer: Tokenizer = tokenizer.result()
                    self.engine: Engine = Engine(executor, self.tokenizer, engine_options)
                except BaseException:
                    executor.close()
                    raise
        except BaseException:
            if speculation is not None:
                speculation.close()
            self._file.close()
            raise
        self._executor = executor

    @property
    def kv_type(self) -> KVType:
        """How the KV cache is stored."""
        return self._kv

    @property
    def lossy(self) -> bool:
        """Whether a KV policy keeps or reads a part of the keys only."""
        return self._selective is not None

    @property
    def slides(self) -> bool:
        """Whether old tokens are dropped when the context is full; otherwise answers end there."""
        return self._slides

    @property
    def can_slide(self) -> bool:
        """Whether a window could: neither with a lossy KV policy nor where positions are learned."""
        return self._selective is None and self.spec.embed.positions is None

    @property
    def chat_template(self) -> ChatTemplate:
        """The chat template: the model's own, or the one given; RequestError when there is none."""
        if self._template is None:
            from localllm.chat_template import ChatTemplate

            self._template = ChatTemplate.from_gguf(self._file, self.tokenizer)
        return self._template

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """The executor alone, between requests, for measurements; the KV cache starts anew afterwards."""
        self._check_open()
        with self.engine.exclusive() as executor:
            yield executor

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [len(ids), vocabulary] of a fresh sequence."""
        from localllm.kernels.single_sequence import logits_of

        self._check_ids(ids)
        with self.executor() as executor:
            return logits_of(executor, ids, kv_type=self._kv, capacity=self._capacity())

    def generate(self, prompt: str | Sequence[int], **sampling: Any) -> Completion:
        """Continue a text or token ids; keywords are the fields of `SamplingParameters`."""
        return collect(self.stream(prompt, **sampling))

    def stream(self, prompt: str | Sequence[int], **sampling: Any) -> Generator[Event, None, None]:
        """The same as events; closing the generator stops the generation."""
        ids = self.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_ids(ids)
        return _events(self._submit(ids, parameters_of(sampling), sinks=None))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer a list of messages (`{"role": ..., "content": ...}`); `tools` and `template_options` as keywords."""
        return collect(self.stream_chat(messages, **options))

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Generator[Event, None, None]:
        """The same as events. When the last message is the assistant's, it is continued."""
        return _events(self.begin_chat(messages, tools=tools, template_options=template_options, **sampling))

    def begin_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        begun: Sequence[int] | None = None,
        **sampling: Any,
    ) -> Generation:
        """The same as the engine's own handle: events, `cancel` from any thread, and the tokens that are kept.

        `begun`: the ids of a last message of the assistant, where they are known better than from its text.
        """
        self._check_open()
        parameters = parameters_of(sampling)
        asked = messages if begun is None else messages[:-1]
        ids = self.encode_chat(asked, tools=tools, template_options=template_options) + list(begun or ())
        return self._submit(ids, parameters, sinks=self.system_prefix(ids, messages, tools))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, ready for the answer; text of messages never becomes a control token."""
        from .chat_encoding import conversation_ids

        return conversation_ids(self.chat_template, self.tokenizer, messages, tools, template_options or {})

    def perplexity(self, text: str, context: int = 512, *, kv: KVType | None = None) -> float:
        """exp of the mean negative log-likelihood of the second half of each full chunk of `context` tokens.

        Chunks do not overlap; each starts with BOS where the model adds one; a partial last chunk is dropped. This is
        the method of the established reference tools, so values are comparable. `kv`: with another type of cache than
        the model was opened with, to see what that costs. RequestError for too short a text.
        """
        return float(np.exp(np.mean(self.losses(text, context, kv=kv))))

    def losses(self, text: str, context: int = 512, *, kv: KVType | None = None) -> npt.NDArray[np.float64]:
        """The negative log-likelihoods [tokens that count] behind `perplexity`, of which two runs make pairs."""
        from .losses import chunk_losses

        self._check_open()
        return chunk_losses(self, text, context, kv or self._kv, self._capacity())

    def stream_nll(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Negative log-likelihood [len(ids) - 1] of each next token, through the KV policy as in decoding."""
        self._check_ids(ids)
        return -self.engine.score(list(ids))

    def _capacity(self) -> int | None:
        """Keys that heavy hitters keep."""
        from localllm.kernels.selective import HeavyHitters

        return self._selective.tokens if isinstance(self._selective, HeavyHitters) else None

    def save_session(
        self,
        path: str | os.PathLike[str],
        ids: Sequence[int],
        *,
        sinks: int | None = None,
        most_bytes: int | None = None,
    ) -> int:
        """Write the cached keys and values of a conversation's `ids`; returns how many tokens they cover.

        `sinks`: as when the conversation was computed. SessionError when nothing is cached, it is more than
        `most_bytes`, or the disk refuses.
        """
        self._check_ids(ids)
        model = self._fingerprint()
        return self.engine.save_session(path, list(ids), model=model, sinks=sinks, most_bytes=most_bytes)

    def restore_session(self, path: str | os.PathLike[str]) -> list[int]:
        """Put a saved session back; a conversation that begins with the returned ids starts without computing them.

        SessionError for a damaged file, or one of another model or other settings.
        """
        self._check_open()
        return self.engine.restore_session(path, model=self._fingerprint())

    def _fingerprint(self) -> str:
        """The file's, and of how positions are rotated: for some models that depends on the context they are run at."""
        import hashlib

        from localllm.engine import model_fingerprint

        rotation = hashlib.blake2b(digest_size=8)
        for rope in (layer.attention.rope for layer in self.spec.layers):
            rotation.update(b"" if rope is None else rope.inverse_frequencies.tobytes() + repr(rope.magnitude).encode())
        return f"{model_fingerprint(self.path)}-{rotation.hexdigest()}"

    @property
    def placement(self) -> Placement | None:
        """What of the feed-forward blocks a hybrid has on its device; None: the model is not split."""
        from localllm.kernels.hybrid.staged import placement_of

        self._check_open()
        return placement_of(self._executor)

    def memory(self) -> MemoryUse:
        """Bytes by device and purpose."""
        self._check_open()
        return self._executor.memory()

    def describe(self) -> str:
        """One line for people about what is loaded and where it runs."""
        self._check_open()
        room = f"context {self.context}{', sliding' if self._slides else ''}"
        if self._window is not None:
            room = f"window {self._window}"
        cost = "" if self._turbo is None else f"; turbo: {self._turbo.cost}"
        return f"{self.spec.name} ({self.spec.architecture}), {self._executor.describe()}, {room}{cost}"

    def close(self) -> None:
        """Free the model; may be called twice."""
        if not self._closed:
            self._closed = True
            self.engine.close()
            self._executor.close()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _submit(self, ids: list[int], parameters: SamplingParameters, *, sinks: int | None) -> Generation:
        from localllm.engine import Request

        self._check_open()
        return self.engine.submit(Request(ids=ids, parameters=parameters, sinks=sinks))

    def system_prefix(
        self,
        ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> int | None:
        """Tokens that a conversation shares with its system prompt alone, what a window keeps; None without one."""
        from .chat_encoding import system_tokens

        return system_tokens(self.chat_template, self.tokenizer, ids, messages, tools)

    def _check_ids(self, ids: Sequence[int]) -> None:
        self._check_open()
        if not len(ids):
            raise RequestError("the prompt is empty", parameter="prompt")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.spec.vocabulary_size:
            wrong = low if low < 0 else high
            raise RequestError(
                f"token {wrong} is not in the vocabulary of {self.spec.vocabulary_size}", parameter="prompt"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the model was closed")


def _events(generation: Generation) -> Generator[Event, None, None]:
    """A generation that ends when nobody reads on."""
    try:
        yield from generation
    finally:
        generation.cancel()
