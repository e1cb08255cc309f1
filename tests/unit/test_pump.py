"""A body on its way, pulled or pushed: the same bytes, the same bounds, the same ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio
import httpx
import pytest

from proxy.endpoints import BodyKind
from proxy.errors import UpstreamError, UpstreamTimeout
from proxy.lifeline import Deadline, Lifelines
from proxy.pipe import PIPE, Flow, Sink
from proxy.pump import Body
from proxy.telemetry.usage import UsageMeter

IDLE = Deadline(3600.0, lambda: UpstreamTimeout("PROXY_IDLE_TIMEOUT_SECONDS"))
WAYS = ["pulled", "pushed", "pulled of a transport that can push"]


class Upstream(httpx.AsyncByteStream):
    """A body in these chunks, and then its end or an error."""

    def __init__(self, chunks: list[bytes], error: Exception | None = None) -> None:
        self._chunks = chunks
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            await asyncio.sleep(0)
            yield chunk
        if self._error is not None:
            raise self._error

    async def pipe(self, sink: Sink, flow: Flow) -> None:
        """The same, pushed."""
        async for chunk in self:
            sink(chunk)


async def passed(way: str, body: Body, upstream: Upstream, client: list[bytes]) -> None:
    """Has the body passed on to a client."""

    async def write(chunk: bytes) -> None:
        await asyncio.sleep(0)
        client.append(chunk)

    if way == "pushed":
        await body.push(upstream.pipe, Flow(), client.append)
        return
    extensions = {PIPE: upstream.pipe} if way != "pulled" else {}
    response = httpx.Response(200, stream=upstream, extensions=extensions)
    with Lifelines().hold(IDLE) as lifeline:
        await body.pull(response, write, lifeline)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("announced", [None, 6])
async def test_a_whole_body(way: str, announced: int | None) -> None:
    """Each chunk by itself, in its order; up to its bound and not a byte less."""
    client: list[bytes] = []
    body = Body(announced, 6, IDLE)
    await passed(way, body, Upstream([b"a", b"bc", b"def"]), client)
    assert (client, body.passed) == ([b"a", b"bc", b"def"], 6)


@dataclass(frozen=True)
class Broken:
    """A body of six bytes that is not whole, or not allowed."""

    says: str
    announced: int | None = None
    most: int = 9
    error: Exception | None = None
    passes: int = 6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Broken("longer than 5 bytes", most=5, passes=3), id="too long by one"),
        pytest.param(Broken("length it announced", announced=7), id="too short by one"),
        pytest.param(Broken("length it announced", announced=5), id="longer than announced"),
        pytest.param(Broken("broke", error=httpx.ReadError("reset")), id="it breaks off"),
        pytest.param(Broken("valid HTTP", error=httpx.RemoteProtocolError("x")), id="no HTTP"),
    ],
)
async def test_a_body_that_is_not_whole(way: str, case: Broken) -> None:
    """What has come of it is passed on, and then there is an error in place of an end."""
    client: list[bytes] = []
    body = Body(case.announced, case.most, IDLE)
    with pytest.raises(UpstreamError, match=case.says):
        await passed(way, body, Upstream([b"a", b"bc", b"def"], case.error), client)
    assert len(b"".join(client)) == case.passes


@pytest.mark.parametrize(
    ("way", "says"),
    [
        pytest.param("pushed", "PROXY_IDLE_TIMEOUT_SECONDS", id="ours, pushed"),
        pytest.param(WAYS[2], "PROXY_IDLE_TIMEOUT_SECONDS", id="ours, pulled"),
        pytest.param("pulled", "the transport's own limit", id="another's, which we have not set"),
    ],
)
async def test_whose_time_is_up(way: str, says: str) -> None:
    """A transport that keeps our time has kept our setting."""
    with pytest.raises(UpstreamTimeout, match=says):
        await passed(way, Body(None, 9, IDLE), Upstream([b"a"], httpx.ReadTimeout("late")), [])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [None, httpx.ReadError("reset")])
async def test_what_the_meter_holds_back(way: str, error: Exception | None) -> None:
    """The end of a choice waits for what comes behind it; where nothing comes, it is passed on."""
    meter = UsageMeter(BodyKind.CHAT, streamed=True, take_out=True, output_tokens=9)
    meter.asked()
    meter.begin(200, events=True)
    last = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    client: list[bytes] = []
    with contextlib.nullcontext() if error is None else pytest.raises(UpstreamError):
        await passed(way, Body(None, 999, IDLE, meter), Upstream([last], error), client)
    assert b"".join(client) == last


class Source:
    """Something that is read from, and may be told not to."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause(self) -> None:
        """It is told not to."""
        self.told.append("pause")

    def resume(self) -> None:
        """It is told to."""
        self.told.append("resume")


@pytest.mark.parametrize(
    ("act", "told"),
    [
        pytest.param(lambda flow, it: flow.attach(it), [], id="there is room"),
        pytest.param(
            lambda flow, it: (flow.pause(), flow.attach(it)), ["pause"], id="none at first"
        ),
        pytest.param(
            lambda flow, it: (flow.attach(it), flow.pause(), flow.resume()),
            ["pause", "resume"],
            id="none for a while",
        ),
        pytest.param(
            lambda flow, it: (flow.attach(it), flow.detach(), flow.pause(), flow.resume()),
            [],
            id="it is somebody else's by then",
        ),
    ],
)
def test_the_flow(act: Callable[[Flow, Source], object], told: list[str]) -> None:
    """What is read from hears whether there is room, from when it is attached until it is not."""
    source = Source()
    act(Flow(), source)
    assert source.told == told


async def test_a_slow_client_is_not_a_silent_upstream() -> None:
    """Where it is ours to keep, time counts while the upstream has something to say, and no other."""
    idle = Deadline(0.05, lambda: UpstreamTimeout("PROXY_IDLE_TIMEOUT_SECONDS"))
    loop = asyncio.get_running_loop()
    meter = UsageMeter(BodyKind.CHAT, streamed=True, take_out=True, output_tokens=9)
    meter.asked()
    meter.begin(200, events=True)
    last = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    client: list[bytes] = []

    async def write(chunk: bytes) -> None:
        taken = loop.create_future()
        loop.call_later(3 * idle.seconds, taken.set_result, None)
        await taken
        client.append(chunk)

    response = httpx.Response(200, stream=Upstream([b": a\n\n", b": b\n\n", last]))
    with Lifelines().hold(IDLE) as lifeline:
        await Body(None, 999, idle, meter).pull(response, write, lifeline)
    assert client == [b": a\n\n", b": b\n\n", last]


async def test_a_silent_upstream_behind_a_slow_client() -> None:
    """Its time counts again once the client has taken what there was."""
    idle = Deadline(0.05, lambda: UpstreamTimeout("PROXY_IDLE_TIMEOUT_SECONDS"))

    class Silent(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"a"
            await asyncio.get_running_loop().create_future()

    async def write(_: bytes) -> None:
        await asyncio.sleep(0)

    with pytest.raises(UpstreamTimeout), Lifelines().hold(IDLE, anyio.CancelScope()) as lifeline:
        await Body(None, 9, idle).pull(httpx.Response(200, stream=Silent()), write, lifeline)
