"""A tokenizer of 300 tokens: id b is byte b, then some words, then control tokens of which two end an answer."""

from __future__ import annotations

from localllm.tokenizer import Tokenizer
from localllm.tokenizer.vocabulary import SENTENCE_PIECE, TokenKind, Vocabulary

SIZE = 300
WORDS = (" O", " P Q", " R", "ab", "bc", "\n\n", "the ", "```")
BOS, EOS, END_OF_TURN, START_OF_TURN = 296, 297, 298, 299


class _Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def word(text: str) -> int:
    """The id of a word."""
    return 256 + WORDS.index(text)


def byte_tokenizer() -> Tokenizer:
    """Encodes text as its bytes."""
    words = [text.replace(" ", "▁") for text in WORDS]
    unused = [f"[unused{index}]" for index in range(SIZE - 4 - 256 - len(words))]
    texts = [f"<0x{byte:02X}>" for byte in range(256)] + words + unused
    texts += ["<s>", "</s>", "<|im_end|>", "<|im_start|>"]
    kinds = bytes([TokenKind.BYTE] * 256 + [TokenKind.NORMAL] * (len(words) + len(unused)) + [TokenKind.CONTROL] * 4)
    vocabulary = Vocabulary(
        source="test",
        model=SENTENCE_PIECE,
        pre_tokenizer=None,
        texts=texts,
        kinds=kinds,
        scores=None,
        bos_id=BOS,
        eos_id=EOS,
        end_ids=frozenset((EOS, END_OF_TURN)),
        adds_bos=False,
        adds_space_prefix=False,
        model_name="test",
    )
    return Tokenizer(vocabulary, _Bytes(), adds_bos=False, warnings=())
