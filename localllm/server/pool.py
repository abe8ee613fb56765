"""The models that a server offers: loaded when asked for, unloaded when idle, within one budget of memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from localllm.errors import LocalLLMError, OutOfMemoryError
from localllm.spare_memory import give_back

from .errors import APIError, unavailable
from .served import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from localllm.chat_template import ChatTemplate
    from localllm.engine import Engine
    from localllm.kernels.executor import MemoryUse
    from localllm.kernels.spec import ModelSpec
    from localllm.tokenizer import Tokenizer

log = logging.getLogger("localllm.server")
State = Literal["unloaded", "loading", "ready", "failed"]


class LanguageModel(Protocol):
    """What the server needs of a loaded model; `localllm.LLM` is one."""

    tokenizer: Tokenizer
    engine: Engine
    spec: ModelSpec
    context: int

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's own template; LocalLLMError when it has none."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, ready for the answer."""

    def system_prefix(
        self,
        ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> int | None:
        """Tokens of the system prompt at the start of `ids`."""

    def memory(self) -> MemoryUse:
        """Bytes by device and purpose."""

    def describe(self) -> str:
        """One line for people."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be served: its name, how to load it, about how many bytes that needs, and advised sampling.

    `vocabulary_bytes` are those of `size_bytes` that a loaded model does not count in its own `memory()`.
    """

    name: str
    load: Callable[[], LanguageModel]
    size_bytes: int = 0
    vocabulary_bytes: int = 0
    created: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)


class _Slot:
    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.state: State = "unloaded"
        self.served: ServedModel | None = None
        self.bytes = source.size_bytes
        self.users = 0
        self.last_used = time.monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.error: LocalLLMError | None = None


