"""File names of a repository: which quantisation each one is, which belong together, which to take by default."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localllm.errors import DownloadError

from ..text import format_bytes, printable

# Best first: small enough for an ordinary computer without a visible loss, then closer to the original, then smaller.
DEFAULT_ORDER = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4", "MXFP4_MOE", "Q4_K_L", "Q4_K_XL",
    "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "IQ3_XXS",
    "Q2_K", "IQ2_M", "BF16", "F16", "F32",
)  # fmt: skip
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_[0-9A-Z]{1,3}){1,2}|Q8|TQ[12]_0|MXFP4(?:_MOE)?|BF16|FP?16|FP?32))"
    r"(?=$|[-._/](?!\d{1,2}b))",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_COMPANIONS = re.compile(r"(?:^|[-._/])(mmproj|imatrix)(?=[-._/])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a repository as the hub lists it."""

    path: str
    size_bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a repository: a single file, or all parts of a split one in order."""

    path: str
    quant: str | None
    files: tuple[ListedFile, ...]

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all files, None if unknown."""
        sizes = [file.size_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def __str__(self) -> str:
        size = "" if self.size_bytes is None else f" ({format_bytes(self.size_bytes)})"
        return f"{printable(self.path, 120)}{size}"


def quant_of(path: str) -> str | None:
    """The quantisation that a file name tells, in upper case (F16 for fp16), or None."""
    name = re.sub(r"\.gguf$", "", path, flags=re.IGNORECASE)
    shard = _SHARD.fullmatch(path)
    found = _QUANT.findall(shard["stem"] if shard is not None else name)
    return re.sub(r"^FP", "F", found[-1].upper()) if found else None


def variants_of(files: list[ListedFile]) -> tuple[list[Variant], list[str]]:
    """The models among the files of a repository, and the companion files (projectors, matrices) left out."""
    single: list[Variant] = []
    shards: dict[tuple[str, int], dict[int, ListedFile]] = {}
    companions: list[str] = []
    for file in files:
        if not file.path.lower().endswith(".gguf"):
            continue
        if _COMPANIONS.search(file.path):
            companions.append(file.path)
            continue
        match = _SHARD.fullmatch(file.path)
        if match is None:
            single.append(Variant(file.path, quant_of(file.path), (file,)))
        else:
            shards.setdefault((match["stem"], int(match["count"])), {})[int(match["number"])] = file
    for (stem, count), parts in shards.items():
        ordered = tuple(parts[number] for number in range(1, count + 1) if number in parts)
        if len(ordered) == count:
            single.append(Variant(ordered[0].path, quant_of(ordered[0].path), ordered))
        else:
            missing = next(number for number in range(1, count + 1) if number not in parts)
            companions.append(f"{stem} (part {missing} of {count} is missing)")
    return single, companions


def choose(variants: list[Variant], quant: str | None, file: str | None, where: str) -> Variant:
    """The variant that was asked for, else the best by `DEFAULT_ORDER`. DownloadError lists what there is."""
    if not variants:
        raise DownloadError(f"{where} has no GGUF model", hint="look for a repository whose name ends in -GGUF")
    if file is not None:
        matches = [v for v in variants if any(listed.path == file for listed in v.files)]
        problem = f"has no file {printable(file, 120)}"
    elif quant is not None:
        wanted = quant.upper()
        matches = [v for v in variants if v.quant == wanted]
        matches = matches or [v for v in variants if v.quant is not None and v.quant.removeprefix("UD-") == wanted]
        matches = matches or [
            v for v in variants if v.quant is not None and re.match(rf"{re.escape(wanted)}(?=_|$)", v.quant)
        ]
        problem = f"has no {printable(quant, 40)}"
    else:
        matches = _best(variants)
        problem = "holds several models of no known quantisation"
    if len(matches) == 1:
        return matches[0]
    if len(matches) > 1:
        matches = _best(matches) if quant is not None else matches
        if len(matches) == 1:
            return matches[0]
        problem = "has several such models"
        variants = matches
    listed = "\n  ".join(str(v) for v in variants[:20])
    raise DownloadError(f"{where} {problem}; there are:\n  {listed}", hint="name one: hf:OWNER/REPO/FILE.gguf")


def _best(variants: list[Variant]) -> list[Variant]:
    if len(variants) == 1:
        return variants
    for quant in DEFAULT_ORDER:
        matches = [v for v in variants if v.quant is not None and v.quant.removeprefix("UD-") == quant]
        plain = [v for v in matches if v.quant == quant]
        if matches:
            return plain or matches
    return variants
