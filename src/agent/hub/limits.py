"""What an HTTP request may be: under which name, how large, how slow; and what every answer tells the browser."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 16 * 2**20
"""Bytes of a request's body: a delivery of results is 4 MB at most, unless one result alone is larger."""

BODY_TIMEOUT = 30.0
"""Seconds for a body to arrive; and one more for each so many bytes that have, so that a thin line carries a large
result, and nobody holds a request for nothing."""
BYTES_A_SECOND = 2**16

HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with none at all, browsers hide the origin of our own forms from us
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


DRAINED = 64 * 2**20
"""Bytes that are read to their end although they are too many, so that their sender gets to see the answer."""


async def read_body(request: Request, limit: int = MAX_BODY) -> bytes:
    """The body, of `limit` bytes at most. Raises HTTPException 408 and 413."""
    body = bytearray()
    size = 0
    # The rest of a body that we will not read would keep its sender busy: then we hang up.
    hang_up = {"connection": "close"}
    try:
        async with asyncio.timeout(BODY_TIMEOUT) as bound:
            latest = bound.when() or 0.0
            async for chunk in request.stream():
                size += len(chunk)
                bound.reschedule(latest + min(size, limit) / BYTES_A_SECOND)
                if size <= limit:
                    body += chunk
                elif size > DRAINED:
                    raise HTTPException(413, f"the request is larger than {limit} bytes; send less at once", hang_up)
    except TimeoutError:
        raise HTTPException(408, f"the request did not arrive in time, {BODY_TIMEOUT:g} s or more", hang_up) from None
    if size > limit:
        raise HTTPException(413, f"the request is larger than {limit} bytes; send less at once")
    return bytes(body)


class SecurityHeaders:
    """ASGI middleware, the outermost: nothing on our pages comes from elsewhere, and no other site may frame or read
    them; nor an answer to what went wrong."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class KnownHosts:
    """ASGI middleware: answers under IP addresses and the given names only, and to no page of another origin.

    A page elsewhere can have its own name point to this machine and then read what it likes (DNS rebinding). That takes
    a name: an address in the Host header was typed by someone who means this machine. Whatever a browser sends for a
    page of another origin names that origin, another port of this machine included; programs send none.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], origins: Collection[str] = ()) -> None:
        self._app = app
        self._names = {name.lower() for name in names}
        self._origins = {origin.lower() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not self._knows(host := headers.get("host", "")):
                text = "this hub does not answer to that name; use its address, or add the name to PHAZE_HUB_NAMES\n"
                await PlainTextResponse(text, 400)(scope, receive, send)
                return
            if not self._is_own(headers.getlist("origin"), host):
                text = "this hub takes no requests from pages of another origin\n"
                await PlainTextResponse(text, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_own(self, origins: Collection[str], host: str) -> bool:
        """Whether each is the address that was asked, or a proxy's name for it."""
        return {origin.partition("://")[2].lower() for origin in origins} <= {host.lower(), *self._origins}

    def _knows(self, header: str) -> bool:
        try:
            host = urlsplit(f"//{header}").hostname or ""
            if host in self._names and "@" not in header:
                return True
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return "@" not in header
