"""A model for servers to serve: a real engine, tokenizer and template over an executor that says what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from byte_tokenizer import EOS, SIZE, byte_tokenizer
from integer_executor import IntegerExecutor

from localllm.chat_template import ChatTemplate, encode_chat
from localllm.engine import Engine, EngineOptions
from localllm.kernels.executor import MemoryUse
from localllm.kernels.step import Step

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Script = Callable[[int, int, int], npt.NDArray[np.float32]]


def preferring(token: int, strength: float = 50.0) -> npt.NDArray[np.float32]:
    """Logits that all but force a token."""
    logits = np.zeros(SIZE, np.float32)
    logits[token] = strength
    return logits


class SayingExecutor(IntegerExecutor):
    """Answers every prompt with `reply` (then its end token), or, while that is None, with text made of a hash.

    While `gate` is not set, steps wait: requests can be left in any phase for as long as a test wants.
    """

    def __init__(self, context_length: int = 4096) -> None:
        super().__init__(vocabulary_size=SIZE, context_length=context_length, script=self._logits_of)
        self.reply: Sequence[int] | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.delay = 0.0  # seconds a step
        self.fail_at: int | None = None  # the token of each reply whose logits are no numbers
        self.error: Exception | None = None  # what every step raises
        self._next: dict[int, int] = {}  # position of a row -> index of the reply's token that it chose

    def reset(self) -> None:
        """Nothing to say, no delay, no fault."""
        self.gate.set()
        self.delay = 0.0
        self.fail_at = self.error = None
        self.say(None)

    def say(self, reply: str | Sequence[int] | None) -> None:
        """From now on."""
        self._next.clear()
        self.reply = list(reply.encode()) if isinstance(reply, str) else reply

    def forward(self, step: Step) -> npt.NDArray[np.float32]:
        """When the gate is open."""
        self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.delay:
            threading.Event().wait(self.delay)
        return super().forward(step)

    def _logits_of(self, content: int, token: int, position: int) -> npt.NDArray[np.float32]:
        before = self._next.get(position - 1)
        index = 0 if before is None else before + 1
        self._next[position] = index
        if index == self.fail_at:
            self._next.clear()
            return np.full(SIZE, np.nan, np.float32)
        if self.reply is None:
            return self._plain(content)
        return preferring(self.reply[index] if index < len(self.reply) else EOS)

    def _plain(self, content: int) -> npt.NDArray[np.float32]:
        """Letters mostly, of a distribution that depends on everything before."""
        logits = np.random.default_rng(content).normal(0, 2, SIZE).astype(np.float32)
        logits[:97] -= 20
        logits[123:] -= 20
        return logits


class ScriptedModel:
    """What the server needs of a model. `size`: bytes that it says it takes."""

    size = 1000

    def __init__(self, *, template: str = CHATML, context: int = 512, parallel: int = 4, **options: Any) -> None:
        self.executor = SayingExecutor()
        self.spec = self.executor.spec
        self.tokenizer = byte_tokenizer()
        self.context = context
        self.engine = Engine(
            self.executor, self.tokenizer, EngineOptions(context=context, parallel=parallel, **options)
        )
        self.template_source = template
        self._template = ChatTemplate(template, "<s>", "</s>")
        self.closed = False

    @property
    def chat_template(self) -> ChatTemplate:
        """The template."""
        return self._template

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """As LLM does it."""
        return encode_chat(self._template, self.tokenizer, messages, tools=tools, **dict(template_options or {}))

    def system_prefix(
        self,
        ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> int | None:
        """None of it."""
        return None

    def memory(self) -> MemoryUse:
        """A round number."""
        return MemoryUse({"cpu": self.size}, {}, {})

    def describe(self) -> str:
        """One line."""
        return "scripted"

    def close(self) -> None:
        """End the engine; every page must be free by then."""
        self.closed = True
        self.executor.gate.set()
        self.engine.close()
