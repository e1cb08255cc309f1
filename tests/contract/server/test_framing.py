"""A body in chunks means the same wherever its packets were cut, also what its framing may weigh."""

import asyncio
from itertools import pairwise

import pytest

from proxy.errors import Refusal
from proxy.server.framing import STEP_BYTES, FramingCredit
from proxy.server.protocol import BulwarkProtocol
from tests.harness.forwarding import until
from tests.harness.served import Receive, Scope, Send, Serve, Served, answer

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
FREE = 2 * STEP_BYTES
"""What is free in these tests, and the longest head."""

END = b"0\r\n\r\n"


def extended(size: int, data: bytes = b"x") -> bytes:
    """A chunk that is so long with its extension."""
    framed = b"%x;" % len(data), b"\r\n" + data + b"\r\n"
    return framed[0] + b"e" * (size - len(b"".join(framed))) + framed[1]


def chunk(data: bytes) -> bytes:
    """A chunk without one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Reads:
    """An application that reads its request whole, and says what came of it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            while (await receive())["more_body"]:
                pass
        except Refusal as refusal:
            await answer(send, refusal.status, refusal.reason.encode())
        else:
            await answer(send, 200, b"ok")


async def ask(served: Served, pieces: list[bytes]) -> int:
    """The status of the answer to a request in these packets."""
    async with await served.connect() as client:
        await until(lambda: len(served.state.connections) == 1)
        [connection] = served.state.connections
        assert isinstance(connection, BulwarkProtocol)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)  # the application has its turn
        status = (await client.read_response()).status
    await served.has_closed()
    return status


def cut(whole: bytes, at: list[int]) -> list[bytes]:
    """It in pieces."""
    return [whole[a:b] for a, b in pairwise([0, *at, len(whole)])]


@pytest.mark.parametrize(
    ("chunks", "status"),
    [
        pytest.param(chunk(b"{}") + END, 200, id="short"),
        pytest.param(extended(FREE) + END, 200, id="an extension as long as what is free"),
        pytest.param(extended(FREE + STEP_BYTES) + END, 400, id="a step longer"),
        pytest.param(extended(STEP_BYTES) * 3 + END, 400, id="in three chunks"),
        pytest.param(extended(99_000) + END, 400, id="much longer"),
        pytest.param(
            chunk(b"x" * 9000) + extended(4 * STEP_BYTES) + END, 400, id="saved up before"
        ),
        pytest.param(
            extended(3 * STEP_BYTES) + chunk(b"x" * 9000) + END, 400, id="earned after it"
        ),
        pytest.param(extended(1500) + chunk(b"x" * 3000) + extended(1500) + END, 200, id="earned"),
        pytest.param(chunk(b"x") * 300 + END, 200, id="some of a byte"),
        pytest.param(chunk(b"x") * 1000 + END, 400, id="many of a byte"),
        pytest.param(chunk(b"x" * 5) * 1000 + END, 200, id="many of five bytes"),
        pytest.param(b"0\r\nX: " + b"a" * 4000 + b"\r\n\r\n", 400, id="a long trailer"),
        pytest.param(b"0\r\n" + b"X: 1\r\n" * 97 + b"\r\n", 200, id="100 fields"),
        pytest.param(b"0\r\n" + b"X: 1\r\n" * 98 + b"\r\n", 431, id="101 fields"),
        pytest.param(extended(900) + b"zz\r\n" + extended(99_000), 400, id="broken, then too much"),
    ],
)
async def test_the_same_bytes_in_other_packets(serve: Serve, chunks: bytes, status: int) -> None:
    """As one packet, cut once near each end of something, in small ones: always the same answer."""
    served = await serve(Reads(), max_head_bytes=FREE, linger_seconds=0.05)
    whole = HEAD + chunks
    places = [*(len(HEAD) + step * STEP_BYTES for step in range(4)), len(whole)]
    once = {place + near for place in places for near in (-5, -1, 0, 1, 2)}
    ways = [[], *([at] for at in sorted(once) if 0 < at < len(whole))]
    ways += [list(range(size, len(whole), size)) for size in (700, 1 if len(whole) < 9000 else 99)]
    assert {await ask(served, cut(whole, at)) for at in ways} == {status}


@pytest.mark.parametrize(
    ("spent", "borne"),
    [
        pytest.param([(STEP_BYTES, 0)] * 2, True, id="what is free"),
        pytest.param([(STEP_BYTES, 0)] * 3, False, id="a step more"),
        pytest.param(
            [(STEP_BYTES, 0)] * 2 + [(STEP_BYTES - 1, 0)], True, id="not a whole step more"
        ),
        pytest.param(
            [(STEP_BYTES, 0)] * 2 + [(STEP_BYTES, 512)], True, id="one that pays for itself"
        ),
        pytest.param(
            [(STEP_BYTES, 0)] * 2 + [(STEP_BYTES, 511)], False, id="one that does not quite"
        ),
        pytest.param([(512, 0), (512, 512)] * 9, True, id="a half of each"),
        pytest.param([(STEP_BYTES, STEP_BYTES)] * 9 + [(STEP_BYTES, 0)] * 3, False, id="saved up"),
    ],
)
def test_the_account(spent: list[tuple[int, int]], *, borne: bool) -> None:
    """It is settled at each step."""
    credit = FramingCredit(FREE)
    assert [credit.spend(*each) for each in spent] == [True] * (len(spent) - 1) + [borne]
