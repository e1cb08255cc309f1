"""The operator's listener: alive, ready, metrics, status. Never reachable through the tunnel.

It needs no key, so it answers only to names that are its own: a web page that makes a browser
believe its name were ours (DNS rebinding) gets a 421, and no page is ever allowed to read along.
"""

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NoReturn

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.endpoints import Endpoint
from proxy.errors import (
    Dialect,
    MethodNotAllowed,
    MisdirectedRequest,
    NotFound,
    ProxyError,
    ShuttingDown,
    UpstreamUnavailable,
)

ADMIN = Endpoint("admin", "GET", b"")
"""What stands for all of this listener in the log."""

TELEMETRY_OFF = TelemetryConfig(
    tracing=False, metrics=False, logs=False, operation_spans=False, auto_configure=False
)
"""FastAPI's own telemetry is on as soon as a provider exists, and records query strings."""

_PATHS = ("/healthz", "/readyz", "/metrics", "/status")
_METHODS = ["GET", "HEAD"]
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?")
_RETRY_AFTER_SECONDS = 5


class Readiness:
    """Whether requests can be served now: not draining, and the upstream answers.

    Args:
        probe: Asks the upstream; must neither raise nor take for ever.
        clock: Monotonic seconds.
        cache_seconds: How long an answer of the probe stands, so that whoever asks often does not
            make us ask the upstream as often.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[bool]],
        *,
        clock: Callable[[], float],
        cache_seconds: float = 1.0,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._answer = False
        self._stale_from = clock()
        self._asking = asyncio.Lock()
        self.draining = False

    def drain(self) -> None:
        """No new requests, from now on."""
        self.draining = True

    async def obstacle(self) -> ProxyError | None:
        """Why no request can be served now; None if one can."""
        if self.draining:
            return ShuttingDown("This server is shutting down.")
        if await self.upstream_answers():
            return None
        return UpstreamUnavailable(
            "The model server does not answer yet, or no more.",
            retry_after_seconds=_RETRY_AFTER_SECONDS,
        )

    async def upstream_answers(self) -> bool:
        """What the probe says, or said a moment ago. Asked once, however many want to know."""
        async with self._asking:
            if self._clock() >= self._stale_from:
                self._answer = await self._probe()
                self._stale_from = self._clock() + self._cache_seconds
            return self._answer


def build(
    *,
    hosts: frozenset[str],
    readiness: Readiness,
    registry: CollectorRegistry,
    status: Callable[[], Mapping[str, object]],
) -> FastAPI:
    """The control plane, whose errors are for ``middleware.errors`` to answer.

    Args:
        hosts: More names that it answers to, lowercase, besides those of the loopback.
        readiness: What ``/readyz`` says.
        registry: What ``/metrics`` shows.
        status: What ``/status`` shows: numbers and words, no secret.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False, telemetry=TELEMETRY_OFF)
    app.add_middleware(_HostLayer, hosts=hosts)
    app.add_exception_handler(HTTPException, _unrouted)

    @app.api_route("/healthz", methods=_METHODS)
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/readyz", methods=_METHODS)
    async def readyz() -> Response:
        obstacle = await readiness.obstacle()
        # Answered, not raised: it is what was asked for, and no line a probe while a model loads.
        return JSONResponse({"status": "ready"}) if obstacle is None else _as_response(obstacle)

    @app.api_route("/metrics", methods=_METHODS)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/status", methods=_METHODS)
    async def show_status() -> Response:
        upstream = "ready" if await readiness.upstream_answers() else "unavailable"
        return JSONResponse({**status(), "draining": readiness.draining, "upstream": upstream})

    return app


class _HostLayer:
    """Answers to its own names only."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        context.endpoint = ADMIN
        if not self._is_ours([value for name, value in context.headers if name == b"host"]):
            raise MisdirectedRequest(
                "This listener does not answer to that Host (PROXY_ADMIN_HOSTS)."
            )
        await self._app(scope, receive, send)

    def _is_ours(self, values: list[bytes]) -> bool:
        match = _HOST.fullmatch(values[0].decode("latin-1").lower()) if len(values) == 1 else None
        if match is None:
            return False
        host = match["v6"] or match["name"]
        return host == "localhost" or host in self._hosts or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _as_response(error: ProxyError) -> Response:
    fields = {name.decode(): value.decode() for name, value in error.response_headers()}
    # The shape of this listener; it has no use for a request id.
    body = error.body(Dialect.OPENAI, request_id="")
    return Response(body, error.status, fields, media_type="application/json")


async def _unrouted(_: Request, exc: Exception) -> NoReturn:
    """What the router says, as an error of ours."""
    if isinstance(exc, HTTPException) and exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = [(b"allow", ", ".join(_METHODS).encode())]
        raise MethodNotAllowed(f"Only {' and '.join(_METHODS)}.", headers=allow) from None
    raise NotFound(f"There is nothing here. This listener answers {', '.join(_PATHS)}.") from None
