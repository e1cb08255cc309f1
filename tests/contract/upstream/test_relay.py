"""Answers on their way back, over real sockets: at once, byte for byte, or visibly broken off."""

import asyncio
from pathlib import Path

import pytest

from proxy.errors import Reason, ShuttingDown, UpstreamError
from tests.harness import upstream as harness
from tests.harness.client import BrokenOff
from tests.harness.forwarding import chat, forwarding, post
from tests.harness.upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    End,
    Script,
    Step,
    Upstream,
    chunk,
    event,
    response,
    sse,
)

pytestmark = pytest.mark.both_ways

STREAM = post(chat(stream=True))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "content_type"),
    [
        pytest.param(SSE_HEAD, b"text/event-stream; charset=utf-8", id="events"),
        pytest.param(HEAD % b"application/x-ndjson", b"application/x-ndjson", id="lines of JSON"),
        pytest.param(HEAD % b"text/plain", b"text/plain", id="text"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None, id="no type at all"
        ),
    ],
)
async def test_a_stream_is_live(
    upstream: Upstream, head: bytes, content_type: bytes | None
) -> None:
    """Each piece is there before the upstream has the next one, whatever its type."""
    gates = [asyncio.Event() for _ in range(4)]
    steps: list[Step] = []
    for n, gate in enumerate(gates):
        steps += [gate, event(str(n))]
    upstream.reply = [head, *steps, LAST_CHUNK]
    async with forwarding(upstream.url) as front, await front.connect() as client:
        await client.send(STREAM)
        answer = await client.read_head()
        assert answer.header(b"content-type") == content_type
        for n, gate in enumerate(gates):
            gate.set()
            assert await client.read_chunk() == sse(str(n))
        assert await client.read_chunk() == b""
        await front.nothing_held()
        assert front.contexts[0].response_complete


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"data: a\r\n\r\n", b"data: b\r\n\r\n"], id="CR and LF"),
        pytest.param([b"data: a\r\r"], id="CR alone"),
        pytest.param([b": comment\n\n", b"event: x\nid: 7\nretry: 5\n\n"], id="every kind of line"),
        pytest.param([b"data: a\ndata: b\n\n"], id="two lines of data"),
        pytest.param([b"data: [DONE]"], id="an end without a line end"),
        pytest.param([b"data: garbage\n\n", b"data: {\n\n"], id="what is not JSON"),
        pytest.param([bytes([byte]) for byte in "data: 🦉漢\n\n".encode()], id="byte by byte"),
        pytest.param([b'data: {"logprob":-Infinity}\n\n'], id="no number of JSON"),
        pytest.param([b"x" * 70_000], id="one large piece"),
        pytest.param([], id="nothing at all"),
    ],
)
async def test_a_stream_is_not_touched(upstream: Upstream, pieces: list[bytes]) -> None:
    """What comes out is what went in."""
    upstream.reply = [SSE_HEAD, *map(chunk, pieces), LAST_CHUNK]
    async with forwarding(upstream.url) as front:
        answer = await front.ask(STREAM)
    assert answer.complete
    assert answer.body == b"".join(pieces)


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500, 501, 503])
async def test_an_error_of_the_upstream_keeps_its_status(upstream: Upstream, status: int) -> None:
    """Also where a stream was asked for: nothing is said before the upstream has said something."""
    fields = [(b"Content-Type", b"application/json"), (b"Retry-After", b"30")]
    upstream.reply = [response(b'{"error":{"message":"no"}}', status, fields)]
    async with forwarding(upstream.url) as front:
        answer = await front.ask(STREAM)
        assert front.contexts[0].upstream_status == status
        # Who asks wrongly has made no fault happen.
        assert front.contexts[0].outcome is (Reason.UPSTREAM_ERROR if status >= 500 else None)
    assert answer.status == status
    assert answer.body == b'{"error":{"message":"no"}}'
    assert answer.header(b"retry-after") == b"30"


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        pytest.param(
            [b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n"],
            "redirect",
            id="a redirect",
        ),
        pytest.param([response(b"{}", 401)], "PROXY_UPSTREAM_API_KEY", id="401"),
        pytest.param([response(b"{}", 403)], "PROXY_UPSTREAM_API_KEY", id="403"),
        pytest.param(
            [response(b"\x1f\x8b", headers=[(b"Content-Encoding", b"gzip")])],
            "compressed",
            id="gzip",
        ),
        pytest.param(
            [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
            "not valid",
            id="another protocol, which nobody asked for",
        ),
        pytest.param(
            [response(b"2\r\n{}\r\n0\r\n\r\n", headers=[(b"Transfer-Encoding", b"chunked")])],
            "not valid",
            id="two framings",
        ),
        pytest.param([response(b"{}", content_length=10_001)], "longer", id="announced too long"),
        pytest.param([b"\x15\x03\x01\x00\x02\x02\x16", End.FIN], "not valid", id="not HTTP"),
        pytest.param([End.FIN], "broke off", id="no answer"),
        pytest.param([End.RESET], "broke", id="a reset"),
        pytest.param([b"HTTP/1.1 200 O", End.FIN], "broke off", id="half a head"),
        pytest.param([b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000], "not valid", id="a huge head"),
        pytest.param([b"HTTP/1.1 200 OK\r\nX: a\nY\r\n\r\n"], "not valid", id="a broken field"),
        pytest.param(
            [SSE_HEAD + event("a") + b"no chunk\r\n"], "not valid", id="broken framing at once"
        ),
    ],
)
async def test_what_must_not_cross_becomes_a_502(
    upstream: Upstream, reply: Script, complaint: str
) -> None:
    """The client learns which part failed, and nothing about where it is."""
    upstream.reply = reply
    async with forwarding(upstream.url, max_response_bytes=10_000) as front:
        answer = await front.ask(STREAM)
        await front.nothing_held()
    assert answer.status == 502
    assert complaint in answer.json()["error"]["message"]
    assert b"127.0.0.1" not in answer.body
    assert b"10.0.0.1" not in answer.body
    await upstream.all_closed()


