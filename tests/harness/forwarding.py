"""`proxy.forward` behind the real protocol and in front of a real upstream, and nothing in between.

What the layers between would do is done here in a few lines, so that what these tests see of
sockets, slots, memory and tasks is the doing of what they test.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.admission import rates
from proxy.admission.buffers import BufferBudget
from proxy.admission.estimates import Estimates
from proxy.admission.gate import Gate
from proxy.admission.slots import Slots
from proxy.context import RequestContext
from proxy.endpoints import ENDPOINTS, EndpointTable
from proxy.errors import ProxyError
from proxy.forward import Forward
from proxy.forward.dispatch import Timeouts, Upstream
from proxy.lifeline import Lifelines
from proxy.policy import Limits, Policy
from proxy.principal import Principal
from proxy.server.protocol import ProtocolLimits
from proxy.upstream import target, transport
from tests.harness.awake import soon
from tests.harness.client import TIMEOUT_SECONDS, RawClient, request_bytes
from tests.harness.running import WAY
from tests.harness.served import Served, serving

CHAT = "/v1/chat/completions"


def chat(content: str = "Hello?", **fields: object) -> bytes:
    """The body of a chat request to which the policy has nothing to add."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 5, **fields}).encode()


def post(
    body: bytes, target: str = CHAT, content_type: str = "application/json", **headers: str
) -> bytes:
    """A request with a JSON body."""
    return request_bytes("POST", target, {"Content-Type": content_type, **headers}, body)


async def until(holds: Callable[[], bool], within: float = TIMEOUT_SECONDS) -> None:
    """Returns as soon as it holds; for what has no event to wait for. See `soon` for the time."""
    await soon(holds, within)


@dataclass
class Options:
    """How a front is set up; the defaults are generous."""

    max_inflight: int = 32
    queue_size: int = 64
    queue_timeout_seconds: float = 30.0
    max_body_bytes: int = 2 * 1024 * 1024
    max_buffered_bytes: int = 64 * 1024 * 1024
    max_response_bytes: int = 64 * 1024 * 1024
    timeouts: Timeouts = field(default_factory=Timeouts)
    response_headers: frozenset[bytes] = frozenset()
    api_key: bytes | None = None
    redact: bool = False


class Front:
    """What listens, and what it holds.

    Attributes:
        contexts: What is known of each request, in order of arrival.
        errors: How those ended that did not end well.
    """

    def __init__(self, upstream_url: str, options: Options) -> None:
        at = target.parse(upstream_url)
        self.transport: Any = transport.build(at)
        self.slots = Slots(
            max_inflight=options.max_inflight,
            queue_size=options.queue_size,
            queue_timeout_seconds=options.queue_timeout_seconds,
            clock=time.monotonic,
        )
        self.buffers = BufferBudget(options.max_buffered_bytes)
        self.lifelines = Lifelines()
        self.contexts: list[RequestContext] = []
        self.errors: list[ProxyError] = []
        self.served: Served
        self._table = EndpointTable(ENDPOINTS)
        self._tasks_before: set[asyncio.Task[Any]] = set()
        self._forward = Forward(
            policy=Policy(Limits()),
            gate=Gate(
                rates=rates.build(clock=time.monotonic),
                slots=self.slots,
                estimates=Estimates(media_tokens=0),
            ),
            listing_slots=self.slots,
            buffers=self.buffers,
            lifelines=self.lifelines,
            upstream=Upstream(transport=self.transport, target=at, api_key=options.api_key),
            timeouts=options.timeouts,
            max_body_bytes=options.max_body_bytes,
            max_response_bytes=options.max_response_bytes,
            response_headers=options.response_headers,
            redact=options.redact,
            write_through=os.environ.get(WAY) != "pulled",
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The chain in short: a context, an endpoint, a principal, and errors made visible."""
        context = RequestContext(
            request_id=f"r{len(self.contexts)}",
            method=scope["method"],
            client="127.0.0.1",
            headers=list(scope["headers"]),
            started=0.0,
            endpoint=self._table.match(scope["method"], scope["raw_path"]).endpoint,
            principal=Principal("test", cache_salt="salt"),
        )
        context.attach(scope)
        self.contexts.append(context)

        async def noting_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
            await send(message)
            context.response_complete |= message.get("more_body", True) is False

        try:
            await self._forward(scope, receive, noting_send)
        except ProxyError as error:
            self.errors.append(error)
            context.outcome = error.reason
            if context.response_started:
                scope["extensions"]["bulwark.abort"]["abort"]()
            else:
                await _answer(error, context, send)

    async def connect(self, **options: Any) -> RawClient:
        """A new client."""
        return await self.served.connect(**options)

    async def ask(self, request: bytes) -> Any:
        """One request on a connection of its own, and its whole answer."""
        async with await self.connect() as client:
            await client.send(request)
            return await client.read_response()

    async def nothing_held(self) -> None:
        """Returns once every request has given back everything; raises TimeoutError if not."""
        self._tasks_before.add(asyncio.current_task())  # type: ignore[arg-type] # there is one
        await until(lambda: not self.lifelines.in_flight)
        assert (self.slots.in_flight, self.slots.queued, self.buffers.leased_bytes) == (0, 0, 0)
        await until(lambda: not self.open_upstream())
        await until(lambda: not self.extra_tasks())

    def open_upstream(self) -> list[object]:
        """The connections of the transport that are in use, or lost."""
        return list(self.transport.pool.busy)

    def note_tasks(self) -> None:
        """Remembers the tasks there are now, which are no request's."""
        self._tasks_before = set(asyncio.all_tasks())

    def extra_tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks that have come since, and that are not the harness's."""
        tasks = asyncio.all_tasks() - self._tasks_before
        return {task for task in tasks if "harness/upstream" not in _file(task)}


def _file(task: asyncio.Task[Any]) -> str:
    code = getattr(task.get_coro(), "cr_code", None)
    return "" if code is None else str(code.co_filename)


async def _answer(error: ProxyError, context: RequestContext, send: Any) -> None:
    body = error.body(context.dialect, context.request_id)
    fields = [(b"content-length", b"%d" % len(body)), *error.response_headers()]
    await send({"type": "http.response.start", "status": error.status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def forwarding(upstream_url: str, **options: Any) -> AsyncIterator[Front]:
    """A front before this upstream."""
    front = Front(upstream_url, Options(**options))
    async with serving(front, 120, ProtocolLimits()) as front.served:
        front.note_tasks()
        yield front
    await front.transport.aclose()
