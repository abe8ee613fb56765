"""Answers that cannot be made for want of memory, which is nobody's fault."""

from __future__ import annotations

import pytest
from running_server import Running

from localllm.errors import OutOfMemoryError


@pytest.mark.parametrize("error", [OutOfMemoryError("12 MiB more are needed"), MemoryError()])
def test_too_little_memory_is_a_503_that_may_be_tried_again(server: Running, error: Exception) -> None:
    server.model.executor.error = error
    response = server.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}]})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert response.json()["error"]["code"] == "out_of_memory"
    assert server.chat_stream()[-1]["error"]["code"] == "out_of_memory"
    assert server.post("/v1/embeddings", {"model": "m", "input": "a"}).status_code == 503
    server.model.executor.error = None
    server.model.executor.say("fine")
    assert server.chat().json()["choices"][0]["message"]["content"] == "fine"
