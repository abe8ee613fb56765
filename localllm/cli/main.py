"""The command group: finds a command's module by a literal table and turns every error into one clear message."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from localllm import __version__
from localllm.errors import LocalLLMError

from .group import Group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# command -> (module, attribute); the order is the order of `localllm --help`
COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("localllm.cli.chat", "chat"),
    "pull": ("localllm.cli.pull", "pull"),
    "list": ("localllm.cli.list", "list_command"),
    "show": ("localllm.cli.show", "show"),
    "search": ("localllm.cli.search", "search"),
    "rm": ("localllm.cli.rm", "rm"),
    "import": ("localllm.cli.import_model", "import_command"),
    "verify": ("localllm.cli.verify", "verify"),
    "prune": ("localllm.cli.prune", "prune"),
    "models": ("localllm.cli.models", "models"),
    "config": ("localllm.cli.config", "config"),
    "serve": ("localllm.cli.serve", "serve"),
    "run": ("localllm.cli.run", "run"),
    "tokenize": ("localllm.cli.tokenize", "tokenize"),
    "perplexity": ("localllm.cli.perplexity", "perplexity"),
    "bench": ("localllm.cli.bench", "bench"),
    "profile": ("localllm.cli.profile", "profile"),
    "plan": ("localllm.cli.plan", "plan"),
    "doctor": ("localllm.cli.doctor", "doctor"),
    "completion": ("localllm.cli.completion", "completion"),
}
DEFAULT_COMMAND = "chat"


class _ReaderGoneError(Exception):
    """Whoever read our output went away: no error to us, but one to click, which would end with 1."""


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGoneError from error


class CommandTable(Group):
    """A group whose commands are imported when they are asked for, so that `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, which is that of a first hour."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """As usual, where help is printed."""
        with _told_apart():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """As usual, where commands run."""
        with _told_apart():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As usual; somebody who names a model file learns which commands take one, who misspells one its name."""
        if args and args[0].endswith(".gguf"):
            ctx.fail(f"{args[0]!r} is no command. A model file: 'localllm chat FILE' or 'localllm run FILE PROMPT'.")
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=CommandTable, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="localllm")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run a language model on this computer. Without a command: open a chat with the default model."""
    if ctx.invoked_subcommand is None:
        command = cli.get_command(ctx, DEFAULT_COMMAND)
        if command is None:
            click.echo(ctx.get_help())
        else:
            ctx.invoke(command)


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command line and exit: 0 fine, 1 the error was explained, 2 wrong usage, 130 interrupted."""
    atexit.register(_leave_garbage)
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter shows ? in its place
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="localllm", standalone_mode=False)
        sys.stdout.flush()
    except _ReaderGoneError:
        _give_up_output(BrokenPipeError())
    except click.exceptions.Abort:
        click.echo("\ninterrupted", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("\ninterrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except LocalLLMError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except UnicodeEncodeError as error:
        where = ascii(error.object[max(error.start - 20, 0) : error.end + 20])
        click.echo(f"error: {where} has letters that this system's encoding ({error.encoding}) lacks", err=True)
        click.echo("  set LC_ALL=C.UTF-8, or PYTHONUTF8=1", err=True)
        sys.exit(1)
    except OSError as error:
        _give_up_output(error)
    sys.exit(0)


def _leave_garbage() -> None:
    """What is left goes with the process: Python would look through all of it first. Triton reports what is left."""
    if "triton" not in sys.modules:
        gc.freeze()


def _open_what_is_closed() -> None:
    """A shell may start us without standard streams (`>&-`): Python then has None in their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _give_up_output(error: OSError) -> None:
    """Say what the system refused; a reader that went away is no error. Nothing more is written to stdout."""
    with contextlib.suppress(OSError):  # a stdout without a file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(0)
    where = f" ({error.filename})" if error.filename else ""
    click.echo(f"error: {error.strerror or error}{where}", err=True)
    sys.exit(1)
