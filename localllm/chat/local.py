"""A chat with a model in this process."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from localllm.errors import LocalLLMError, RequestError
from localllm.events import Finished, TextDelta
from localllm.full_context import full_context
from localllm.kernels.executor import LoadProgress
from localllm.spare_memory import give_back, trim

from .backend import ContextState, ModelState
from .placed import placed
from .reasoning import KNOWN_TAGS
from .written import WrittenAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from localllm.engine import Generation as Handle
    from localllm.events import Event
    from localllm.llm import LLM
    from localllm.placement import Machine

TAIL_TOKENS = 16  # of a prompt, where a template may have opened the thinking


class LocalBackend:
    """A model that is loaded when it is first needed. `keywords` are those of `LLM`.

    A chat never ends: unless a keyword says otherwise the window slides when the context is full.
    """

    def __init__(self, name: str, keywords: Mapping[str, Any], sampling: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.sampling: Mapping[str, Any] = dict(sampling or {})
        self._keywords = {"context_policy": "error" if keywords.get("kv_policy") else "window", **keywords}
        self._llm: LLM | None = None
        self._lock = threading.Lock()
        self._generation: Handle | None = None  # the present or last answer
        self._written = WrittenAnswer(())
        self._restored = 0  # tokens of the conversation that came from a file
        self._machine: Machine | None = None
        self._gpu_note = ""
        self._opening = ""  # the tag that every prompt ends with, for models that always think

    def load(self, progress: Callable[[LoadProgress], None]) -> None:
        """Find the file and load it; does nothing when it is loaded."""
        from localllm.hardware import detect
        from localllm.llm import LLM
        from localllm.paths import Paths
        from localllm.placement.remembered import remembered_machine, supposed_machine
        from localllm.store import resolve_model

        with self._lock:
            if self._llm is not None:
                return
            progress(LoadProgress("opening"))
            path = resolve_model(self.name).path
            self._llm = LLM(path, progress=progress, **self._keywords)
            self._opening = _opened_tag(self._llm)
            hardware, cache = detect(), Paths.from_environment().cache
            if not supposed_machine(hardware, cache).measured:
                progress(LoadProgress("measuring this machine (once)"))
            self._gpu_note = hardware.gpu_note
            self._machine = remembered_machine(hardware, cache)

    def stream(self, messages: Sequence[dict[str, Any]], sampling: dict[str, Any]) -> Generator[Event, None, None]:
        """Answer; what the model sees is the whole conversation, of which the cache keeps what it can."""
        if self._llm is None:
            raise RequestError(f"{self.name} is not loaded")
        asked = _prepared(messages, self._opening)
        begun: list[int] | None = None
        if len(asked) > 1 and asked[-1].get("role") == "assistant":
            begun = self._written.ids_for(asked[:-1], str(asked[-1].get("content") or ""), self._llm.tokenizer)
        self._generation = self._llm.begin_chat(asked, begun=begun, **sampling)
        self._written = WrittenAnswer(asked if begun is None else asked[:-1], begun or ())
        opening = "" if begun is not None else self._opening
        return self._events(self._llm, self._generation, opening, sampling.get("max_tokens"))

    def _events(self, llm: LLM, generation: Handle, opening: str, most: int | None) -> Generator[Event, None, None]:
        written = self._written
        try:
            if opening:
                yield TextDelta(opening)
            for event in generation:
                written.add(event)
                if isinstance(event, Finished):
                    event = replace(event, note=full_context(llm, event.reason, event.usage, most))
                yield event
        finally:
            generation.cancel()
            trim()

    def cancel(self) -> None:
        """End the present answer at the engine's next step."""
        if self._generation is not None:
            self._generation.cancel()

    def save(self, messages: Sequence[dict[str, Any]], path: Path, most_bytes: int) -> None:
        """The part that the next question would find in the cache: the template may drop thinking, for instance."""
        llm = self._llm
        if llm is None or not messages:
            return
        asked = _prepared(messages, self._opening)
        if asked[-1].get("role") == "assistant":
            asked.append({"role": "user", "content": "Go on."})
        ids = llm.encode_chat(asked)
        llm.save_session(path, ids, sinks=llm.system_prefix(ids, asked), most_bytes=most_bytes)

    def restore(self, path: Path) -> None:
        """Put a conversation back into the cache."""
        if self._llm is None:
            raise RequestError(f"{self.name} is not loaded")
        self._restored = len(self._llm.restore_session(path))

    def forget(self) -> None:
        """The next answer belongs to another conversation."""
        self._generation, self._restored = None, 0

    def context(self) -> ContextState:
        """Tokens of the conversation, as of the engine's last step."""
        limit = None if self._llm is None else self._llm.context
        if self._generation is None:
            return ContextState(limit, kept=min(self._restored, limit or 0))
        state = self._generation.context_state()
        return ContextState(state.limit or limit, state.kept, state.sunk, state.evicted)

    def state(self) -> ModelState:
        """Bytes by device as the executor counts them."""
        if self._llm is None:
            return ModelState()
        memory = self._llm.memory()
        state = ModelState(self._llm.describe(), tuple(memory.weights.items()), tuple(memory.kv.items()))
        if self._machine is None:
            return state
        plan = placed(self._llm, self._machine, self._keywords.get("kv", "f16"), self.context().kept, self._gpu_note)
        return replace(
            state,
            predicted_tokens_per_second=plan.decode,
            reasons=plan.reasons,
            layers=plan.layers,
            ends=plan.ends,
        )

    def close(self) -> None:
        """Free the model."""
        with self._lock:
            llm, self._llm, self._generation = self._llm, None, None
        if llm is not None:
            llm.close()
            del llm
            give_back()


def _prepared(messages: Sequence[dict[str, Any]], opening: str) -> list[dict[str, Any]]:
    """Messages as the template wants them; an answer that goes on is given back with its thinking, in its tags."""
    asked = [{key: value for key, value in message.items() if key != "reasoning"} for message in messages]
    last = messages[-1] if messages else {}
    reasoning, content = str(last.get("reasoning") or ""), str(last.get("content") or "")
    if last.get("role") == "assistant" and reasoning:
        tags = next((tags for tags in KNOWN_TAGS if tags.opening == opening), KNOWN_TAGS[0])
        begun = reasoning if opening else f"{tags.opening}\n{reasoning}"
        asked[-1]["content"] = f"{begun}{tags.closing}\n\n{content}" if content else begun
    return asked


def _opened_tag(llm: LLM) -> str:
    """The tag of thinking that the model's template leaves open at the end of a prompt, or an empty text."""
    try:
        ids = llm.encode_chat([{"role": "user", "content": "Hello"}])
    except LocalLLMError:
        return ""  # the first question will say what is wrong with the template
    tail = llm.tokenizer.decode(ids[-TAIL_TOKENS:]).rstrip()
    return next((tags.opening for tags in KNOWN_TAGS if tail.endswith(tags.opening)), "")
