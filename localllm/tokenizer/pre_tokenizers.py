"""How a byte-level vocabulary cuts text before it merges bytes: one table, by `tokenizer.ggml.pre`.

A pre-tokenizer is a sequence of regular expressions in Oniguruma syntax. Each cuts every piece that the ones before it
left, and both its matches and the gaps between them go on as pieces; no merge ever crosses a piece.
The patterns are those that the models' publishers put into their `tokenizer.json`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from localllm.errors import UnsupportedModelError

DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The cuts of one family. `whole_words`: a piece that is a token is taken as it is, without merging."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False  # unless the file says otherwise


_CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES_AND_SPACES = r"\s*[\r\n]+|" + _SPACES
_DIGIT = r"\p{N}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"


def _words(digits: str, letters: str = r"\p{L}+", others: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    """The shape that Llama 3 and its many relatives share; they differ in how digits and letters run together."""
    return rf"{_ANY_CASE_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{others}|{_LINES_AND_SPACES}"


def _cased_words(digits: str, contraction: str, upper: str = _UPPER, lower: str = _LOWER) -> str:
    """The shape of GPT-4o and Tekken: a change from lower to upper case ends a word."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{upper}*{lower}+{contraction}|{start}{upper}+{lower}*{contraction}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}"
    )


_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_GPT4O = _cased_words(r"\p{N}{1,3}", _ANY_CASE_CONTRACTION + "?")
_NOT_HAN = "&&[^\\p{Han}]]"
_KIMI = r"[\p{Han}]+|" + _cased_words(
    r"\p{N}{1,3}", _ANY_CASE_CONTRACTION + "?", _UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN
).replace(r"[\r\n/]*", r"[\r\n]*")
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES_AND_SPACES}"
)
_CJK = "[一-龥ࠀ-一가-퟿]+"
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
# DeepSeek LLM lists the cased letters of its day one by one; escaped are those that Unicode normalization changes.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

_ONE_DIGIT_GPT2 = PreTokenizer((_DIGIT, _GPT2))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))

_TABLE: dict[tuple[str, ...], PreTokenizer] = {
    (DEFAULT_NAME,): PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"): (
        PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
    ),
    ("dbrx", "smaug-bpe", "smaug", "chatglm-bpe", "chatglm4", "glm4"): PreTokenizer((_LLAMA3,)),
    ("qwen2", "stablelm2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open", "grok-2"): (
        PreTokenizer((_QWEN2,))
    ),
    ("qwen35",): PreTokenizer((_words(r"\p{N}", r"[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
    ("minicpm5",): PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+"))),
    ("seed-coder",): PreTokenizer((_words(r"\p{N}", others=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    ("bailingmoe", "bailingmoe2", "llada-moe"): PreTokenizer(
        (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES,)
    ),
    ("exaone-moe",): PreTokenizer(
        (
            rf"{_ANY_CASE_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
        )
    ),
    ("tekken",): PreTokenizer((_cased_words(r"\p{N}", ""),), whole_words=True, adds_bos=True),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("tiny_aya",): PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    ("kimi-k2",): PreTokenizer((_KIMI,)),
    ("deepseek-llm",): PreTokenizer(
        (
            "[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    ("deepseek-coder",): PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "step35"): PreTokenizer((r"\p{N}{1,3}", _HAN_AND_KANA, _PUNCTUATED)),
    ("youtu",): PreTokenizer(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN_AND_KANA,
            _cased_words(r"\p{N}", _ANY_CASE_CONTRACTION + "?"),
        ),
        whole_words=True,
    ),
    ("falcon",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"): _ONE_DIGIT_GPT2,
    (
        *("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0"),
        *("exaone4", "mellum"),
    ): _PLAIN_GPT2,
    ("bloom", "poro-chat", "gpt3-finnish"): PreTokenizer((_BLOOM,)),
    ("viking",): PreTokenizer((_BLOOM, _DIGIT)),
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: cuts for names, cuts in _TABLE.items() for name in names}


def pre_tokenizer(name: str, source: str) -> PreTokenizer:
    """The cuts that a model's file asks for by name; an unknown name is an error, since every guess costs quality."""
    found = PRE_TOKENIZERS.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, PRE_TOKENIZERS, n=3)
    raise UnsupportedModelError(
        f"{source}: the pre-tokenizer {name[:80]!r} (metadata key tokenizer.ggml.pre) is not supported",
        hint=(f"Nearest known names: {', '.join(near)}. " if near else "")
        + "The model's tokenizer.json says how it cuts text; it can be added to localllm/tokenizer/pre_tokenizers.py.",
    )
