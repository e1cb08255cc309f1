"""Every framing over a real socket, to our transport and to two others: the same, or a refusal.

httpx's own reads with h11 too, but has its own mind about connections: what comes after an answer is
taken for the next request's. h11 alone is the third opinion.
"""

import asyncio
import itertools
import random
from dataclasses import dataclass

import h11
import httpx
import pytest

from proxy.upstream import target, transport
from tests.harness.upstream import End, Upstream

REFUSED = "refused"

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """What a server says.

    Attributes:
        only_we_refuse: Others take it although nobody should.
        is_spoiled_behind: For what comes behind its end, so that it is an answer until that has come.
    """

    said: bytes
    only_we_refuse: bool = False
    is_spoiled_behind: bool = False


CASES = [
    pytest.param(Case(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"), id="a length"),
    pytest.param(Case(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), id="a length of none"),
    pytest.param(Case(b"HTTP/1.1 204 No Content\r\n\r\n"), id="204"),
    pytest.param(Case(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n"), id="304"),
    pytest.param(Case(b"HTTP/1.1 200 OK\r\n\r\nabc"), id="until the end"),
    pytest.param(Case(b"HTTP/1.0 200 OK\r\n\r\nabc"), id="1.0"),
    pytest.param(Case(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc"), id="1.0, a length"),
    pytest.param(Case(CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"), id="a chunk"),
    pytest.param(Case(CHUNKED + b"1\r\na\r\n2;x=1\r\nbc\r\n0\r\nA: b\r\n\r\n"), id="a trailer"),
    pytest.param(Case(CHUNKED + b"A\r\n0123456789\r\n000\r\n\r\n"), id="hexadecimal, many zeros"),
    pytest.param(
        Case(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"),
        id="an interim answer",
    ),
    pytest.param(
        Case(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na"), id="close"
    ),
    pytest.param(Case(b"HTTP/1.1 200 OK\r\nX:  a b \r\nContent-Length: 1\r\n\r\na"), id="spaces"),
    pytest.param(Case(b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na"), id="no reason"),
    # What nobody takes.
    pytest.param(Case(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), id="too short"),
    pytest.param(Case(CHUNKED + b"3\r\nabc\r\n"), id="no last chunk"),
    pytest.param(Case(CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n"), id="a chunk that is too long"),
    pytest.param(Case(CHUNKED + b"x\r\nabc\r\n0\r\n\r\n"), id="no size"),
    pytest.param(Case(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), id="less than nothing"),
    pytest.param(Case(b"HTTP/1.1 200 OK\r\nContent-Length: a\r\n\r\n"), id="no number"),
    pytest.param(
        Case(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na"),
        id="two lengths that differ",
    ),
    pytest.param(Case(b"HTTP/1.1 20 OK\r\n\r\n"), id="half a status"),
    pytest.param(Case(b"ICY 200 OK\r\n\r\n"), id="not HTTP"),
    pytest.param(Case(b"HTTP/1.1 200 OK\r\nX\r\n\r\n"), id="no colon"),
    pytest.param(Case(b""), id="nothing"),
    # What others take.
    pytest.param(
        Case(
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\n\r\n",
            only_we_refuse=True,
        ),
        id="both framings",
    ),
    pytest.param(
        Case(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            only_we_refuse=True,
        ),
        id="a length twice",
    ),
    pytest.param(
        Case(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
            only_we_refuse=True,
            is_spoiled_behind=True,
        ),
        id="more than its length",
    ),
    pytest.param(
        Case(
            CHUNKED + b"1\r\na\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            only_we_refuse=True,
            is_spoiled_behind=True,
        ),
        id="a second answer",
    ),
    pytest.param(
        Case(b"HTTP/1.1 200 OK\nContent-Length: 1\n\na", only_we_refuse=True), id="lone line ends"
    ),
    pytest.param(
        Case(b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 1\r\n\r\na", only_we_refuse=True),
        id="a folded field",
    ),
]

Result = tuple[int, list[tuple[bytes, bytes]], bytes] | str


async def ask(made: httpx.AsyncBaseTransport, url: str) -> Result:
    """Status, fields in lower case and body; or that there are none."""
    request = httpx.Request(
        "POST", url, headers=[(b"host", b"x")], stream=httpx.ByteStream(b""), extensions={}
    )
    request.headers["content-length"] = "0"
    try:
        answer = await made.handle_async_request(request)
        body = b"".join([piece async for piece in answer.aiter_raw()])
    except (httpx.TransportError, httpx.StreamError):
        return REFUSED
    return answer.status_code, _lower(answer.headers.raw), body


def _lower(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in fields]


def by_h11(said: bytes) -> Result:
    """What h11 reads in it."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(
        h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")])
    )
    reader.send(h11.EndOfMessage())
    status, body = 0, b""
    fields: list[tuple[bytes, bytes]] = []
    try:
        reader.receive_data(said)
        reader.receive_data(b"")
        while True:
            event = reader.next_event()
            if isinstance(event, h11.Response):
                status, fields = (
                    event.status_code,
                    [(bytes(name), bytes(value)) for name, value in event.headers],
                )
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, _lower(fields), body
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return REFUSED
    except h11.RemoteProtocolError:
        return REFUSED


@pytest.mark.parametrize("case", CASES)
async def test_as_others_read_it(upstream: Upstream, case: Case) -> None:
    """What the others read is what we read, and what they refuse we refuse; some we refuse alone."""
    upstream.reply = [case.said, End.FIN] if case.said else [End.FIN]
    async with (
        transport.build(target.parse(upstream.url)) as ours,
        httpx.AsyncHTTPTransport(trust_env=False) as theirs,
    ):
        mine, others = await ask(ours, upstream.url), await ask(theirs, upstream.url)
    third = by_h11(case.said)
    if case.only_we_refuse:
        assert mine == REFUSED
        assert REFUSED not in (others, third)
    else:
        assert mine == others == third
    await upstream.all_closed()


@pytest.mark.parametrize("case", CASES)
async def test_in_whatever_pieces_it_comes(upstream: Upstream, case: Case) -> None:
    """Split anywhere, it is the same answer, or still none; or whole before what spoils it came."""
    if not case.said:
        return
    chance = random.Random(case.said)  # noqa: S311 - the same splits each time
    async with transport.build(target.parse(upstream.url)) as ours:
        upstream.reply = [case.said, End.FIN]
        expected = await ask(ours, upstream.url)
        assert expected == REFUSED or not case.only_we_refuse
        allowed = [expected, by_h11(case.said)] if case.is_spoiled_behind else [expected]
        for turn in range(12):
            await upstream.all_closed()
            pieces = _split(case.said, chance, turn)
            upstream.reply = [pieces[0], End.SILENCE]
            task = asyncio.create_task(ask(ours, upstream.url))
            await upstream.request(len(upstream.requests))
            connection = upstream.connections[-1]
            for piece in pieces[1:]:
                # The kernel has taken one before the next is written.
                await asyncio.sleep(0)
                if not connection.transport.is_closing():
                    connection.transport.write(piece)
            connection.transport.close()
            found = await task
            assert found in allowed


def _split(said: bytes, chance: random.Random, turn: int) -> list[bytes]:
    if turn == 0:
        return [said[at : at + 1] for at in range(len(said))]
    cuts = sorted({chance.randrange(len(said) + 1) for _ in range(turn)} | {0, len(said)})
    return [said[begin:end] for begin, end in itertools.pairwise(cuts)]
