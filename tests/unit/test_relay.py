"""What may cross from the upstream, and how an answer ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from proxy.context import RequestContext
from proxy.endpoints import BodyKind
from proxy.errors import (
    ClientDisconnected,
    ProxyError,
    RawHeaders,
    UpstreamError,
    UpstreamTimeout,
)
from proxy.lifeline import Deadline, Lifelines
from proxy.relay import Relay
from proxy.telemetry.usage import Usage, UsageMeter
from proxy.upstream.heads import announced_length, check_head
from tests.harness import usages

LONG = Deadline(3600.0, lambda: UpstreamTimeout("late"))
JSON = (b"Content-Type", b"application/json")


@pytest.mark.parametrize(
    "status", [200, 204, 207, 299, 400, 404, 406, 408, 422, 429, 499, 500, 503, 599]
)
def test_an_answer_crosses(status: int) -> None:
    """Successes and the upstream's own errors are the client's to read."""
    check_head(status, [JSON, (b"Content-Encoding", b"identity")])


@pytest.mark.parametrize(
    ("status", "fields", "complaint"),
    [
        pytest.param(101, [JSON], "status 101", id="another protocol"),
        pytest.param(199, [JSON], "status 199", id="an interim status at the end"),
        pytest.param(600, [JSON], "status 600", id="no status of HTTP"),
        pytest.param(301, [JSON], "redirect", id="a permanent redirect"),
        pytest.param(
            304, [JSON], "redirect", id="not modified: nothing was asked for that allows it"
        ),
        pytest.param(307, [JSON], "redirect", id="a redirect that repeats the body"),
        pytest.param(401, [JSON], "PROXY_UPSTREAM_API_KEY", id="our key is missing"),
        pytest.param(403, [JSON], "PROXY_UPSTREAM_API_KEY", id="our key is wrong"),
        pytest.param(205, [JSON], "not for you", id="an order to forget a form"),
        pytest.param(206, [JSON], "not for you", id="a part of an answer"),
        pytest.param(407, [JSON], "not for you", id="the credentials of a proxy"),
        pytest.param(421, [JSON], "not for you", id="our way to it is wrong"),
        pytest.param(426, [JSON], "not for you", id="it wants another protocol of us"),
        pytest.param(200, [(b"CONTENT-encoding", b"gzip")], "compressed", id="gzip in any case"),
        pytest.param(400, [(b"content-encoding", b"br")], "compressed", id="a compressed error"),
        pytest.param(
            200,
            [(b"content-encoding", b"identity"), (b"content-encoding", b"gzip")],
            "compressed",
            id="hidden behind another",
        ),
    ],
)
def test_an_answer_that_must_not_cross(status: int, fields: RawHeaders, complaint: str) -> None:
    """Each is told apart by its message."""
    with pytest.raises(UpstreamError, match=complaint):
        check_head(status, fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param([JSON], None, id="none"),
        pytest.param([(b"transfer-encoding", b"chunked")], None, id="chunked"),
        pytest.param([(b"Content-Length", b"0")], 0, id="nothing"),
        pytest.param([(b"content-length", b"123")], 123, id="a length"),
    ],
)
def test_announced_length(fields: RawHeaders, expected: int | None) -> None:
    """The length is what the one field says."""
    assert announced_length(fields) == expected


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            [(b"content-length", b"1"), (b"Transfer-Encoding", b"chunked")], id="two framings"
        ),
        pytest.param([(b"content-length", b"1"), (b"content-length", b"1")], id="twice"),
        pytest.param([(b"content-length", b"1, 1")], id="twice in one"),
        pytest.param([(b"content-length", b"-1")], id="negative"),
        pytest.param([(b"content-length", b"+1")], id="signed"),
        pytest.param([(b"content-length", b"")], id="empty"),
        pytest.param([(b"content-length", b"0x10")], id="hexadecimal"),
        pytest.param([(b"content-length", b"9" * 5000)], id="more digits than can be read"),
    ],
)
def test_an_ambiguous_length(fields: RawHeaders) -> None:
    """What two readers could read differently is not passed on."""
    with pytest.raises(UpstreamError, match="more than one way"):
        announced_length(fields)


class Body(httpx.AsyncByteStream):
    """A response's body that a test writes by hand, as some transport might deliver it."""

    def __init__(self, *steps: bytes | Exception | asyncio.Event) -> None:
        self._steps = steps
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                yield step

    async def aclose(self) -> None:
        """Takes a moment."""
        await asyncio.sleep(0)
        self.closed = True


