"""POST /v1/chat/completions."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .answers import Answer, collect, new_id, now, pieces, timings_object, usage_object
from .body import read_object
from .chat_plan import plan_chat, unused_format
from .decode import decode
from .errors import bad_request
from .failing import failure_of
from .fields import ChatRequest
from .logprobs import chat_logprobs
from .parts import CallArguments, CallBegun, CallPart, TextPart
from .stream import DONE, EventStream, JSONAnswer, event, while_connected
from .work import Work

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from localllm.engine import Request as EngineRequest

    from .answers import Piece
    from .chat_plan import ChatPlan
    from .fields import Sampling
    from .service import Service


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one reply repeats."""

    identity: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def of(cls, work: Work, prefix: str) -> Head:
        """A new one."""
        return cls(new_id(prefix), now(), work.name, work.served.fingerprint)

    def fields(self, kind: str) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def check_stream(asked: Sampling) -> bool:
    """Whether a stream is wanted, and whether it shall end with the counts. APIError for options without a stream."""
    if asked.stream_options is not None and not asked.stream:
        raise bad_request("stream_options needs stream: true", "stream_options", "invalid_value")
    return bool(asked.stream_options and asked.stream_options.include_usage)


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    body = await read_object(request, service.options.body)
    asked, warnings = decode(body, ChatRequest)
    warnings += unused_format(asked)
    with_usage = check_stream(asked)
    client = request.client.host if request.client else ""

    async def answer() -> Response:
        work = await Work.begin(service, asked.model)
        response: Response | None = None
        try:
            plan = await submit_chat(work, asked, body["messages"], client)
            service.log_prompt(request.scope, body)
            if asked.stream:
                response = EventStream(_events(work, asked, plan, warnings, with_usage), work.close)
            else:
                stream = pieces(service, work.generations, asked.n or 1, plan.reader, plan.most_calls)
                answers = await collect(stream, asked.n or 1)
                return JSONAnswer(_completion(Head.of(work, "chatcmpl-"), answers, asked, warnings))
        finally:
            if response is None:
                work.close()
        return response

    return await while_connected(request, answer())


async def submit_chat(work: Work, asked: ChatRequest, messages: list[dict[str, Any]], client: str) -> ChatPlan:
    """Plan a conversation's answer aside and hand it to the engine."""
    made: list[ChatPlan] = []

    def make() -> list[EngineRequest]:
        made.append(plan_chat(work.served, asked, messages, client))
        return [made[0].request]

    await work.submit(make)
    return made[0]


def _completion(head: Head, answers: list[Answer], asked: ChatRequest, warnings: list[str]) -> dict[str, Any]:
    choices = []
    for index, answer in enumerate(answers):
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [call_object(call) for call in answer.calls]
        logprobs = chat_logprobs(answer.logprobs) if asked.logprobs else None
        choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.reason})
    reply = head.fields("chat.completion") | {"choices": choices, "usage": usage_object(answers, len(answers))}
    reply["timings"] = timings_object(answers)
    return reply | ({"warnings": warnings} if warnings else {})


def call_object(call: CallPart) -> dict[str, Any]:
    """A call, whole."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": new_id("call_")[:29], "type": "function", "function": function}


async def _events(
    work: Work, asked: ChatRequest, plan: ChatPlan, warnings: list[str], with_usage: bool
) -> AsyncGenerator[bytes, None]:
    head = Head.of(work, "chatcmpl-")
    count = asked.n or 1
    answers = [Answer() for _ in range(count)]
    base = head.fields("chat.completion.chunk") | ({"usage": None} if with_usage else {})

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return event(base | {"choices": [choice]})

    try:
        for index in range(count):
            begin = base | ({"warnings": warnings} if warnings and index == 0 else {})
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield event(begin | {"choices": [choice]})
        stream = pieces(work.service, work.generations, count, plan.reader, plan.most_calls)
        async with aclosing(stream):
            async for piece in stream:
                calls = len(answers[piece.index].calls)
                answers[piece.index].add(piece)
                logprobs = chat_logprobs(piece.logprobs) if asked.logprobs and piece.logprobs else None
                for delta in _deltas(piece, calls, bool(logprobs)):
                    yield chunk(piece.index, delta, logprobs)
                    logprobs = None
                if piece.finished is not None:
                    yield chunk(piece.index, {}, None, piece.reason)
        if with_usage:
            last = {"choices": [], "usage": usage_object(answers, count), "timings": timings_object(answers)}
            yield event(base | last)
    except Exception as error:
        yield event(failure_of(error, head.identity).body())
    yield DONE


def _deltas(piece: Piece, calls: int, with_logprobs: bool) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for part in piece.parts:
        if isinstance(part, CallPart | CallBegun):
            deltas.append({"tool_calls": [{"index": calls} | call_object(CallPart(part.name, ""))]})
            calls += 1
        if isinstance(part, CallPart | CallArguments):
            text = part.text if isinstance(part, CallArguments) else part.arguments
            deltas.append({"tool_calls": [{"index": calls - 1, "function": {"arguments": text}}]})
        elif isinstance(part, TextPart):
            deltas.append({"reasoning_content" if part.kind == "reasoning" else "content": part.text})
    return deltas or ([{"content": ""}] if with_logprobs else [])
