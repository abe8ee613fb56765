"""The pool of loaded models by itself."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from scripted_model import ScriptedModel

from localllm.server.pool import ModelPool, ModelSource


def test_a_model_is_closed_though_the_pool_ends_while_it_is_unloaded() -> None:
    """The only thread is busy when an idle model is let go, and then the pool ends."""
    model, free = ScriptedModel(), threading.Event()

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        pool = ModelPool([ModelSource("one", lambda: model)], keep_alive=0.01)
        pool.start()
        (await pool.acquire("one")).release()
        busy = loop.run_in_executor(None, free.wait, 60)
        while pool.state("one") != "unloaded":
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(busy, closing)
        assert model.closed

    asyncio.run(steps())
