"""POST /v1/responses, stateless: the same answers as chat completions, as items and events."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from .answers import Answer, collect, new_id, now, pieces
from .body import read_object
from .chat import submit_chat
from .chat_plan import unused_format
from .decode import decode
from .failing import failure_of
from .fields import ResponsesRequest
from .parts import CallArguments, CallBegun, CallPart, TextPart
from .responses_input import as_chat
from .stream import EventStream, JSONAnswer, event, while_connected
from .work import Work

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from .chat_plan import ChatPlan
    from .parts import Part
    from .service import Service


async def responses(request: Request) -> Response:
    """Answer items."""
    service: Service = request.app.state.service
    body = await read_object(request, service.options.body)
    asked, warnings = decode(body, ResponsesRequest)
    chat, messages = as_chat(asked)
    warnings += unused_format(chat)
    client = request.client.host if request.client else ""

    async def answer() -> Response:
        work = await Work.begin(service, asked.model)
        response: Response | None = None
        try:
            plan = await submit_chat(work, chat, messages, client)
            service.log_prompt(request.scope, body)
            if asked.stream:
                response = EventStream(_events(work, _Reply(work, asked, body, warnings), plan), work.close)
            else:
                reply = _Reply(work, asked, body, warnings)
                stream = pieces(service, work.generations, 1, plan.reader, plan.most_calls)
                (whole,) = await collect(stream, 1)
                reply.items = _items(whole)
                return JSONAnswer(reply.finished(whole))
        finally:
            if response is None:
                work.close()
        return response

    return await while_connected(request, answer())


def _items(answer: Answer) -> list[dict[str, Any]]:
    items = []
    if answer.reasoning:
        content = [{"type": "reasoning_text", "text": answer.reasoning}]
        items.append({"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": content})
    if answer.content or not answer.calls:
        items.append(_message(new_id("msg_"), answer.content, "completed"))
    items += [_call(call) for call in answer.calls]
    return items


def _message(identity: str, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [_output_text(text)]
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": content}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(call: CallPart) -> dict[str, Any]:
    return {
        "id": new_id("fc_"),
        "type": "function_call",
        "status": "completed",
        "call_id": new_id("call_")[:29],
        "name": call.name,
        "arguments": call.arguments,
    }


class _Reply:
    """The response object, which every phase repeats."""

    def __init__(self, work: Work, asked: ResponsesRequest, body: dict[str, Any], warnings: list[str]) -> None:
        self.identity = new_id("resp_")
        self.items: list[dict[str, Any]] = []
        self._base = {
            "id": self.identity,
            "object": "response",
            "created_at": now(),
            "model": work.name,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice") or "auto",
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "text": body.get("text") or {"format": {"type": "text"}},
            "metadata": {},
            "previous_response_id": None,
            "store": False,
        } | ({"warnings": warnings} if warnings else {})

    def state(self, status: str, **more: Any) -> dict[str, Any]:
        """The object in a phase."""
        changes = {"status": status, "error": None, "incomplete_details": None, "usage": None, "output": self.items}
        return self._base | changes | more

    def finished(self, answer: Answer) -> dict[str, Any]:
        """The object at the end."""
        usage = answer.usage
        counts = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if answer.reason == "length":
            return self.state("incomplete", usage=counts, incomplete_details={"reason": "max_output_tokens"})
        return self.state("completed", usage=counts)


class _Writer:
    """Turns parts into events: an item is open until a part of another kind comes."""

    def __init__(self, reply: _Reply) -> None:
        self._reply = reply
        self._number = -1
        self._open: dict[str, Any] | None = None
        self._text = ""

    def event(self, kind: str, **fields: Any) -> bytes:
        """The next event."""
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def part(self, part: Part) -> Iterator[bytes]:
        """The events of a part."""
        if isinstance(part, CallPart | CallBegun):
            yield from self.close()
            self._text = ""
            self._open = _call(CallPart(part.name, "")) | {"status": "in_progress"}
            yield self.event("response.output_item.added", output_index=len(self._reply.items), item=self._open)
        if isinstance(part, CallArguments | CallPart):
            text = part.text if isinstance(part, CallArguments) else part.arguments
            self._text += text
            yield self.event("response.function_call_arguments.delta", delta=text, **self._call_place())
        if not isinstance(part, TextPart):
            return
        kind = "message" if part.kind == "content" else "reasoning"
        if self._open is None or self._open["type"] != kind:
            yield from self.close()
            yield from self.begin(kind)
        self._text += part.text
        name = "response.output_text.delta" if kind == "message" else "response.reasoning_text.delta"
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self.event(name, delta=part.text, **self._place(), **more)

    def begin(self, kind: str) -> Iterator[bytes]:
        """Open an item for text."""
        self._text = ""
        if kind == "message":
            self._open = _message(new_id("msg_"), None, "in_progress")
        else:
            self._open = {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": []}
        yield self.event("response.output_item.added", output_index=len(self._reply.items), item=self._open)
        yield self.event("response.content_part.added", part=self._content(""), **self._place())

    def close(self) -> Iterator[bytes]:
        """End the open item."""
        if self._open is None:
            return
        if self._open["type"] == "function_call":
            yield from self._close_call(self._open)
            return
        place, text = self._place(), self._text
        if self._open["type"] == "message":
            yield self.event("response.output_text.done", text=text, logprobs=[], **place)
        else:
            yield self.event("response.reasoning_text.done", text=text, **place)
        yield self.event("response.content_part.done", part=self._content(text), **place)
        item = self._open | {"content": [self._content(text)]}
        if item["type"] == "message":
            item["status"] = "completed"
        self._open = None
        self._reply.items.append(item)
        yield self.event("response.output_item.done", output_index=len(self._reply.items) - 1, item=item)

    def _close_call(self, begun: dict[str, Any]) -> Iterator[bytes]:
        done = {"arguments": self._text, "name": begun["name"]}
        yield self.event("response.function_call_arguments.done", **done, **self._call_place())
        item = begun | {"status": "completed", "arguments": self._text}
        self._open = None
        self._reply.items.append(item)
        yield self.event("response.output_item.done", output_index=len(self._reply.items) - 1, item=item)

    def _call_place(self) -> dict[str, Any]:
        return {"output_index": len(self._reply.items), "item_id": "" if self._open is None else self._open["id"]}

    def _content(self, text: str) -> dict[str, Any]:
        if self._open is not None and self._open["type"] == "message":
            return _output_text(text)
        return {"type": "reasoning_text", "text": text}

    def _place(self) -> dict[str, Any]:
        identity = "" if self._open is None else self._open["id"]
        return {"item_id": identity, "output_index": len(self._reply.items), "content_index": 0}


async def _events(work: Work, reply: _Reply, plan: ChatPlan) -> AsyncGenerator[bytes, None]:
    writer, answer = _Writer(reply), Answer()
    yield writer.event("response.created", response=reply.state("in_progress"))
    yield writer.event("response.in_progress", response=reply.state("in_progress"))
    try:
        async with aclosing(pieces(work.service, work.generations, 1, plan.reader, plan.most_calls)) as stream:
            async for piece in stream:
                answer.add(piece)
                for part in piece.parts:
                    for item in writer.part(part):
                        yield item
        if not answer.content and not answer.calls:
            for item in writer.close():
                yield item
            for item in writer.begin("message"):
                yield item
        for item in writer.close():
            yield item
        whole = reply.finished(answer)
        yield writer.event(f"response.{whole['status']}", response=whole)
    except Exception as error:
        failure = failure_of(error, reply.identity)
        told = {"code": failure.code or "server_error", "message": failure.message}
        yield writer.event("response.failed", response=reply.state("failed", error=told))
