"""The application: routes, and the gate around them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from .chat import chat_completions
from .completions import completions
from .embeddings import embeddings
from .gate import Gate
from .information import health, metrics, model, models
from .openapi import openapi
from .page import page
from .responses import responses
from .service import Service
from .tokens import apply_template, detokenize, tokenize

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from .options import ServerOptions
    from .pool import ModelPool

ROUTES = [
    Route("/", page, methods=["GET"]),
    Route("/openapi.json", openapi, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/v1/models/{name:path}", model, methods=["GET"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/v1/responses", responses, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/apply-template", apply_template, methods=["POST"]),
]


def create_app(make_pool: Callable[[], ModelPool], options: ServerOptions) -> Starlette:
    """The ASGI application. Models begin to load when it starts and are freed when it ends."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        service.pool.start()
        yield
        await service.pool.close()

    service = Service(make_pool(), options)
    app = Starlette(routes=ROUTES, lifespan=life, exception_handlers={HTTPException: _pass_on})
    app.router.redirect_slashes = False
    app.state.service = service
    app.add_middleware(Gate, service=service)
    return app


async def _pass_on(request: Request, error: Exception) -> Response:
    """Errors of routing are answered by the gate, as all others."""
    raise error
