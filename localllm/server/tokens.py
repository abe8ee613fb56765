"""POST /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .body import read_object
from .chat_plan import flattened, template_options, tool_objects
from .decode import decode
from .errors import bad_request
from .fields import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from .stream import JSONAnswer, while_connected
from .work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from .service import Service


async def _with_model(request: Request, name: str, work_on: Callable[[Work], dict[str, Any]]) -> JSONAnswer:
    service: Service = request.app.state.service

    async def answer() -> JSONAnswer:
        work = await Work.begin(service, name)
        try:
            return JSONAnswer(await asyncio.to_thread(work_on, work))
        finally:
            work.close()

    return await while_connected(request, answer())


async def tokenize(request: Request) -> JSONAnswer:
    """A text's tokens."""
    service: Service = request.app.state.service
    asked, _ = decode(await read_object(request, service.options.body), TokenizeRequest)

    def work_on(work: Work) -> dict[str, Any]:
        tokenizer = work.model.tokenizer
        ids = tokenizer.encode(asked.text, asked.add_bos, bool(asked.parse_special))
        reply: dict[str, Any] = {"tokens": ids, "count": len(ids), "context_length": work.model.context}
        if asked.with_pieces:
            reply["pieces"] = [piece.decode("utf-8", "replace") for piece in tokenizer.pieces(ids)]
        return reply

    return await _with_model(request, asked.model, work_on)


async def detokenize(request: Request) -> JSONAnswer:
    """The text of tokens."""
    service: Service = request.app.state.service
    asked, _ = decode(await read_object(request, service.options.body), DetokenizeRequest)

    def work_on(work: Work) -> dict[str, Any]:
        size = work.model.tokenizer.vocabulary_size
        wrong = next((token for token in asked.tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise bad_request(f"token ids go from 0 to {size - 1}, not {wrong}", "tokens", "invalid_value")
        return {"text": work.model.tokenizer.decode(asked.tokens)}

    return await _with_model(request, asked.model, work_on)


async def apply_template(request: Request) -> JSONAnswer:
    """The prompt that a conversation becomes, as text and as tokens."""
    service: Service = request.app.state.service
    body = await read_object(request, service.options.body)
    asked, _ = decode(body, ApplyTemplateRequest)

    def work_on(work: Work) -> dict[str, Any]:
        tools = tool_objects(asked.tools or ())
        options = template_options(asked.chat_template_kwargs) or None
        messages = flattened(body["messages"])
        ids = work.model.encode_chat(messages, tools=tools or None, template_options=options)
        return {"prompt": work.model.tokenizer.decode(ids), "tokens": ids, "count": len(ids)}

    return await _with_model(request, asked.model, work_on)
