"""GET /: a chat page in one file, which may load nothing and talk to nobody but this server."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse

if TYPE_CHECKING:
    from starlette.requests import Request


@cache
def page_text() -> str:
    """The page."""
    return files("localllm.server").joinpath("page.html").read_text(encoding="utf-8")


@cache
def policy() -> str:
    """The page's own script and style are allowed by their hashes; everything else is not."""

    def source(tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page_text(), re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        return " ".join(f"'sha256-{value}'" for value in hashes)

    return (
        f"default-src 'none'; script-src {source('script')}; style-src {source('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def page(request: Request) -> HTMLResponse:
    """The chat page."""
    headers = {
        "Content-Security-Policy": policy(),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(page_text(), headers=headers)
