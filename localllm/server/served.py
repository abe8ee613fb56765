"""A loaded model as the handlers see it: what is found out about it once."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localllm import __version__
from localllm.chat import ReasoningSplitter
from localllm.chat.reasoning import KNOWN_TAGS
from localllm.errors import LocalLLMError

from .grammar import GrammarCompiler
from .parts import NoTools, TaggedReader
from .tools.dialects import HERMES, dialect_of
from .tools.harmony import SIGN, HarmonyReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .parts import AnswerReader
    from .pool import LanguageModel
    from .tools.dialects import Dialect

PROMPT_TAIL = 16  # tokens in which a template may open the thinking


class ServedModel:
    """Facts about a model that requests need; made when it is first used, kept as long as it is loaded.

    `sampling`: what the model's authors advise; it holds where a request says nothing.
    """

    def __init__(self, model: LanguageModel, sampling: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.sampling = dict(sampling or {})
        self.vocabulary_size = min(model.spec.vocabulary_size, model.tokenizer.vocabulary_size)
        self.grammars = GrammarCompiler(model.tokenizer, self.vocabulary_size)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when answers may change: version, model, and what computes it."""
        facts = f"{__version__} {self.model.spec} {self.model.describe()}"[:4000]
        return f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:12]}"

    @cached_property
    def template(self) -> str:
        """The source of the chat template, with that for tools; empty without one."""
        try:
            template = self.model.chat_template
        except LocalLLMError:
            return ""
        return template.source + ("" if template.tool_use is None else template.tool_use.source)

    @property
    def is_harmony(self) -> bool:
        """Whether answers are messages on channels (gpt-oss)."""
        return SIGN in self.template and "<|message|>" in self.template

    @cached_property
    def native_dialect(self) -> Dialect | None:
        """How the model's own template has it call tools; None: the template knows no tools."""
        return dialect_of(self.template) if "tools" in self.template else None

    @property
    def dialect(self) -> Dialect:
        """How this model calls tools: its own way, or one that it is told."""
        return self.native_dialect or HERMES

    def thinking_tag(self, ids: Sequence[int]) -> str | None:
        """The tag that will end the thinking, when the prompt has opened it already."""
        tail = self.model.tokenizer.decode(list(ids)[-PROMPT_TAIL:]).rstrip()
        return next((tags.closing for tags in KNOWN_TAGS if tail.endswith(tags.opening)), None)

    def shows_markers(self, with_tools: bool) -> bool:
        """Whether the answer's control tokens must reach the reader."""
        special = self.model.tokenizer.special_tokens
        if self.is_harmony:
            return True
        tags = [tag for tags in KNOWN_TAGS for tag in (tags.opening, tags.closing)]
        markers = (*tags, *(self.dialect.markers if with_tools else ()))
        return any(marker in special for marker in markers)

    def reader(self, *, with_tools: bool, inside: bool, progressive: bool = False) -> AnswerReader:
        """A reader for one answer; `progressive`: calls are told while they are written."""
        if self.is_harmony:
            return HarmonyReader(progressive=progressive)
        tools = self.dialect.reader(progressive=progressive) if with_tools else NoTools()
        hidden = self._hidden if self.shows_markers(with_tools) else None
        return TaggedReader(ReasoningSplitter(begun="reasoning" if inside else None), tools, hidden)

    @cached_property
    def _hidden(self) -> re.Pattern[str] | None:
        special = sorted(self.model.tokenizer.special_tokens, key=len, reverse=True)
        return re.compile("|".join(re.escape(text) for text in special if text)) if special else None