def answer(body: Body, *fields: tuple[bytes, bytes], status: int = 200) -> httpx.Response:
    """A response with this body."""
    return httpx.Response(status, headers=[JSON, *fields], stream=body)


class Client:
    """Receives ASGI messages."""

    def __init__(self, block: bool = False) -> None:
        self.messages: list[dict[str, Any]] = []
        self._block = block
        self.began = asyncio.Event()

    async def send(self, message: Any) -> None:
        """An ASGI send."""
        self.messages.append(message)
        if message["type"] == "http.response.start":
            return
        self.began.set()
        if self._block:
            await asyncio.get_running_loop().create_future()

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def complete(self) -> bool:
        """Whether an end was sent."""
        return bool(self.messages) and self.messages[-1].get("more_body", True) is False


def context() -> RequestContext:
    """That of any request."""
    return RequestContext(request_id="r", method="POST", client="c", headers=[], started=0.0)


async def relay(
    response: httpx.Response,
    client: Client,
    lifelines: Lifelines | None = None,
    meter: UsageMeter | None = None,
    max_bytes: int = 100,
) -> None:
    """Passes one answer on, up to so many bytes of it."""
    through = Relay(LONG, max_bytes)
    with (
        (lifelines or Lifelines()).hold(LONG) as lifeline,
        through.answer(context(), client.send, [(b"x-own", b"1")]) as own,
    ):
        await through.stream(response, own, lifeline, meter)


@pytest.mark.parametrize(
    ("chunks", "fields"),
    [
        pytest.param([b"ab", b"cd"], [], id="without a length"),
        pytest.param([b"ab", b"cd"], [(b"content-length", b"4")], id="with the right one"),
        pytest.param([], [], id="without a body"),
        pytest.param([], [(b"content-length", b"0")], id="of nothing"),
        pytest.param([b"x" * 100], [], id="at the cap"),
        pytest.param([b"x" * 100], [(b"content-length", b"100")], id="announced at the cap"),
    ],
)
async def test_a_complete_answer(chunks: list[bytes], fields: list[tuple[bytes, bytes]]) -> None:
    """Arrives in the same pieces, with our fields, and the response is closed before its end.

    Where a length was announced, the last piece is the end: a client that has it may ask again.
    """
    body, client = Body(*chunks), Client()
    await relay(answer(body, *fields), client)
    pieces = [message["body"] for message in client.messages[1:]]
    assert pieces == (chunks if fields and chunks else [*chunks, b""])
    assert client.complete
    assert body.closed
    assert client.messages[0]["headers"][-1] == (b"x-own", b"1")


