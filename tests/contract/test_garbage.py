"""A failed request leaves nothing that only the collector of garbage can free.

It counts objects, not bytes: a cycle that holds a body of 8 MB is collected as late as one of 8 bytes,
and until then the body is outside of ``PROXY_MAX_BUFFERED_BYTES``.
"""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import httpx
import pytest

from proxy.context import RequestContext
from proxy.errors import UpstreamError
from proxy.lifeline import Lifeline
from proxy.middleware.errors import ErrorLayer
from proxy.names import Names
from proxy.upstream import target, transport
from proxy.upstream.transport.exchange import Exchange
from tests.harness.client import request_bytes
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import LAST_CHUNK, SSE_HEAD, End, Script, event, response

pytestmark = pytest.mark.both_ways

SOON = 0.05

HELD = (RequestContext, Lifeline, Exchange)


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Nothing is collected but by counting references."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> list[str]:
    """What is left of requests."""
    of_ours = [
        each.f_code.co_qualname
        for each in gc.get_objects()
        if isinstance(each, FrameType)
        and each.f_code.co_qualname.startswith(("Forward.", "Connector.", "Names.reach"))
    ]
    return of_ours + [type(each).__name__ for each in gc.get_objects() if isinstance(each, HELD)]


async def assert_nothing_held(before: list[str]) -> None:
    """Nothing is, after a few turns of the loop."""
    for _ in range(50):
        await asyncio.sleep(0)
    assert held() == before


@dataclass(frozen=True)
class Failure:
    """How a request fails."""

    outcome: str
    reply: Script
    body: bytes = CHAT_BODY
    leaves: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


BEGUN = [SSE_HEAD, event("a")]
HALF = response(b'{"id":', content_length=99)
NEVER: list[End] = [End.SILENCE]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(Failure("ok", [response(b"{}")]), id="it does not"),
        pytest.param(Failure("ok", [*BEGUN, LAST_CHUNK], STREAM_BODY), id="nor does a stream"),
        pytest.param(Failure("client_disconnected", NEVER, leaves=True), id="left while waiting"),
        pytest.param(
            Failure("client_disconnected", [*BEGUN, End.SILENCE], STREAM_BODY, leaves=True),
            id="left in mid-stream",
        ),
        pytest.param(
            Failure("client_disconnected", [HALF, End.SILENCE], leaves=True),
            id="left in the middle of an answer in one piece",
        ),
        pytest.param(Failure("upstream_error", [End.FIN]), id="cut before the head"),
        pytest.param(Failure("upstream_error", [End.RESET]), id="reset before the head"),
        pytest.param(Failure("upstream_error", [b"no HTTP\r\n\r\n"]), id="no HTTP"),
        pytest.param(
            Failure("upstream_error", [*BEGUN, End.FIN], STREAM_BODY), id="cut in mid-stream"
        ),
        pytest.param(
            Failure("upstream_error", [*BEGUN, b"no chunk\r\n"], STREAM_BODY), id="no chunk"
        ),
        pytest.param(Failure("upstream_error", [HALF, End.FIN]), id="cut in one piece"),
        pytest.param(
            Failure(
                "upstream_error",
                [*BEGUN, event("x" * 1024), End.SILENCE],
                STREAM_BODY,
                settings={"max_response_bytes": 1024},
            ),
            id="too long",
        ),
        pytest.param(
            Failure("upstream_timeout", NEVER, settings={"first_byte_timeout_seconds": SOON}),
            id="no first byte",
        ),
        pytest.param(
            Failure(
                "upstream_timeout",
                [*BEGUN, End.SILENCE],
                STREAM_BODY,
                settings={"idle_timeout_seconds": SOON},
            ),
            id="it does not go on",
        ),
        pytest.param(
            Failure("upstream_timeout", NEVER, settings={"total_timeout_seconds": SOON}),
            id="the whole took too long",
        ),
        pytest.param(
            Failure(
                "upstream_timeout",
                [*BEGUN, End.SILENCE],
                STREAM_BODY,
                settings={"total_timeout_seconds": SOON},
            ),
            id="the whole took too long in mid-stream",
        ),
        pytest.param(
            Failure(
                "upstream_timeout",
                NEVER,
                STREAM_BODY,
                settings={"total_timeout_seconds": 0.3, "sse_commit_seconds": SOON},
            ),
            id="the whole took too long and the stream was begun without it",
        ),
        pytest.param(Failure("invalid_json", [], b'{"model"'), id="no JSON"),
        pytest.param(
            Failure("context_length_exceeded", [], settings={"max_prompt_chars": 1}),
            id="against a cap",
        ),
    ],
)
async def test_a_request_that_fails(proxy: Launch, how: Failure) -> None:
    """Nothing of it is left once its line is written."""
    running = await proxy(**how.settings)
    running.upstream.reply = how.reply
    before = held()
    line = await failed(running, how)
    assert line["outcome"] == how.outcome
    await assert_nothing_held(before)


