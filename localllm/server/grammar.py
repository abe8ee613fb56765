"""Answers that must follow a JSON schema, a regular expression or a grammar: masks by llguidance, failing closed."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from localllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import llguidance
    import numpy.typing as npt

    from localllm.tokenizer import Tokenizer

# At most so much white space between the tokens of JSON: a model that prefers line breaks must not write them for ever.
JSON_SPACE = r"[ \t\n]{0,16}"
REMEMBERED = 32  # compiled grammars
LONGEST_ERROR = 500  # characters of the compiler's text


class GrammarCompiler:
    """Makes constraints for one model's vocabulary. The vocabulary is prepared at the first use (it may take seconds).

    RequestError carries the compiler's text. Thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._guide: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def json_schema(self, schema: dict[str, Any] | bool, parameter: str) -> llguidance.LLMatcher:
        """For JSON that follows a schema."""
        import llguidance

        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        _check_text(json.dumps(schema, ensure_ascii=False), parameter)
        options: Any = {"whitespace_pattern": JSON_SPACE}
        return self._compile(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=options), parameter)

    def regex(self, pattern: str) -> llguidance.LLMatcher:
        """For a whole answer that matches a regular expression."""
        import llguidance

        _check_text(pattern, "regex")
        return self._compile(llguidance.LLMatcher.grammar_from_regex(pattern), "regex")

    def lark(self, grammar: str, parameter: str = "grammar") -> llguidance.LLMatcher:
        """For a grammar in Lark's or llama.cpp's (GBNF) notation."""
        import llguidance
        from llguidance.gbnf_to_lark import any_to_lark

        _check_text(grammar, parameter)
        try:
            text = any_to_lark(grammar)
        except Exception as error:  # a parser of its own, with errors of many kinds
            raise RequestError(f"{parameter}: {str(error)[:LONGEST_ERROR]}", parameter=parameter) from None
        return self._compile(llguidance.LLMatcher.grammar_from_lark(text), parameter)

    def special(self, text: str) -> str:
        """A text as Lark: control tokens in it by their numbers, the rest as strings."""
        import re

        found = [name for name in self._tokenizer.special_tokens if name and name in text]
        pattern = "|".join(re.escape(name) for name in sorted(found, key=len, reverse=True))
        pieces = re.split(f"({pattern})", text) if found else [text]
        numbers = self._tokenizer.special_tokens
        return " ".join(f"<[{numbers[p]}]>" if p in numbers else json.dumps(p) for p in pieces if p)

    def _compile(self, grammar: str, parameter: str) -> llguidance.LLMatcher:
        import llguidance

        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return self._compiled[grammar]
            guide = self._guide = self._guide or self._prepare()
            matcher = llguidance.LLMatcher(guide, grammar, log_level=0, limits=_limits())
            probe = matcher.deep_copy()
            probe.compute_bitmask()  # some grammars are found to be too complex only here
            if matcher.is_error() or probe.is_error():
                text = _plain(matcher.get_error() or probe.get_error())
                raise RequestError(f"{parameter} cannot be followed: {text}", parameter=parameter)
            self._compiled[grammar] = matcher
            while len(self._compiled) > REMEMBERED:
                self._compiled.popitem(last=False)
            return matcher

    def constraint(self, matcher: llguidance.LLMatcher, after: str | None = None) -> MatcherConstraint:
        """A constraint for one answer; with `after` it begins behind that text (the end of the thinking)."""
        return MatcherConstraint(matcher.deep_copy(), self._tokenizer, self._vocabulary_size, after)

    def _prepare(self) -> llguidance.LLTokenizer:
        import llguidance

        ends = [token for token in self._tokenizer.end_ids if token < self._vocabulary_size]
        if not ends:
            raise RequestError("this model has no end token, so no answer can be held to a grammar")
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocabulary_size, ends[0]))
        return llguidance.LLTokenizer(wrapper, n_vocab=self._vocabulary_size, eos_token=ends)


class _Vocabulary:
    """A tokenizer in the form that llguidance wants."""

    def __init__(self, tokenizer: Tokenizer, size: int, end: int) -> None:
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id
        self.tokens = tokenizer.pieces(range(size))
        self.special_token_ids = [token for token in range(size) if tokenizer.is_control(token)]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> Sequence[int]:
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(plain, add_bos=False)


class MatcherConstraint:
    """One answer's place in a grammar (an engine `Constraint`)."""

    def __init__(
        self, matcher: llguidance.LLMatcher, tokenizer: Tokenizer, vocabulary_size: int, after: str | None
    ) -> None:
        from llguidance.numpy import allocate_token_bitmask

        self._matcher = matcher
        self._vocabulary_size = vocabulary_size
        self._bits = allocate_token_bitmask(1, vocabulary_size)
        self._tokenizer = tokenizer
        self._after = None if after is None else after.encode()
        self._tail = b""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """[vocabulary] what may come next; RequestError when the matcher failed or nothing may."""
        from llguidance.numpy import fill_next_token_bitmask

        if self._after is not None:
            return None
        fill_next_token_bitmask(self._matcher, self._bits, 0)
        self._check()
        mask = np.unpackbits(self._bits[0].view(np.uint8), count=self._vocabulary_size, bitorder="little").view(bool)
        if not mask.any():
            raise RequestError("the grammar allows no token here")
        return mask

    def accept(self, token: int) -> None:
        """This token was chosen."""
        if self._after is not None:
            self._tail = (self._tail + self._tokenizer.token_bytes(token))[-4 * len(self._after) - 256 :]
            if self._after in self._tail:
                self._after = None
            return
        self._matcher.consume_token(token)
        self._check()

    def complete(self) -> bool:
        """Whether nothing more can follow."""
        return self._after is None and self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"the answer could not be held to its grammar: {_plain(self._matcher.get_error())}")


def _check_text(text: str, parameter: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{parameter} holds half a character (a lone surrogate)", parameter=parameter) from None


def _limits() -> llguidance.LLParserLimits:
    """A mask is made between two steps of everybody's answers: a grammar may not take long there (about 0.1 s)."""
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=400_000, step_lexer_fuel=50_000, max_lexer_states=50_000, verbose_errors=False
    )


def _plain(error: str) -> str:
    """The compiler's text on one line, without the dump of its state."""
    return " ".join(error.partition("<non-verbose")[0].split())[:LONGEST_ERROR]
