"""The operator's listener: alive, ready, metrics, status. Never reachable through the tunnel.

It needs no key, so it answers only to names that are its own: a web page that makes a browser
believe its name were ours (DNS rebinding) gets a 421, and no page is ever allowed to read along.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Literal, NoReturn

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
from proxy.upstream.monitor import Monitor

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
    """Whether requests can be served now: not draining, and the engine serves. Asks nobody.

    Args:
        monitor: Who looks at the engine.
        details: More for ``/readyz`` to tell: numbers and words, no secret, no address.
        wait_seconds: How long whoever asks before the first look has ended waits for it.
    """

    def __init__(
        self,
        monitor: Monitor,
        *,
        details: Callable[[], Mapping[str, object]] = dict,
        wait_seconds: float = 3.5,
    ) -> None:
        self._monitor = monitor
        self._details = details
        self._wait_seconds = wait_seconds
        self.draining = False

    def drain(self) -> None:
        """No new requests, from now on."""
        self.draining = True

    async def obstacle(self) -> ProxyError | None:
        """Why no request can be served now; None if one can."""
        if self.draining:
            return ShuttingDown(
                "This server is shutting down.", retry_after_seconds=_RETRY_AFTER_SECONDS
            )
        await self._monitor.looked(self._wait_seconds)
        if self._monitor.state.serves:
            return None
        return UpstreamUnavailable(
            "The model server does not answer yet, or no more.",
            retry_after_seconds=_RETRY_AFTER_SECONDS,
        )

    def told(self) -> dict[str, object]:
        """What ``/readyz`` tells, whether it is ready or not."""
        state: str = "draining" if self.draining else self._monitor.state
        upstream = {"state": self._monitor.state, "reason": self._monitor.reason}
        return {"status": state, "upstream": upstream, **self._details()}

    def engine(self) -> dict[str, object]:
        """What ``/status`` tells of the engine."""
        monitor, reading = self._monitor, self._monitor.reading
        seconds_ago = monitor.last_ok_seconds_ago
        told: dict[str, object] = {
            "state": monitor.state,
            "reason": monitor.reason,
            "since_seconds": round(monitor.since_seconds, 3),
            "last_ok_seconds_ago": None if seconds_ago is None else round(seconds_ago, 3),
            "restarts": monitor.restarts,
            "pool_tokens": monitor.pool_tokens,
            "ignored_pages": {reason: count for reason, count in monitor.ignored.items() if count},
        }
        names = ("engine", "engines", "running", "waiting", "kv_usage", "preemptions_total")
        return told | {name: getattr(reading, name, None) for name in names}


def budget(
    setting: int | Literal["auto", "off"], *, pool: int | None, limit: int | None, reserved: int
) -> dict[str, object]:
    """What ``/readyz`` tells of the KV budget, and why there is none.

    Args:
        setting: ``PROXY_KV_BUDGET_TOKENS``.
        pool: What the engine has shown.
        limit: What may be reserved.
        reserved: What is.
    """
    if setting == "off":
        return {"state": "off", "reason": "switched_off"}
    if limit is None:
        return {"state": "off", "reason": "no_pool_shown"}
    tokens = {"limit_tokens": limit, "reserved_tokens": reserved, "pool_tokens": pool}
    return {"state": "on", "reason": "" if setting == "auto" else "fixed", **tokens}


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
        return _as_response(obstacle, readiness.told())

    @app.api_route("/metrics", methods=_METHODS)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/status", methods=_METHODS)
    async def show_status() -> Response:
        told = {"draining": readiness.draining, "upstream": readiness.engine()}
        return JSONResponse({**status(), **told})

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


def _as_response(error: ProxyError | None, told: Mapping[str, object]) -> Response:
    if error is None:
        return JSONResponse(told)
    fields = {name.decode(): value.decode() for name, value in error.response_headers()}
    # The shape of this listener; it has no use for a request id.
    body = json.loads(error.body(Dialect.OPENAI, request_id=""))
    return JSONResponse({**told, **body}, error.status, fields)


async def _unrouted(_: Request, exc: Exception) -> NoReturn:
    """What the router says, as an error of ours."""
    if isinstance(exc, HTTPException) and exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = [(b"allow", ", ".join(_METHODS).encode())]
        raise MethodNotAllowed(f"Only {' and '.join(_METHODS)}.", headers=allow) from None
    raise NotFound(f"There is nothing here. This listener answers {', '.join(_PATHS)}.") from None
