"""The first bytes of a file: GGUF of a version we read, or a helpful word about what it is instead."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cursor import Cursor

_MAGICS = {b"GGUF": "GGUF", b"PWRI": "PWRI"}  # PWRI: PowerInfer's files, otherwise the same format
_VERSIONS = (2, 3)
_AGAIN = "Download the model again; the link has to lead to the .gguf file itself."
_PRE_GGUF = (b"GGML", b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt", b"ggla")


def check_magic(cursor: Cursor) -> tuple[str, int]:
    """Read magic and version; returns ("GGUF" or "PWRI", 2 or 3)."""
    if cursor.end == 0:
        raise cursor.error("file", "it is empty", hint="The download did not finish: fetch it again.")
    head = cursor.buffer[:64]
    magic = _MAGICS.get(head[:4])
    if magic is None:
        if any(known.startswith(head) for known in _MAGICS):
            raise cursor.truncated("magic", 0, 24)
        problem, hint = _what_it_is(head)
        raise cursor.error("magic", problem, hint=hint)
    cursor.skip(4, "magic")
    version = cursor.uint32("version")
    if version in _VERSIONS:
        return magic, version
    swapped = struct.unpack(">I", struct.pack("<I", version))[0]
    if 0 < swapped < 1 << 16:
        hint = "This computer is little-endian: get the ordinary (little-endian) file of this model."
        raise cursor.error("version", f"a big-endian file (version {swapped} byte-swapped)", 4, hint=hint)
    old = version < _VERSIONS[0]
    hint = "Convert or download the model again." if old else "A newer localllm may be able to read it."
    raise cursor.error("version", f"{version} is not supported (versions 2 and 3 are)", 4, hint=hint)


def _what_it_is(head: bytes) -> tuple[str, str]:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        return "this is a Git-LFS pointer, not a model", "Run `git lfs pull` there, or download the file itself."
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml", b"<!--")):
        return "this is a web page (HTML), not a model", _AGAIN
    if text.startswith((b"{", b"[")):
        return "this is JSON text (a server's error message?), not a model", _AGAIN
    if head.startswith(_PRE_GGUF):
        return "a GGML file from before GGUF, not supported", "Get a GGUF version of the model."
    if head.startswith((b"FUGG", b"IRWP")):
        return "a big-endian file (the magic is byte-swapped)", "Get the ordinary (little-endian) file of this model."
    if head[8:10] == b'{"':
        return "this looks like a safetensors file, not GGUF", "Get a GGUF version of the model."
    if head.startswith((b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"\xfd7zXZ", b"BZh")):
        return "this is an archive or a PyTorch checkpoint, not GGUF", "Unpack it, or get a GGUF version of the model."
    hint = "If this is one piece of a file that was cut in pieces, join the pieces in order first."
    return f"the file starts with {head[:4]!r}, not with GGUF", hint
