"""Finds the endpoint of a request; answers none itself but the probe of liveness.

What the table says against a request waits for authentication: whoever has no key learns nothing
about which paths exist.
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.endpoints import Endpoint, EndpointTable
from proxy.errors import MethodNotAllowed

HEALTHZ = Endpoint("healthz", "GET", b"/healthz")
"""Whether this process serves. Not in the table: it needs no key and never reaches the upstream."""

_METHODS = ("GET", "HEAD")
_BODY = b'{"status":"ok"}'


class EndpointLayer:
    """Fills ``endpoint`` and ``route_refusal``."""

    def __init__(self, app: ASGIApp, *, table: EndpointTable) -> None:
        self._app = app
        self._table = table

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Passes every request on but the probe.

        Nothing here waits, or looks at how a request ends: so it is no coroutine, and takes no part in
        each turn of what it has called.
        """
        context = RequestContext.of(scope)
        # Never ``path``: it is decoded, and /v1%2Fmodels is not /v1/models.
        raw_path: bytes = scope["raw_path"]
        if raw_path == HEALTHZ.path:
            context.endpoint = HEALTHZ
            return _alive(context.method, send)
        route = self._table.match(context.method, raw_path)
        context.endpoint, context.route_refusal = route.endpoint, route.refusal
        return self._app(scope, receive, send)


async def _alive(method: str, send: Send) -> None:
    if method not in _METHODS:
        allow = [(b"allow", ", ".join(_METHODS).encode())]
        raise MethodNotAllowed("/healthz answers GET and HEAD only.", headers=allow)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_BODY)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else _BODY})
