"""POST /v1/completions: texts or token ids are continued; with `echo` and `logprobs` prompts are scored."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localllm.engine import NextTokenLogprobs
from localllm.engine import Request as EngineRequest

from .answers import Answer, collect, pieces, timings_object, usage_object
from .body import read_object
from .chat import Head, check_stream
from .chat_plan import constraint_of
from .decode import decode
from .errors import bad_request
from .failing import failure_of
from .fields import CompletionRequest
from .logprobs import LegacyLogprobs, prompt_logprobs
from .parts import PlainReader
from .prompts import Prompt, read_prompts
from .sampling import completion_sampling
from .stream import DONE, EventStream, JSONAnswer, event, while_connected
from .work import Work

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from localllm.events import TokenLogprobs

    from .service import Service

MOST_ANSWERS = 1024  # of one request


@dataclass(slots=True)
class _Plan:
    """One request's prompts; `scores` of them when they are echoed with log-probabilities."""

    prompts: list[Prompt]
    scores: list[NextTokenLogprobs]


async def completions(request: Request) -> Response:
    """Continue prompts."""
    service: Service = request.app.state.service
    body = await read_object(request, service.options.body)
    asked, warnings = decode(body, CompletionRequest)
    with_usage = check_stream(asked)
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise bad_request("best_of is supported only where it equals n", "best_of", "unsupported_parameter")
    client = request.client.host if request.client else ""

    async def answer() -> Response:
        work = await Work.begin(service, asked.model)
        response: Response | None = None
        try:
            plan = _Plan([], [])
            await work.submit(lambda: _requests(work, asked, plan, client))
            service.log_prompt(request.scope, body)
            if asked.stream:
                response = EventStream(_events(work, asked, plan, warnings, with_usage), work.close)
            else:
                count = len(plan.prompts) * (asked.n or 1)
                answers = await collect(pieces(service, work.generations, asked.n or 1, PlainReader), count)
                return JSONAnswer(_completion(work, answers, asked, plan, warnings))
        finally:
            if response is None:
                work.close()
        return response

    return await while_connected(request, answer())


def _requests(work: Work, asked: CompletionRequest, plan: _Plan, client: str) -> list[EngineRequest]:
    count = asked.n or 1
    parameters = completion_sampling(asked, work.served)
    constraint = constraint_of(work.served, asked, None)
    plan.prompts = read_prompts(asked.prompt, work.model.tokenizer, work.served.vocabulary_size)
    if len(plan.prompts) * count > MOST_ANSWERS:
        raise bad_request(f"more than {MOST_ANSWERS} answers are asked for", "n", "invalid_value")
    scored = bool(asked.echo) and asked.logprobs is not None
    if scored and count > 1:
        raise bad_request("echo with logprobs needs n 1", "n", "invalid_value")
    if scored:
        plan.scores = [NextTokenLogprobs(prompt.ids, top=asked.logprobs or 0) for prompt in plan.prompts]
    return [
        EngineRequest(
            ids=prompt.ids,
            parameters=parameters,
            n=count,
            priority=asked.priority or 0,
            client=client,
            deadline=asked.timeout,
            constraint=constraint,
            reader=plan.scores[number] if scored else None,
        )
        for number, prompt in enumerate(plan.prompts)
    ]


class _Echo:
    """The prompt's part of one answer, and the log-probabilities of all of it."""

    def __init__(self, work: Work, asked: CompletionRequest, plan: _Plan, index: int) -> None:
        number = index // (asked.n or 1)
        prompt = plan.prompts[number]
        self.text = prompt.text if asked.echo else ""
        self._wanted = asked.logprobs is not None
        self._legacy = LegacyLogprobs(work.model.tokenizer)
        self._prompt: list[TokenLogprobs] = []
        if plan.scores:
            self._prompt = prompt_logprobs(work.model.tokenizer, prompt.ids, plan.scores[number])

    def logprobs(self, tokens: list[TokenLogprobs], *, first: bool) -> dict[str, Any] | None:
        """The arrays of the next tokens, after those of the prompt when they are the first."""
        if not self._wanted:
            return None
        return self._legacy.part([*self._prompt, *tokens] if first else tokens)


def _completion(
    work: Work, answers: list[Answer], asked: CompletionRequest, plan: _Plan, warnings: list[str]
) -> dict[str, Any]:
    choices = []
    for index, answer in enumerate(answers):
        echo = _Echo(work, asked, plan, index)
        logprobs = echo.logprobs(answer.logprobs, first=True)
        text = echo.text + answer.content
        choices.append({"text": text, "index": index, "logprobs": logprobs, "finish_reason": answer.reason})
    head = Head.of(work, "cmpl-").fields("text_completion")
    reply = head | {"choices": choices, "usage": usage_object(answers, asked.n or 1)}
    reply["timings"] = timings_object(answers)
    return reply | ({"warnings": warnings} if warnings else {})


async def _events(
    work: Work, asked: CompletionRequest, plan: _Plan, warnings: list[str], with_usage: bool
) -> AsyncGenerator[bytes, None]:
    count = len(plan.prompts) * (asked.n or 1)
    head = Head.of(work, "cmpl-")
    base = head.fields("text_completion") | ({"usage": None} if with_usage else {})
    begin = {"warnings": warnings} if warnings else {}
    answers = [Answer() for _ in range(count)]
    echoes: dict[int, _Echo] = {}
    try:
        async with aclosing(pieces(work.service, work.generations, asked.n or 1, PlainReader)) as stream:
            async for piece in stream:
                answers[piece.index].add(piece)
                first = piece.index not in echoes
                if first:
                    echoes[piece.index] = _Echo(work, asked, plan, piece.index)
                echo = echoes[piece.index]
                text = (echo.text if first else "") + piece.text
                logprobs = echo.logprobs(list(piece.logprobs), first=first)
                choice = {"text": text, "index": piece.index, "logprobs": logprobs, "finish_reason": piece.reason}
                yield event(base | begin | {"choices": [choice]})
                begin = {}
        if with_usage:
            last = {"choices": [], "usage": usage_object(answers, asked.n or 1), "timings": timings_object(answers)}
            yield event(base | last)
    except Exception as error:
        yield event(failure_of(error, head.identity).body())
    yield DONE