@pytest.mark.parametrize(
    ("body", "fields", "sent"),
    [
        pytest.param(Body(b"ab"), [(b"content-length", b"3")], b"ab", id="shorter than announced"),
        pytest.param(Body(b"abcd"), [(b"content-length", b"3")], b"", id="longer"),
        pytest.param(Body(b"ab", httpx.ReadError("x")), [], b"ab", id="broken off"),
        pytest.param(Body(b"x" * 60, b"x" * 41), [], b"x" * 60, id="one byte over the cap"),
    ],
)
async def test_an_answer_that_fails_on_the_way(
    body: Body, fields: list[tuple[bytes, bytes]], sent: bytes
) -> None:
    """Is never ended as if it were complete."""
    client = Client()
    with pytest.raises(UpstreamError):
        await relay(answer(body, *fields), client)
    assert client.body == sent
    assert not client.complete
    assert body.closed


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        pytest.param(302, [], id="a redirect"),
        pytest.param(200, [(b"content-encoding", b"gzip")], id="a compressed answer"),
        pytest.param(200, [(b"content-length", b"101")], id="announced over the cap"),
    ],
)
async def test_an_answer_that_is_not_begun(status: int, fields: list[tuple[bytes, bytes]]) -> None:
    """Nothing of it is sent, so that an error can be."""
    body, client = Body(b"x"), Client()
    with pytest.raises(UpstreamError):
        await relay(answer(body, *fields, status=status), client)
    assert client.messages == []
    assert body.closed


@pytest.mark.parametrize(
    ("body", "client"),
    [
        pytest.param(Body(b"a", asyncio.Event()), Client(), id="while the upstream is silent"),
        pytest.param(Body(b"a", b"b"), Client(block=True), id="while the client does not read"),
    ],
)
async def test_a_request_that_is_ended_still_closes(body: Body, client: Client) -> None:
    """Also where closing takes the transport a while: it is not cancelled with the rest."""
    lifelines = Lifelines()

    task = asyncio.create_task(relay(answer(body), client, lifelines))
    await client.began.wait()
    lifelines.end_all(ClientDisconnected)
    with pytest.raises(ClientDisconnected):
        await task
    assert body.closed
    assert not client.complete


async def test_silence_has_an_end() -> None:
    """An upstream that stops between two chunks is given up."""
    body, client = Body(b"a", asyncio.Event()), Client()
    idle = Deadline(0.02, lambda: UpstreamTimeout("idle"))
    through = Relay(idle, 100)
    with (
        pytest.raises(UpstreamTimeout, match="idle"),
        Lifelines().hold(LONG) as lifeline,
        through.answer(context(), client.send) as own,
    ):
        await through.stream(answer(body), own, lifeline)
    assert body.closed
    assert not client.complete


@pytest.mark.parametrize(
    ("body", "fields", "error"),
    [
        pytest.param(Body(b"ab", b"cd"), [], None, id="whole"),
        pytest.param(Body(b"x" * 10), [], None, id="at the bound"),
        pytest.param(Body(b"x" * 11), [], UpstreamError, id="over the bound"),
        pytest.param(
            Body(b"x"), [(b"content-length", b"11")], UpstreamError, id="announced over it"
        ),
        pytest.param(Body(b"x"), [(b"content-length", b"2")], UpstreamError, id="too short"),
        pytest.param(Body(httpx.ReadError("x")), [], UpstreamError, id="broken off"),
    ],
)
async def test_an_answer_that_is_looked_at(
    body: Body, fields: list[tuple[bytes, bytes]], error: type[ProxyError] | None
) -> None:
    """Is read whole, up to a bound of its own."""
    with Lifelines().hold(LONG) as lifeline:
        relay = Relay(LONG, 1000)
        if error is None:
            assert await relay.collect(answer(body, *fields), 10, lifeline) in (b"abcd", b"x" * 10)
        else:
            with pytest.raises(error):
                await relay.collect(answer(body, *fields), 10, lifeline)
    assert body.closed


EVENTS = (b"Content-Type", b"text/event-stream; charset=utf-8")


def streamed(body: Body, *fields: tuple[bytes, bytes]) -> httpx.Response:
    """A response of events."""
    return httpx.Response(200, headers=[EVENTS, *fields], stream=body)


def metering(*, take_out: bool, streamed: bool = True) -> UsageMeter:
    """A meter of a request that the upstream was asked."""
    meter = UsageMeter(BodyKind.CHAT, streamed=streamed, take_out=take_out, output_tokens=100)
    meter.asked()
    return meter


