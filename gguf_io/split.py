"""Models split in several files, `NAME-00001-of-00003.gguf`: which parts belong to one, and that they all do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .cursor import shown
from .errors import GGUFError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .header import Header
    from .metadata import Metadata

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_RENAMED = "Give the parts their names back (NAME-00001-of-0000N.gguf), all in one folder, and open any of them."


def part_paths(path: Path, metadata: Metadata) -> tuple[Path, ...]:
    """The files of the model that `path` is a part of, in order; one for a model that is not split."""
    count = metadata.integer("split.count", 0)
    if count <= 1:
        return (path,)
    named = _PART_NAME.fullmatch(path.name)
    if named is None:
        what = f"this is part of a model split in {count}, but its name does not say which"
        raise GGUFError(f"{path}: {what} (or its parts were joined byte by byte)", hint=_RENAMED)
    if int(named["count"]) != count:
        raise GGUFError(f"{path}: the name says {int(named['count'])} parts, split.count says {count}", hint=_RENAMED)
    names = [f"{named['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    paths = tuple(path.with_name(name) for name in names)
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise GGUFError(f"{path}: {len(missing)} of {count} parts are missing: {listed}", hint="Download them as well.")
    return paths


def check_parts(parts: Sequence[tuple[Path, Header]]) -> None:
    """Each part has its number, all agree on the model, and together they hold every tensor once."""
    if len(parts) == 1:
        return
    first_path, first = parts[0]
    names: dict[str, Path] = {}
    for index, (path, header) in enumerate(parts):
        stored = (header.metadata.integer("split.no"), header.metadata.integer("split.count"))
        if stored != (index, len(parts)):
            what = f"it says to be part {stored[0] + 1} of {stored[1]}, its name says {index + 1} of {len(parts)}"
            raise GGUFError(f"{path}: {what}", hint=_RENAMED)
        if (header.magic, header.version) != (first.magic, first.version):
            raise _mixed(path, first_path, "format version", str(header.version), str(first.version))
        for key in ("general.architecture", "general.name"):
            mine, others = header.metadata.string(key, None), first.metadata.string(key, None)
            if mine is not None and others is not None and mine != others:
                raise _mixed(path, first_path, key, shown(mine), shown(others))
        counts = [part.metadata.integer("split.tensors.count") for part in (header, first)]
        if counts[0] != counts[1]:
            raise _mixed(path, first_path, "split.tensors.count", str(counts[0]), str(counts[1]))
        for entry in header.entries:
            if entry.name in names:
                raise GGUFError(f"{path}: tensor {shown(entry.name)} is also in {names[entry.name].name}")
            names[entry.name] = path
    total = first.metadata.integer("split.tensors.count")
    if len(names) != total:
        raise GGUFError(
            f"{first_path}: the {len(parts)} parts hold {len(names)} tensors, split.tensors.count says {total}",
            hint="Parts of different models are mixed, or one is from an older upload: download all again.",
        )


def _mixed(path: Path, first_path: Path, field: str, mine: str, others: str) -> GGUFError:
    what = f"{field} is {mine}, but {others} in {first_path.name}"
    return GGUFError(f"{path}: parts of different models are mixed: {what}", hint="Download all parts again.")
