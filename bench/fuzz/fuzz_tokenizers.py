"""Texts of all scripts: ids in range, no control token out of plain text, the same text back however it is cut."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

RANGES = ((32, 127), (0, 32), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1100, 0x1200))
RANGES += ((0x2000, 0x2070), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xD800, 0xE000), (0xFE00, 0xFE10))
RANGES += ((0x1F300, 0x1FAFF), (0xE0000, 0xE0080), (0x10FFF0, 0x110000), (0x2581, 0x2582), (0x300, 0x370))
PARTS = (
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "    ",
    "'s",
    "'LL",
    "123456",
    "1,000.5",
    "▁",
    "<0x0A>",
    "\ufeff",
    "ﬁ",
    "e\u0301",
)


def text_of(choice: Random, specials: list[str]) -> str:
    """A text of runs from several scripts, spaces, numbers and names of control tokens."""
    parts: list[str] = []
    for _ in range(choice.choice((1, 2, 5, 20, 100))):
        what = choice.randrange(10)
        if what < 4:
            low, high = choice.choice(RANGES)
            parts.append("".join(chr(choice.randrange(low, high)) for _ in range(choice.randrange(1, 12))))
        elif what < 7:
            parts.append(choice.choice(PARTS))
        elif what == 7 and specials:
            name = choice.choice(specials)
            parts.append(name[: choice.choice((len(name), len(name) // 2))])
        elif what == 8:
            parts.append(choice.choice((*PARTS, "a", "é", "😀")) * choice.choice((2, 30, 300)))
        else:
            parts.append(chr(choice.randrange(sys.maxunicode + 1)))
    return "".join(parts)


def make_case(target: str) -> Callable[[Random, Path], None]:
    """A case encodes a text with each of the vocabularies of a folder, and decodes it whole and in pieces."""
    from localllm.tokenizer import Tokenizer

    tokenizers = {path.stem: Tokenizer.from_gguf(path) for path in sorted(Path(target).glob("*.gguf"))}

    def case(choice: Random, keep: Path) -> None:
        name = choice.choice(list(tokenizers))
        tokenizer = tokenizers[name]
        text = text_of(choice, list(tokenizer.special_tokens))
        (keep / "case.json").write_text(json.dumps({"vocabulary": name, "text": text}), encoding="utf-8")
        ids = tokenizer.encode(text, add_bos=False)
        if controls := [token for token in ids if tokenizer.is_control(token)]:
            raise ValueError(f"plain text became the control tokens {controls[:5]}")
        tokenizer.encode(text, parse_special=True)
        tokenizer.encode_prompt(text)
        whole = tokenizer.decode(ids)
        if tokenizer.encode(whole, add_bos=False) and not whole.strip("\ufffd") and text.strip("\ufffd").isascii():
            raise ValueError("ASCII came back as nothing")
        if text.isascii() and text.isprintable() and whole.split() != text.split():
            raise ValueError(f"printable ASCII came back changed: {text!r} {whole!r}")
        decoder = tokenizer.stream_decoder()
        if "".join(decoder.push(token) for token in ids) + decoder.flush() != whole:
            raise ValueError("the text differs when it is decoded token by token")
        some = [choice.randrange(tokenizer.vocabulary_size) for _ in range(20)]
        decoder = tokenizer.stream_decoder(skip_special=True)
        if "".join(decoder.push(token) for token in some) + decoder.flush() != tokenizer.decode(
            some, skip_special=True
        ):
            raise ValueError(f"random ids differ when they are decoded one by one: {some}")

    return case
