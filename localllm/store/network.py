"""Network options from the user's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .transfer import NetworkOptions

if TYPE_CHECKING:
    from localllm.settings import Settings


def network_options(settings: Settings) -> NetworkOptions:
    """How this user's settings say to reach servers."""
    return NetworkOptions(
        offline=settings.offline,
        connections=settings.connections,
        bytes_per_second=settings.bandwidth,
        hub_endpoint=settings.hub_endpoint,
        hub_token=settings.hub_token,
    )
