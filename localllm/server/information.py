"""GET /v1/models, /v1/models/{id}, /health and /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from localllm import __version__

from .stream import JSONAnswer

if TYPE_CHECKING:
    from starlette.requests import Request

    from .pool import ModelSource
    from .service import Service


def _model(service: Service, source: ModelSource) -> dict[str, Any]:
    loaded = dict(service.pool.loaded()).get(source.name)
    return {
        "id": source.name,
        "object": "model",
        "created": source.created,
        "owned_by": "localllm",
        "state": service.pool.state(source.name),
        "context_length": None if loaded is None else loaded.context,
        "size_bytes": service.pool.bytes_of(source.name),
    }


async def models(request: Request) -> JSONAnswer:
    """What is served."""
    service: Service = request.app.state.service
    return JSONAnswer({"object": "list", "data": [_model(service, source) for source in service.pool.sources]})


async def model(request: Request) -> JSONAnswer:
    """One of them."""
    service: Service = request.app.state.service
    name = service.pool.find(request.path_params["name"])
    source = next(source for source in service.pool.sources if source.name == name)
    return JSONAnswer(_model(service, source))


async def health(request: Request) -> JSONAnswer:
    """200 when requests are answered, 503 while the first model loads, when it failed, and while the server ends."""
    service: Service = request.app.state.service
    states = {source.name: service.pool.state(source.name) for source in service.pool.sources}
    first = next(iter(states.values()))
    status = "draining" if service.draining else first if first in ("loading", "failed") else "ready"
    running = {name: loaded.describe() for name, loaded in service.pool.loaded()}
    reply = {
        "status": status,
        "version": __version__,
        "active_requests": service.active,
        "models": states,
        "executors": running,
    }
    return JSONAnswer(reply, 200 if status == "ready" else 503)


async def metrics(request: Request) -> Response:
    """For Prometheus."""
    service: Service = request.app.state.service
    return Response(service.metrics.render(service.pool), media_type=CONTENT_TYPE_LATEST)