async def failed(running: Running, how: Failure) -> dict[str, Any]:
    """One request, and its line."""
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, how.body))
    if how.leaves:
        await running.upstream.request(0)
        if how.reply[0] is not End.SILENCE:  # type: ignore[index] # a list, here
            await client.read_head()
        client.close()
    line = await running.log.nth(0)
    client.close()
    await running.idle()
    return line


async def test_an_upstream_that_is_not_there(proxy: Launch, unused_port: int) -> None:
    """Who was refused holds nothing either."""
    running = await proxy(upstream_url=f"http://127.0.0.1:{unused_port}")
    before = held()
    line = await failed(running, Failure("upstream_unavailable", []))
    assert line["outcome"] == "upstream_unavailable"
    await assert_nothing_held(before)


@pytest.fixture
async def unused_port() -> AsyncIterator[int]:
    """Where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


async def test_a_name_that_nobody_knows() -> None:
    """The answer of the name server is kept, and what it was raised through is not."""

    def look_up(_: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    asked = transport.build(target.parse("http://upstream.test"), Names(look_up))
    before = held()
    request = httpx.Request("POST", "http://localhost", content=b"{}")
    for _ in range(3):
        with pytest.raises(httpx.ConnectError):
            await asked.handle_async_request(request)
    await assert_nothing_held(before)
    await asked.aclose()


class Body:
    """What a request holds."""


@pytest.mark.parametrize("error", [UpstreamError, ValueError])
async def test_what_it_held_is_let_go_before_its_client_is_told(error: type[Exception]) -> None:
    """A client may take long to read why, and nothing is counted for it by then."""
    held_: list[weakref.ref[Body]] = []
    context = RequestContext(
        request_id="id", method="POST", client="127.0.0.1", headers=[], started=0.0
    )
    scope: dict[str, Any] = {}
    context.attach(scope)

    def fail(body: Body) -> None:
        held_.append(weakref.ref(body))
        raise KeyError

    async def app(*_: object) -> None:
        try:
            fail(Body())
        except KeyError as exc:
            raise error("x") from exc

    async def send(_: object) -> None:
        assert held_[0]() is None

    await ErrorLayer(app)(scope, receiving, send)
    assert "KeyError" in context.fault


async def receiving() -> dict[str, Any]:
    """Nothing is received."""
    raise AssertionError


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(Failure("client_disconnected", NEVER, leaves=True), id="left"),
        pytest.param(Failure("upstream_error", [End.FIN]), id="cut"),
        pytest.param(
            Failure("upstream_timeout", NEVER, settings={"first_byte_timeout_seconds": SOON}),
            id="no first byte",
        ),
    ],
)
async def test_another_transport(proxy: Launch, how: Failure) -> None:
    """What we make of its errors leaves nothing either."""
    running = await proxy(transport=httpx.AsyncHTTPTransport(), **how.settings)
    running.upstream.reply = how.reply
    before = held()
    assert (await failed(running, how))["outcome"] == how.outcome
    await assert_nothing_held(before)


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_request_that_never_had_its_turn(proxy: Launch, *, leaves: bool) -> None:
    """Neither does one that left the queue, nor one that was in it for too long."""
    running = await proxy(max_inflight=1, queue_timeout_seconds=60 if leaves else SOON)
    running.upstream.reply = NEVER
    first = await running.connect()
    await first.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    await running.upstream.request(0)
    before = held()
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    await until(lambda: running.metric("bulwark_queue_length") == 1)
    if leaves:
        client.close()
    await running.log.nth(0)
    client.close()
    await assert_nothing_held(before)
