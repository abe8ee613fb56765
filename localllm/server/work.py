"""What one request holds while it is answered: a loaded model and its generations."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from localllm.engine import Generation, Request

    from .pool import Lease
    from .service import Service

T = TypeVar("T")


class Work:
    """Counts as active until `close`, which also cancels what is unfinished."""

    def __init__(self, service: Service, lease: Lease) -> None:
        self.service = service
        self.name = lease.name
        self.served = lease.served
        self.model = lease.model
        self.generations: list[Generation] = []
        self._call = uuid.uuid4().hex
        self._lease: Lease | None = lease
        service.call_on_cut(self._cut)

    @classmethod
    async def begin(cls, service: Service, model: str) -> Work:
        """The model, loaded. APIError 404 for one that is not served, 503 when there is too much to do."""
        name = service.pool.find(model)
        service.begin()
        try:
            return cls(service, await service.pool.acquire(name))
        except BaseException:
            service.end()
            raise

    async def submit(self, make: Callable[[], list[Request]]) -> list[Generation]:
        """Prepare requests aside (templates and tokenizers take time) and hand them to the engine."""
        for request in await asyncio.to_thread(make):
            self.generations.append(self.model.engine.submit(replace(request, call=self._call)))
        return self.generations

    def close(self) -> None:
        """Nobody reads on; may be called twice."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        self.service.forget_on_cut(self._cut)
        self._cut()
        lease.release()
        self.service.end()

    def _cut(self) -> None:
        """Stop within a step: a stream that runs tells its client why."""
        for generation in self.generations:
            generation.cancel()