@pytest.mark.parametrize(
    ("fields", "announced"),
    [
        pytest.param([], None, id="without a length"),
        pytest.param(
            [(b"Content-Length", str(len(usages.VLLM_CHAT)).encode())],
            None,
            id="with a length, which is not that of what is left",
        ),
    ],
)
async def test_what_is_taken_out_leaves_a_complete_stream(
    fields: list[tuple[bytes, bytes]], announced: bytes | None
) -> None:
    """No piece of it is empty but the end, and no length is announced that it does not have."""
    chunks = [event + b"\n\n" for event in usages.VLLM_CHAT.split(b"\n\n")[:-1]]
    client, meter = Client(), metering(take_out=True)
    await relay(streamed(Body(*chunks), *fields), client, meter=meter, max_bytes=10**6)
    assert client.body == usages.VLLM_CHAT_UNASKED
    assert client.complete
    assert all(message["body"] for message in client.messages[1:-1])
    assert dict(client.messages[0]["headers"]).get(b"content-length") == announced
    assert meter.usage(7) == Usage(21, 3, estimated=False)


async def test_a_meter_that_takes_nothing_out_changes_nothing() -> None:
    """Not the pieces, and not the length."""
    chunks = [usages.VLLM_CHAT[:99], usages.VLLM_CHAT[99:]]
    length = (b"Content-Length", str(len(usages.VLLM_CHAT)).encode())
    client, meter = Client(), metering(take_out=False)
    await relay(streamed(Body(*chunks), length), client, meter=meter, max_bytes=10**6)
    assert [message["body"] for message in client.messages[1:]] == chunks
    assert (b"content-length", length[1]) in client.messages[0]["headers"]
    assert meter.usage(7) == Usage(21, 3, estimated=False)


@pytest.mark.parametrize(
    ("end", "fields"),
    [
        pytest.param([httpx.ReadError("x")], [], id="broken off"),
        pytest.param([], [(b"Content-Length", b"99999")], id="shorter than announced"),
    ],
)
async def test_what_was_held_back_arrives_before_a_stream_breaks_off(
    end: list[Exception], fields: list[tuple[bytes, bytes]]
) -> None:
    """Every byte that the upstream has sent, and no end."""
    sent = usages.event(usages.WORDS[0]) + usages.event(usages.LAST) + b"data: {"
    client, meter = Client(), metering(take_out=True)
    response = streamed(Body(sent[:50], sent[50:], *end), *fields)
    with pytest.raises(UpstreamError):
        await relay(response, client, meter=meter, max_bytes=10**6)
    assert client.body == sent
    assert not client.complete
    assert meter.usage(7) == Usage(7, 2, estimated=True)


async def test_the_bound_of_an_answer_is_on_what_the_upstream_sends() -> None:
    """What is taken out counts too."""
    sent = usages.event(usages.usage_chunk(1, 2))
    client, meter = Client(), metering(take_out=True)
    with pytest.raises(UpstreamError):
        await relay(streamed(Body(sent)), client, meter=meter, max_bytes=len(sent) - 1)
    assert not client.complete


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(200, Usage(21, 3, estimated=False), id="an answer"),
        pytest.param(400, Usage(0, 0, estimated=False), id="a refusal"),
    ],
)
async def test_an_answer_in_one_piece_is_metered(status: int, expected: Usage) -> None:
    """Also where a stream was asked for, and untouched."""
    body = b'{"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":3}}'
    for asked_for_stream in (True, False):
        client, meter = Client(), metering(take_out=True, streamed=asked_for_stream)
        await relay(answer(Body(body[:9], body[9:]), status=status), client, meter=meter)
        assert client.body == body
        assert meter.usage(7) == expected


async def test_an_answer_that_must_not_cross_is_no_answer() -> None:
    """And charges nothing."""
    meter = metering(take_out=False)
    with pytest.raises(UpstreamError):
        await relay(answer(Body(b"x"), status=302), Client(), meter=meter)
    assert meter.usage(7) == Usage(0, 0, estimated=False)