class Lease:
    """A loaded model that stays loaded until `release`."""

    def __init__(self, pool: ModelPool, slot: _Slot, served: ServedModel) -> None:
        self._pool = pool
        self._slot: _Slot | None = slot
        self.served = served
        self.model = served.model
        self.name = slot.source.name

    def release(self) -> None:
        """Give it back; may be called twice."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._pool.leave(slot)


class ModelPool:
    """Belongs to one event loop. `keep_alive`: idle seconds before a model is unloaded, None: never. `memory`: bytes
    that all loaded models may need together, None: no limit. `any_name`: a single model answers to every name."""

    def __init__(
        self,
        sources: Sequence[ModelSource],
        *,
        keep_alive: float | None = None,
        memory: int | None = None,
        any_name: bool = False,
    ) -> None:
        self._slots = {source.name: _Slot(source) for source in sources}
        self._keep_alive = keep_alive
        self._memory = memory
        self._any_name = any_name and len(self._slots) == 1
        self._changed = asyncio.Condition()
        self._making_room = asyncio.Lock()
        self._reaper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def sources(self) -> tuple[ModelSource, ...]:
        """All models, in the order in which they were given."""
        return tuple(slot.source for slot in self._slots.values())

    def state(self, name: str) -> State:
        """Whether a model is loaded."""
        return self._slots[name].state

    def loaded(self) -> list[tuple[str, LanguageModel]]:
        """The models in memory."""
        return [(name, slot.served.model) for name, slot in self._slots.items() if slot.served is not None]

    def bytes_of(self, name: str) -> int:
        """Memory that a model needs: measured once it was loaded, else estimated."""
        return self._slots[name].bytes

    def find(self, name: str) -> str:
        """The served name; APIError 404 for one that is not served. Nothing is loaded or fetched."""
        if name in self._slots:
            return name
        if self._any_name:
            return next(iter(self._slots))
        names = ", ".join(self._slots)
        raise APIError(
            404,
            f"there is no model {name[:100]!r}; this server has: {names}",
            parameter="model",
            code="model_not_found",
        )

    def start(self) -> None:
        """Begin to load the first model and to watch for idle ones."""
        first = next(iter(self._slots.values()))
        self._begin_loading(first)
        if self._keep_alive is not None:
            self._reaper = asyncio.create_task(self._reap(self._keep_alive))

    async def acquire(self, name: str) -> Lease:
        """A loaded model, loaded now if it is not; LocalLLMError when that fails."""
        slot = self._slots[self.find(name)]
        slot.users += 1  # from now on it is not idle
        try:
            served = await self._ready(slot)
            return Lease(self, slot, served)
        except BaseException:
            self.leave(slot)
            raise

    async def _ready(self, slot: _Slot) -> ServedModel:
        served = slot.served
        if served is not None and slot.loading is None and (death := served.model.engine.failure) is not None:
            log.error("model %s: %s; it is loaded again", slot.source.name, death)
            await self._unload(slot)
            served = None
        if served is None:
            if self._closed:
                raise unavailable("the server is shutting down", "draining")
            await asyncio.shield(slot.loading or self._begin_loading(slot))
            served = slot.served
        if served is None:
            raise slot.error or unavailable("the model could not be loaded", "model_unavailable")
        return served

    def leave(self, slot: _Slot) -> None:
        """One user less."""
        slot.users -= 1
        slot.last_used = time.monotonic()
        if slot.users == 0:
            with contextlib.suppress(RuntimeError):  # no loop any more
                asyncio.get_running_loop().create_task(self._notify())

    async def close(self) -> None:
        """Unload everything."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        for slot in self._slots.values():
            if slot.loading is not None:
                await asyncio.gather(slot.loading, return_exceptions=True)
            await self._unload(slot)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _begin_loading(self, slot: _Slot) -> asyncio.Task[None]:
        slot.state, slot.error = "loading", None
        slot.loading = asyncio.create_task(self._load(slot))
        return slot.loading

    async def _load(self, slot: _Slot) -> None:
        name = slot.source.name
        started = time.monotonic()
        try:
            async with self._making_room:
                await self._make_room(slot)
                try:
                    model = await asyncio.to_thread(slot.source.load)
                except OutOfMemoryError:
                    if not await self._unload_idle(slot):
                        raise
                    model = await asyncio.to_thread(slot.source.load)
                use = model.memory()
                counted = sum(sum(part.values()) for part in (use.weights, use.kv, use.workspace))
                slot.bytes = counted + slot.source.vocabulary_bytes if counted else slot.bytes
                try:
                    await self._make_room(slot)  # now that it is measured
                except BaseException:
                    await asyncio.to_thread(model.close)
                    raise
            slot.served, slot.state = ServedModel(model, slot.source.sampling), "ready"
            slot.last_used = time.monotonic()
            log.info("model %s loaded in %.1f s: %s", name, slot.last_used - started, model.describe())
        except LocalLLMError as error:
            slot.state, slot.error = "failed", error
            log.error("model %s could not be loaded: %s", name, error)
        except Exception:
            slot.state, slot.error = "failed", LocalLLMError(f"model {name} could not be loaded")
            log.exception("model %s could not be loaded", name)
        finally:
            slot.loading = None

    async def _make_room(self, slot: _Slot) -> None:
        if self._memory is None:
            return
        if slot.bytes > self._memory:
            raise OutOfMemoryError(
                f"model {slot.source.name} needs about {slot.bytes} bytes, the server may use {self._memory} for models"
            )
        while (
            sum(other.bytes for other in self._slots.values() if other.served is not None) + slot.bytes > self._memory
        ):
            if not await self._unload_idle(slot):
                async with self._changed:
                    await self._changed.wait()

    async def _unload_idle(self, wanted: _Slot) -> bool:
        """Unload the model that was idle the longest; False when all are in use."""
        loaded = [slot for slot in self._slots.values() if slot.served is not None and slot is not wanted]
        idle = [slot for slot in loaded if slot.users == 0]
        if not idle:
            return False
        await self._unload(min(idle, key=lambda slot: slot.last_used))
        return True

    async def _unload(self, slot: _Slot) -> None:
        served, slot.served = slot.served, None
        if served is not None:
            slot.state = "unloaded"
            closing = asyncio.create_task(asyncio.to_thread(served.model.close))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)  # who waits may be cancelled; a model that is let go is closed all the same
            del served
            await asyncio.to_thread(give_back)
            log.info("model %s unloaded", slot.source.name)

    async def _reap(self, keep_alive: float) -> None:
        while True:
            await asyncio.sleep(min(keep_alive / 4, 5.0))
            for slot in self._slots.values():
                idle = time.monotonic() - slot.last_used
                if slot.served is not None and slot.users == 0 and idle > keep_alive:
                    await self._unload(slot)
