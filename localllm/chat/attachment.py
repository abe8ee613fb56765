"""A text file as part of a question."""

from __future__ import annotations

from localllm.errors import RequestError
from localllm.paths import expand_user

MAX_BYTES = 4 << 20  # about a million tokens: above any context


def attach(name: str) -> str:
    """The file's text between fences, under its name. RequestError when it is no text file or too large."""
    path = expand_user(name.strip().strip("'\""))
    try:
        if path.is_dir():
            raise RequestError(f"{path} is a folder", hint="one file at a time: /attach FOLDER/FILE")
        if path.exists() and not path.is_file():
            raise RequestError(f"{path} is no ordinary file")
        if not path.is_file():
            raise RequestError(f"there is no file {path}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"{path!s} is no file name: {error}") from error
    if len(data) > MAX_BYTES:
        raise RequestError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path.name} is not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise RequestError(f"{path.name} is not a text file")
    text = text.replace("\r\n", "\n").rstrip("\n")
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{path.name}:\n{fence}{path.suffix[1:]}\n{text}\n{fence}\n"


def _longest_run(text: str) -> int:
    import re

    return max((len(run) for run in re.findall("`+", text)), default=0)


def attached_name(part: str) -> str:
    """The file's name in what `attach` returned."""
    return part.partition("\n")[0].removesuffix(":")
