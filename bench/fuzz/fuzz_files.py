"""GGUF files with changed bytes: opened, described, made into a model, a tokenizer and a template, and run."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

NUMBERS = (0, 1, 2, 7, 31, 32, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
LARGEST = 1 << 20
CPU_EVERY = 25  # cases that the CPU executor runs too: it compiles


def changed(data: bytes, choice: Random) -> bytes:
    """A file with a few changes, most of them in what comes before the weights."""
    file = bytearray(data)
    head = choice.choice((64, 4096, len(file) // 4, len(file), len(file)))
    for _ in range(choice.choice((1, 1, 1, 2, 3, 8))):
        at = choice.randrange(max(min(head, len(file)) - 8, 1))
        what = choice.randrange(7)
        if what == 0:
            file[at] = choice.randrange(256)
        elif what == 1:
            file[at : at + 8] = struct.pack("<Q", choice.choice(NUMBERS))
        elif what == 2:
            file[at : at + 4] = struct.pack("<I", choice.choice(NUMBERS) & 0xFFFFFFFF)
        elif what == 3:
            file[at : at + 4] = struct.pack("<f", choice.choice((0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-40)))
        elif what == 4:
            del file[at : at + choice.choice((1, 4, 8, 100))]
        elif what == 5:
            other = choice.randrange(len(file))
            length = choice.choice((1, 4, 8, 16, 64))
            file[at : at + length] = file[other : other + length]
        else:
            del file[choice.randrange(len(file)) :]
        if len(file) < 16:
            break
    return bytes(file)


def make_case(target: str) -> Callable[[Random, Path], None]:
    """A case changes one of the files of a folder and does with it all that a user can do."""
    import numpy as np

    from localllm.chat_template import ChatTemplate, encode_chat
    from localllm.gguf_io import open_gguf
    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.registry import open_executor
    from localllm.kernels.single_sequence import logits_of
    from localllm.models import load_spec
    from localllm.tokenizer import Tokenizer

    paths = [path for path in sorted(Path(target).glob("*.gguf")) if path.stat().st_size < LARGEST]
    files = [path.read_bytes() for path in paths]

    def case(choice: Random, keep: Path) -> None:
        path = keep / "case.gguf"
        path.write_bytes(changed(choice.choice(files), choice))
        runs = "cpu" if choice.randrange(CPU_EVERY) == 0 else "reference"
        with open_gguf(path) as file:
            spec = load_spec(file, context=64)
            executor = open_executor(spec, runs, ExecutorOptions(threads=1))
            try:
                ids = [token % spec.vocabulary_size for token in (1, 5, 2, 7, 3)]
                with np.errstate(all="ignore"):
                    logits_of(executor, ids)
            finally:
                executor.close()
            tokenizer = Tokenizer.from_gguf(file)
            tokenizer.decode(tokenizer.encode("Hello, Grüße 日本 <|im_start|> \x00", parse_special=True))
            encode_chat(ChatTemplate.from_gguf(file, tokenizer), tokenizer, [{"role": "user", "content": "Hello"}])

    return case
