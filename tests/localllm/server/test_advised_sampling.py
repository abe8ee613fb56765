"""What the catalogue advises holds where a request says nothing."""

from __future__ import annotations

from running_server import Serve

from localllm.server.fields import ChatRequest
from localllm.server.sampling import chat_sampling
from localllm.server.served import ServedModel


def test_advised_sampling_holds_where_a_request_says_nothing(serve: Serve) -> None:
    server = serve(sampling={"temperature": 0.0, "top_k": 7, "max_tokens": 3, "min_p": 0.1})
    advised = ServedModel(server.model, {"temperature": 0.0, "top_k": 7, "max_tokens": 3, "min_p": 0.1})
    asked = ChatRequest(model="m", messages=[])
    parameters = chat_sampling(asked, advised)
    assert (parameters.temperature, parameters.top_k, parameters.min_p) == (0.0, 7, 0.1)
    assert parameters.max_tokens is None
    own = chat_sampling(ChatRequest(model="m", messages=[], temperature=0.5, top_k=-1, min_p=0.0), advised)
    assert (own.temperature, own.top_k, own.min_p) == (0.5, 0, 0.0)
    assert chat_sampling(asked, ServedModel(server.model)).temperature == 1.0
    texts = {server.chat(max_tokens=8).json()["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(texts) == 1  # greedy, as advised
