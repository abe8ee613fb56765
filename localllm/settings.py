"""A user's settings: defaults, settings.toml, environment variables, flags, in rising order, with their origin."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from localllm.errors import ConfigurationError
from localllm.kernels.executor import MOST_THREADS
from localllm.paths import Paths
from localllm.settings_version import current

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "LOCALLLM_"
SIZE_UNITS = {
    **{"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40},
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: the default, a file, a variable or a flag; `where` names it."""

    kind: Literal["default", "file", "environment", "flag"]
    where: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, checked. Sizes are bytes, `bandwidth` is bytes per second; None leaves the choice to localllm."""

    model: str | None = None
    device: str | None = None
    threads: int | None = None
    vram: int | None = None
    context: int | None = None
    kv: str | None = None
    kv_policy: str | None = None
    window: int | None = None
    sinks: int | None = None
    context_policy: str | None = None
    mode: str | None = None
    speculate: str | None = None
    chat_template: str | None = None
    offline: bool = False
    connections: int = 4
    bandwidth: int | None = None
    hub_endpoint: str = "https://huggingface.co"
    hub_token: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = field(default=None, repr=False)
    parallel: int | None = None
    chat_cache: int | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object] | None = None,
        *,
        paths: Paths | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read and merge all sources; flags whose value is None were not given. ConfigurationError names the origin."""
        variables = os.environ if environment is None else environment
        paths = paths or Paths.from_environment(variables)
        values: dict[str, Any] = {}
        origins = {name: Origin("default", "default") for name in KINDS}
        sources = [*_from_file(paths.settings_file), *_from_environment(variables), *_from_flags(flags or {})]
        for name, value, origin in sources:
            try:
                values[name] = KINDS[name].parse(value)
            except ValueError as error:
                shown = "(hidden)" if KINDS[name].secret else repr(value)
                raise ConfigurationError(f"{origin.where}: {name} = {shown}: {error}") from error
            origins[name] = origin
        return cls(**values, origins=origins)

    def shown(self, name: str) -> str | int | float | bool | None:
        """A value for printing; secrets are only said to be set."""
        value: str | int | float | bool | None = getattr(self, name)
        return "(set)" if KINDS[name].secret and value is not None else value


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting is read and explained. `variables` are names other programs use; ours comes after them."""

    parse: Callable[[object], Any]
    help: str
    secret: bool = False
    variables: tuple[str, ...] = ()


def parse_size(value: object) -> int:
    """Bytes from 6GiB, 500MB, 1.5G or a number. ValueError says what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a size such as 6GiB, 500MB or a number of bytes")
    text = str(value).strip().lower()
    number = text.rstrip("bkmgti ").strip()
    unit = text[len(number) :].strip().removesuffix("b")
    try:
        size = float(number) * SIZE_UNITS[unit]
    except (ValueError, KeyError):
        raise ValueError("must be a size such as 6GiB, 500MB or a number of bytes") from None
    if not 0 < size < 2**63:
        raise ValueError("must be above 0 and a size that exists")
    return int(size)


def _size_or_off(value: object) -> int:
    return 0 if str(value).strip().lower() in ("off", "0") else parse_size(value)


def _whole(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        try:
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise ValueError
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be {low} to {high}")
        return number

    return parse


def _choice(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return parse


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or any(ord(character) < 32 for character in value):
        raise ValueError("must be a text of one line")
    return value.strip()


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if not isinstance(value, str) or value.strip().lower() not in known:
        raise ValueError("must be true or false")
    return known[value.strip().lower()]


def _web_address(value: object) -> str:
    text = _text(value).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a web address such as https://hub.example")
    return text


KINDS: dict[str, Kind] = {
    "model": Kind(_text, "the model of a bare `localllm`"),
    "device": Kind(_choice("auto", "cpu", "cuda", "hybrid", "reference"), "where to compute"),
    "threads": Kind(_whole(1, MOST_THREADS), "CPU threads"),
    "vram": Kind(parse_size, "GPU memory to use at most"),
    "context": Kind(_whole(1, 1 << 30), "tokens of context to make room for"),
    "kv": Kind(_choice("f16", "f32", "q8", "q4", "q2"), "how the KV cache is stored"),
    "kv_policy": Kind(_text, "a lossy KV policy: h2o:TOKENS or sparq:COMPONENTS:TOKENS"),
    "window": Kind(_whole(1, 1 << 30), "tokens to keep: sinks and a sliding window"),
    "sinks": Kind(_whole(0, 1 << 30), "first tokens to keep for ever"),
    "context_policy": Kind(_choice("error", "window"), "what to do when the context is full"),
    "mode": Kind(_choice("exact", "sparse", "turbo"), "how much to compute"),
    "speculate": Kind(_text, "how to guess ahead: auto, off, lookup, next, model:NAME or heads:FILE"),
    "chat_template": Kind(_text, "a Jinja file to use instead of the model's own chat template"),
    "offline": Kind(_flag, "never open a connection", variables=("HF_HUB_OFFLINE",)),
    "connections": Kind(_whole(1, 32), "parallel connections of a pull"),
    "bandwidth": Kind(parse_size, "bytes per second that pulls may use"),
    "hub_endpoint": Kind(_web_address, "the hub that hf: names refer to", variables=("HF_ENDPOINT",)),
    "hub_token": Kind(_text, "access token for the hub", secret=True, variables=("HUGGING_FACE_HUB_TOKEN", "HF_TOKEN")),
    "host": Kind(_text, "address that `serve` listens on"),
    "port": Kind(_whole(0, 65535), "port that `serve` listens on"),
    "api_key": Kind(_text, "key that clients of `serve` must send", secret=True),
    "parallel": Kind(_whole(1, 4096), "requests that `serve` answers at a time"),
    "chat_cache": Kind(_size_or_off, "disk for going on with chats at once (2GiB), or off"),
}

Found = tuple[str, object, Origin]


def read_settings_file(path: Path) -> dict[str, Any]:
    """The table of settings.toml, its keys checked; empty when there is none."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    table = current(table, str(path))
    for key in table:
        check_key(key, str(path))
    return table


def check_key(key: str, where: str) -> None:
    """ConfigurationError with the nearest names when there is no such setting."""
    if key not in KINDS:
        import difflib

        near = difflib.get_close_matches(key, KINDS, 3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "see `localllm config show` for all settings"
        raise ConfigurationError(f"{where}: there is no setting {key[:60]!r}", hint=hint)


def _from_file(path: Path) -> list[Found]:
    origin = Origin("file", str(path))
    return [(name, value, origin) for name, value in read_settings_file(path).items()]


def _from_environment(variables: Mapping[str, str]) -> list[Found]:
    found: list[Found] = []
    for name, kind in KINDS.items():
        for variable in (*kind.variables, f"{PREFIX}{name.upper()}"):
            value = variables.get(variable)
            if value:
                found.append((name, value, Origin("environment", variable)))
    return found


def _from_flags(flags: Mapping[str, object]) -> list[Found]:
    given = {name: value for name, value in flags.items() if value is not None}
    return [(name, value, Origin("flag", f"--{name.replace('_', '-')}")) for name, value in given.items()]


def setting_names() -> tuple[str, ...]:
    """All settings in the order of the dataclass."""
    return tuple(item.name for item in fields(Settings) if item.name != "origins")