@pytest.mark.parametrize(
    ("reply", "received"),
    [
        pytest.param([SSE_HEAD, event("a"), End.RESET], None, id="a reset in mid-stream"),
        pytest.param([SSE_HEAD, event("a"), End.FIN], sse("a"), id="no last chunk"),
        pytest.param(
            [SSE_HEAD, event("a"), b"ff\r\ndata: b", End.FIN], None, id="in the middle of a chunk"
        ),
        pytest.param(
            [response(b'{"a":', content_length=6), End.FIN], b'{"a":', id="short of its length"
        ),
        pytest.param([SSE_HEAD, chunk(b"x" * 10_001), LAST_CHUNK], None, id="longer than allowed"),
    ],
)
async def test_what_breaks_is_seen_to_break(
    upstream: Upstream, reply: Script, received: bytes | None
) -> None:
    """A partial answer never looks complete, and no end is invented."""
    upstream.reply = reply
    async with forwarding(upstream.url, max_response_bytes=10_000) as front:
        answer = await front.ask(STREAM)
        await front.nothing_held()
        assert isinstance(front.errors[0], UpstreamError)
        assert not front.contexts[0].response_complete
    assert answer.status == 200
    assert not answer.complete
    assert DONE not in answer.body
    if received is not None:
        assert answer.body == received
    await upstream.all_closed()


async def test_framing_that_breaks_in_mid_stream(upstream: Upstream) -> None:
    """What came before it is passed on, and no end."""
    gate = asyncio.Event()
    upstream.reply = [SSE_HEAD, event("a"), gate, event("b") + b"no chunk\r\n", End.SILENCE]
    async with forwarding(upstream.url) as front, await front.connect() as client:
        await client.send(STREAM)
        await client.read_head()
        assert await client.read_chunk() == sse("a")
        gate.set()
        assert await client.read_chunk() == sse("b")
        with pytest.raises(BrokenOff):
            await client.read_chunk()
        await front.nothing_held()
        assert isinstance(front.errors[0], UpstreamError)
    await upstream.all_closed()


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nabc", End.FIN],
            b"abc",
            id="the end of the connection",
        ),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\nabc", End.FIN], b"abc", id="HTTP/1.0"),
        pytest.param(
            [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + response(b"{}")],
            b"{}",
            id="after interim responses",
        ),
        pytest.param(
            [HEAD % b"a/b", chunk(b"abc"), b"0\r\nX-Trailer: 1\r\n\r\n"], b"abc", id="a trailer"
        ),
        pytest.param([HEAD % b"a/b", b"3;ext=1\r\nabc\r\n", LAST_CHUNK], b"abc", id="extensions"),
        pytest.param([response(b"x" * 10_000)], b"x" * 10_000, id="as long as allowed"),
        pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], b"", id="no content"),
    ],
)
async def test_every_framing_is_understood(upstream: Upstream, reply: Script, body: bytes) -> None:
    """The client gets the body in a framing of its own."""
    upstream.reply = reply
    async with forwarding(upstream.url, max_response_bytes=10_000) as front:
        answer = await front.ask(STREAM)
    assert answer.complete
    assert answer.body == body


async def test_an_early_answer_is_read(upstream: Upstream) -> None:
    """An upstream that answers before it has the whole body is heard."""
    upstream.reads = False
    async with forwarding(upstream.url, max_body_bytes=20_000_000) as front:
        async with await front.connect() as client:
            await client.send(post(chat() + b" " * 12_000_000))
            connection = await upstream.connection(0)
            connection.transport.write(response(b'{"error":"too much"}', 413))
            connection.transport.write_eof()
            answer = await client.read_response()
            assert answer.status == 413
            assert answer.body == b'{"error":"too much"}'
        await front.nothing_held()


