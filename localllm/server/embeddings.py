"""POST /v1/embeddings: the mean of the hidden vectors after the model's last norm, of length 1."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from localllm.engine import Request as EngineRequest
from localllm.engine.readers import MeanHidden
from localllm.sampling import SamplingParameters

from .answers import collect, pieces
from .body import read_object
from .decode import decode
from .errors import bad_request
from .fields import EmbeddingRequest
from .parts import PlainReader
from .prompts import read_prompts
from .stream import JSONAnswer, while_connected
from .work import Work

if TYPE_CHECKING:
    import numpy.typing as npt
    from starlette.requests import Request

    from .service import Service

MOST_INPUTS = 2048


async def embeddings(request: Request) -> JSONAnswer:
    """Vectors of texts."""
    service: Service = request.app.state.service
    body = await read_object(request, service.options.body)
    asked, warnings = decode(body, EmbeddingRequest)
    client = request.client.host if request.client else ""

    async def answer() -> JSONAnswer:
        work = await Work.begin(service, asked.model)
        try:
            readers: list[MeanHidden] = []
            await work.submit(lambda: _requests(work, asked, readers, client))
            service.log_prompt(request.scope, body)
            answers = await collect(pieces(service, work.generations, 1, PlainReader), len(readers))
            in_base64 = asked.encoding_format == "base64"
            data = [
                {"object": "embedding", "index": index, "embedding": _encoded(_unit(reader.mean()), in_base64)}
                for index, reader in enumerate(readers)
            ]
            tokens = sum(each.usage.prompt_tokens for each in answers)
            reply: dict[str, Any] = {"object": "list", "data": data, "model": work.name}
            reply["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
            return JSONAnswer(reply | ({"warnings": warnings} if warnings else {}))
        finally:
            work.close()

    return await while_connected(request, answer())


def _requests(work: Work, asked: EmbeddingRequest, readers: list[MeanHidden], client: str) -> list[EngineRequest]:
    prompts = read_prompts(asked.input, work.model.tokenizer, work.served.vocabulary_size, "input")
    if len(prompts) > MOST_INPUTS:
        raise bad_request(f"there are more than {MOST_INPUTS} inputs", "input", "invalid_value")
    readers += [MeanHidden(len(prompt.ids), work.model.spec.hidden_size) for prompt in prompts]
    return [
        EngineRequest(prompt.ids, SamplingParameters(max_tokens=0), reader=reader, client=client)
        for prompt, reader in zip(prompts, readers, strict=True)
    ]


def _unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    length = float(np.linalg.norm(vector))
    return vector if length == 0 else (vector / length).astype(np.float32)


def _encoded(vector: npt.NDArray[np.float32], in_base64: bool) -> str | list[float]:
    if in_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    values: list[float] = vector.tolist()
    return values
