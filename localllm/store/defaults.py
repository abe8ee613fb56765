"""What the catalogue advises for running a model, as keywords of `LLM`; settings and flags go over it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from localllm.settings import parse_size

if TYPE_CHECKING:
    from pathlib import Path

    from .entry import CatalogueEntry


def load_keywords(entry: CatalogueEntry | None, cache: Path) -> dict[str, Any]:
    """Context, placement and template of an entry; the template's text is kept as a file under `cache`."""
    if entry is None:
        return {}
    keywords: dict[str, Any] = dict(entry.placement)
    if "vram" in keywords:
        keywords["vram"] = parse_size(keywords["vram"])
    if entry.context is not None:
        keywords["context"] = entry.context
    if entry.template is not None:
        keywords["chat_template"] = _as_file(entry.template, cache / "templates")
    return keywords


def _as_file(template: str, folder: Path) -> Path:
    """A file of this content; its name is its hash, so it never changes."""
    data = template.encode("utf-8", "replace")
    path = folder / f"{hashlib.sha256(data).hexdigest()}.jinja"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.replace(path)
    return path