async def test_no_redirect_is_followed(upstream: Upstream) -> None:
    """The engine does not choose whom we talk to."""
    location = f"{upstream.url}/v1/models".encode()
    upstream.script.append([response(b"", 307, [(b"Location", location)])])
    async with forwarding(upstream.url) as front:
        assert (await front.ask(STREAM)).status == 502
    assert len(upstream.requests) == 1


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    """The whole way, without a network between the two."""
    async with harness.serve(tmp_path / "vllm.sock") as upstream, forwarding(upstream.url) as front:
        answer = await front.ask(STREAM)
        assert answer.body.endswith(DONE)
        assert upstream.requests[0].header(b"host") == b"localhost"


async def test_a_list_of_models_is_relayed_byte_for_byte(upstream: Upstream) -> None:
    """Where nothing is to be hidden."""
    listing = b'{ "data":[ {"id":"m","root":"/srv/m","x":1.0} ] }'
    upstream.reply = [response(listing)]
    async with forwarding(upstream.url) as front, await front.connect() as client:
        assert (await client.request("GET", "/v1/models")).body == listing
    assert upstream.requests[0].header(b"content-length") is None
    assert upstream.requests[0].body == b""


@pytest.mark.parametrize(
    ("reply", "status", "root"),
    [
        pytest.param(
            [response(b'{"data":[{"id":"m","root":"/srv/m"}]}')], 200, "m", id="with a length"
        ),
        pytest.param(
            [HEAD % b"application/json", chunk(b'{"data":[{"id":"m","root":"/s"}]}'), LAST_CHUNK],
            200,
            "m",
            id="in chunks",
        ),
        pytest.param([response(b"[]")], 502, None, id="no list of models"),
        pytest.param([response(b"{")], 502, None, id="no JSON"),
        pytest.param([response(b" " * (1024 * 1024 + 1))], 502, None, id="endless"),
        pytest.param([response(b'{"error":1}', 503)], 503, None, id="an error stays one"),
    ],
)
async def test_a_list_of_models_is_redacted(
    upstream: Upstream, reply: Script, status: int, root: str | None
) -> None:
    """Under the strict profile, where the models lie is not said."""
    upstream.reply = reply
    async with forwarding(upstream.url, redact=True) as front, await front.connect() as client:
        answer = await client.request("GET", "/v1/models")
        assert answer.status == status
        assert answer.complete
        assert b"/s" not in answer.body
        if root is not None:
            assert answer.json()["data"][0]["root"] == root
        await front.nothing_held()


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        pytest.param([End.SILENCE], 503, id="before it was answered"),
        pytest.param([SSE_HEAD, event("a"), End.SILENCE], 200, id="in mid-stream"),
    ],
)
async def test_the_end_of_the_drain(upstream: Upstream, reply: Script, status: int) -> None:
    """Whoever has no answer yet gets an error, and whoever has a part of one sees it break off."""
    upstream.reply = reply
    async with forwarding(upstream.url) as front, await front.connect() as client:
        await client.send(STREAM)
        await upstream.request(0)
        if status == 200:
            await client.read_head()
        front.lifelines.end_all(lambda: ShuttingDown("drained"))
        if status == 200:
            assert await client.read_chunk() == sse("a")
            with pytest.raises(BrokenOff):
                await client.read_chunk()
        else:
            assert (await client.read_response()).status == status
        await upstream.all_closed(1.0)
        await front.nothing_held()


async def test_what_is_held_of_an_answer_is_bounded(upstream: Upstream) -> None:
    """A client that does not read makes the upstream wait, not the proxy grow: 256 KiB at most."""
    written = 0

    def flood(_: object) -> Script:
        nonlocal written
        yield SSE_HEAD
        piece = chunk(b"x" * 8_000)
        while True:
            yield piece
            written += len(piece)  # counted when the next one is asked for: it was taken

    upstream.reply = flood
    async with (
        forwarding(upstream.url) as front,
        await front.connect(receive_buffer_bytes=4096) as client,
    ):
        await client.send(STREAM)
        connection = await upstream.connection(0)
        await connection.write_blocked.wait()
        ports = {upstream.port, front.served.port}

        async def at_rest() -> int:
            """What has left the upstream and is in none of the kernel's queues."""
            before = None
            while before != (before := (written, queued_bytes(ports))):
                for _ in range(200):
                    await asyncio.sleep(0.001)
            return before[0] - before[1] - connection.transport.get_write_buffer_size()

        assert 0 <= await at_rest() <= 256 * 1024
        client.reset()
        await upstream.all_closed(1.0)


def queued_bytes(ports: set[int]) -> int:
    """What lies in the kernel's queues of the connections at these ports."""
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        row = line.split()
        if ports & {int(address.rpartition(":")[2], 16) for address in row[1:3]} and row[3] == "01":
            total += sum(int(size, 16) for size in row[4].split(":"))
    return total
