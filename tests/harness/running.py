"""The whole proxy on real sockets, with everything that it says within a test's reach."""

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from prometheus_client import CollectorRegistry

from proxy import app
from proxy.config import load
from tests.harness import upstream as upstreams
from tests.harness.client import TIMEOUT_SECONDS, RawClient, RawResponse
from tests.harness.quiet import QuietEngine
from tests.harness.upstream import Upstream

WAY = "BULWARK_WAY"
"""The variable that says which way streams take, ``pushed`` or ``pulled``, where a test does not."""

KEY = "sk-test-" + "k" * 40
"""The key that a proxy has unless its settings say otherwise; called ``env-1``."""

BEARER = {"Authorization": f"Bearer {KEY}"}
JSON = {"Content-Type": "application/json"}

CHAT = "/v1/chat/completions"
CHAT_BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":16}'
STREAM_BODY = b'{"stream":true,' + CHAT_BODY[1:]

_QUIET = QuietEngine()

Fields = Mapping[str, str] | Iterable[tuple[str, str]]


class Lines(io.BytesIO):
    """What the log has written, and a way to wait for more."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def write(self, data: Any, /) -> int:
        """A line, from the log."""
        self._more.set()
        self._more = asyncio.Event()
        return super().write(data)

    @property
    def text(self) -> str:
        """All of it."""
        return self.getvalue().decode()

    def requests(self) -> list[dict[str, Any]]:
        """The lines about requests."""
        lines = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if line["event"] == "request"]

    async def until(self, holds: Callable[[], bool], within: float = TIMEOUT_SECONDS) -> None:
        """Returns once it holds, looking whenever a line was written."""
        async with asyncio.timeout(within):
            while not holds():
                await self._more.wait()

    async def nth(self, index: int) -> dict[str, Any]:
        """The line about the request that ended as this one, from 0."""
        await self.until(lambda: len(self.requests()) > index)
        return self.requests()[index]

    async def of(self, response: RawResponse) -> dict[str, Any]:
        """The line about the request with this response, which may be written a moment later."""
        request_id = (response.header(b"x-request-id") or b"").decode()

        def found() -> list[dict[str, Any]]:
            return [line for line in self.requests() if line.get("request_id") == request_id]

        await self.until(lambda: bool(found()))
        (line,) = found()
        return line


@dataclass(slots=True)
class Running:
    """A proxy that serves.

    Attributes:
        log: What it wrote to its log.
        registry: Its metrics.
        upstream: What it forwards to, and what that received.
        stop: Begins its drain.
        hurry: Ends the drain's time.
        served: Becomes its exit status.
        client_timeout_seconds: How long a read of a client made here may wait.
    """

    bulwark: app.Bulwark
    port: int
    admin_port: int
    log: Lines
    registry: CollectorRegistry
    upstream: Upstream
    stop: asyncio.Event
    hurry: asyncio.Event
    served: asyncio.Task[int]
    client_timeout_seconds: float = TIMEOUT_SECONDS
    _clients: list[RawClient] = field(default_factory=list)

    async def connect(self, port: int | None = None, **options: Any) -> RawClient:
        """A new client of the public listener, closed at the end."""
        options = {"timeout": self.client_timeout_seconds, **options}
        client = await RawClient.open("127.0.0.1", port or self.port, **options)
        self._clients.append(client)
        return client

    async def ask(
        self, method: str, target: str, headers: Fields = (), body: bytes = b""
    ) -> RawResponse:
        """One request on a connection of its own; no key and no content type unless given."""
        client = await self.connect()
        return await client.request(method, target, headers, body)

    async def chat(self, body: bytes = CHAT_BODY, /, **headers: str) -> RawResponse:
        """One chat with the key; ``User_Agent="x"`` is a field of that name."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", CHAT, {**BEARER, **JSON, **fields}, body)

    async def ask_admin(self, method: str, target: str, headers: Fields = ()) -> RawResponse:
        """One request to the admin listener, under its own name unless told otherwise."""
        own = {"Host": f"127.0.0.1:{self.admin_port}"}
        client = await self.connect(self.admin_port)
        return await client.request(method, target, headers or own)

    def metric(self, name: str, **labels: str) -> float:
        """One sample; 0 where the series does not exist."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def idle(self) -> None:
        """Returns once no request is in flight; its line comes after it is counted out."""
        await self.log.until(lambda: self.metric("bulwark_requests_in_flight") == 0)

    async def assert_refused(self, response: RawResponse, status: int, code: str) -> None:
        """The four things: what the client and the upstream got, the line, the count."""
        error = response.json()["error"]
        assert (response.status, error.get("code", code)) == (status, code)
        assert response.complete
        assert response.header(b"content-type") == b"application/json"
        assert self.upstream.requests == []
        line = await self.log.of(response)
        assert (line["status"], line["outcome"], line["level"]) == (status, code, "warning")
        self.assert_counted(line)

    def assert_counted(self, line: dict[str, Any]) -> None:
        """The request of this line, which must be the only one of its kind, is in the metrics."""
        endpoint, status, outcome = line.get("endpoint") or "none", line["status"], line["outcome"]
        labels = {"endpoint": endpoint, "status": str(status), "outcome": outcome}
        assert self.metric("bulwark_requests_total", **labels) == 1
        refusals = self.metric("bulwark_refusals_total", endpoint=endpoint, reason=outcome)
        assert refusals == (line["level"] == "warning")

    def close_clients(self) -> None:
        """Ends every connection that was made here."""
        for client in self._clients:
            client.close()


class Launch(Protocol):
    """What the fixture ``proxy`` is."""

    async def __call__(
        self,
        *,
        clocks: app.Clocks | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        monitor_transport: httpx.AsyncBaseTransport | None = _QUIET,
        **settings: object,
    ) -> Running:
        """Starts one; each setting is ``PROXY_`` and its name in capitals, None leaves it out.

        Its monitor asks somebody else about the upstream's health, unless that is None too.
        """
        ...


@contextlib.asynccontextmanager
async def launch(
    ending: list[asyncio.Task[int]],
    *,
    clocks: app.Clocks | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    monitor_transport: httpx.AsyncBaseTransport | None = _QUIET,
    **settings: object,
) -> AsyncIterator[Running]:
    """A proxy in front of a recording upstream, from settings to sockets as in production.

    Its end takes uvicorn 0.4 s, most of it asleep, so it is only begun here. Whoever owns the loop
    waits for the tasks in ``ending``.
    """
    clocks = clocks or app.Clocks()
    async with upstreams.serve() as upstream:
        usual = {"upstream_url": upstream.url, "api_keys": KEY, "log_level": "debug"}
        usual |= {"write_through": str(os.environ.get(WAY) != "pulled")}
        given = {**usual, "port": 0, "admin_port": 0, **settings}
        config = load({f"PROXY_{k.upper()}": str(v) for k, v in given.items() if v is not None})
        log, registry = Lines(), CollectorRegistry()
        bulwark = app.build(
            config,
            app.key_store(config, clocks.now),
            registry=registry,
            log_stream=log,
            clocks=clocks,
            transport=transport,
            monitor_transport=monitor_transport,
        )
        public, admin = app.bind(config)
        ready, stop, hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()
        serving = bulwark.serve(public, admin, on_ready=ready.set, stop=stop, hurry=hurry)
        running = Running(
            bulwark=bulwark,
            port=public.getsockname()[1],
            admin_port=admin.getsockname()[1],
            log=log,
            registry=registry,
            upstream=upstream,
            stop=stop,
            hurry=hurry,
            served=asyncio.create_task(serving),
        )
        await ready.wait()
        try:
            yield running
        finally:
            running.close_clients()
            stop.set()
            hurry.set()
            ending.append(running.served)
