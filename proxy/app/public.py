"""What the internet sees."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import admin

_POLICY_VIOLATION = 1008  # RFC 6455 §7.4.1


class Public(FastAPI):
    """The public application: the chain answers every request, so that no route is needed.

    In front of FastAPI's own layers, of which each takes a turn with every message of every request:
    they would answer for what our error layer catches, time what our log times, and limit bodies that
    our intake limits.
    """

    def __init__(self, chain: ASGIApp) -> None:
        super().__init__(openapi_url=None, redirect_slashes=False, telemetry=admin.TELEMETRY_OFF)
        self._chain = chain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, and takes no WebSocket; the rest is FastAPI's."""
        if scope["type"] == "http":
            await self._chain(scope, receive, send)
        elif scope["type"] == "websocket":
            # Nothing here speaks it, and nothing that would read its messages checks them.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await super().__call__(scope, receive, send)
