"""The outermost layer under the endings that no socket can bring about."""

import asyncio
import io
import json
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.errors import RawHeaders
from proxy.middleware.access import AccessLayer
from proxy.middleware.clients import ClientAddress
from proxy.middleware.endpoint import HEALTHZ
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import RequestMetrics

PEER = ClientAddress()


class Watched:
    """The layer around an application, with what it recorded."""

    def __init__(self, app: ASGIApp, client_address: ClientAddress = PEER) -> None:
        self.stream = io.BytesIO()
        self.registry = CollectorRegistry()
        self.sent: list[Message] = []
        log = Log(self.stream, form="json", level="debug", now=lambda: datetime.now(UTC))
        metrics = RequestMetrics(self.registry)
        self._layer = AccessLayer(
            app,
            log=log,
            metrics=metrics,
            clock=lambda: 1.0,
            probe=HEALTHZ,
            client_address=client_address,
        )

    async def serve(self, **more: object) -> None:
        """One request."""
        scope: Scope = {"type": "http", "method": "GET", "headers": [], "client": None, **more}
        await self._layer(scope, self._receive, self._send)

    @property
    def outcome(self) -> object:
        """That of the one line; nothing is in flight any more."""
        assert self.registry.get_sample_value("bulwark_requests_in_flight") == 0
        (line,) = self.stream.getvalue().splitlines()
        return json.loads(line)["outcome"]

    async def _receive(self) -> Message:
        return {"type": "http.request"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


async def head(send: Send) -> None:
    """The head of an answer."""
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def test_a_whole_answer_is_ok() -> None:
    """And a message of another kind passes as it is; a Unix socket's client has a name."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await head(send)
        await send({"type": "http.response.debug"})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body"})

    watched = Watched(app)
    await watched.serve()
    assert watched.outcome == "ok"
    assert watched.sent[1] == {"type": "http.response.debug"}
    assert b'"client":"unix"' in watched.stream.getvalue()


@pytest.mark.parametrize("begun", [True, False])
async def test_a_layer_that_returns_without_a_whole_answer_is_a_bug(begun: bool) -> None:
    """It is recorded as one, not as a request that went well."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        if begun:
            await head(send)

    watched = Watched(app)
    await watched.serve()
    assert watched.outcome == "internal_error"


async def test_a_failure_of_the_error_layer_is_recorded_and_passes() -> None:
    """The server has to know."""

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise KeyError

    watched = Watched(app)
    with pytest.raises(KeyError):
        await watched.serve()
    assert watched.outcome == "internal_error"


async def test_a_task_that_is_cancelled_was_shut_down() -> None:
    """Nothing else cancels it from outside, and the cancellation goes on."""
    begun = asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    watched = Watched(app)
    task = asyncio.create_task(watched.serve())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert watched.outcome == "shutting_down"


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        pytest.param("10.0.0.1", "192.0.2.7", id="one that is trusted"),
        pytest.param("10.0.0.2", "10.0.0.2", id="another"),
    ],
)
async def test_the_client_is_where_a_trusted_proxy_says(peer: str, client: str) -> None:
    """In the context of the layers inside, and in the line."""
    seen = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(RequestContext.of(scope).client)
        await head(send)

    watched = Watched(app, ClientAddress(("10.0.0.1",), "X-Real-IP"))
    await watched.serve(client=(peer, 4711), headers=[(b"x-real-ip", b"192.0.2.7")])
    assert seen == [client]
    assert f'"client":"{client}"'.encode() in watched.stream.getvalue()


LIMIT = b"x-ratelimit-limit-requests"
LEFT = b"x-ratelimit-remaining-requests"


@pytest.mark.parametrize(
    ("rates", "own", "shown"),
    [
        pytest.param((), (), [], id="none"),
        pytest.param([(LIMIT, b"9"), (LEFT, b"8")], (), [b"9", b"8"], id="on any answer"),
        pytest.param([(LIMIT, b"9"), (LEFT, b"8")], [(LEFT, b"0")], [b"0", b"9"], id="once each"),
    ],
)
async def test_the_limits_are_told_on_every_answer(
    rates: RawHeaders, own: RawHeaders, shown: list[bytes]
) -> None:
    """A refusal that has figures of its own has the newer ones."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        RequestContext.of(scope).rate_fields = rates
        await send({"type": "http.response.start", "status": 429, "headers": list(own)})

    watched = Watched(app)
    await watched.serve()
    fields = watched.sent[0]["headers"]
    assert [value for name, value in fields if name.startswith(b"x-ratelimit-")] == shown
