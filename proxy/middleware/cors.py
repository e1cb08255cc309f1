"""Says which pages may read the answer, and answers a browser that asks beforehand.

Before auth, because a preflight carries no key. One that is not of an allowed page is a request like
any other: nothing tells a stranger's page more than a stranger.
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.cors import Cors
from proxy.errors import RawHeaders


class CorsLayer:
    """Fills ``page_fields``, which ``access`` writes into the head of every answer."""

    def __init__(self, app: ASGIApp, *, cors: Cors) -> None:
        self._app = app
        self._cors = cors

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Passes every request on but the preflights of allowed pages; no coroutine of its own."""
        context = RequestContext.of(scope)
        context.page_fields = self._cors.fields(context.headers)
        if context.method == "OPTIONS":
            allowed = self._cors.preflight(context.headers)
            if allowed is not None:
                return _allow(allowed, send)
        return self._app(scope, receive, send)


async def _allow(fields: RawHeaders, send: Send) -> None:
    headers = [*fields, (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
