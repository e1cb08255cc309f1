"""Caps on connections, on real sockets: who is told, who gives way, who is served all the same."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from proxy.errors import Reason
from proxy.extensions import KNOWN
from proxy.server.connections import ConnectionLimits, Connections
from proxy.server.protocol import ProtocolLimits
from tests.harness.client import RawClient, request_bytes
from tests.harness.served import Echo, Receive, Scope, Send, Served, answer, serving

REQUEST = request_bytes("GET", "/")
HALF = REQUEST[:-2]


class Held:
    """An application whose answers wait."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        self.begun.release()
        await self.go_on.wait()
        await answer(send, 200, b"ok")


class Front:
    """A server with caps, and its clients."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.app = Held()
        self.events: list[str] = []

    async def open(self, *, linger_seconds: float = 1.0, **limits: int) -> None:
        """Serves."""
        self.connections = Connections(ConnectionLimits(**limits), on_event=self._note)
        self._changed = asyncio.Event()
        self.served: Served = await self.stack.enter_async_context(
            serving(self.app, 120, ProtocolLimits(linger_seconds=linger_seconds), self.connections)
        )

    def _note(self, event: str) -> None:
        self.events.append(event)

    async def connect(self) -> RawClient:
        """One more."""
        return await self.stack.enter_async_context(await self.served.connect())

    async def idle(self, count: int, sends: bytes = b"") -> list[RawClient]:
        """So many more without a request, each after the other."""
        clients = []
        for _ in range(count):
            before = self.served.made
            client = await self.connect()
            await self.served.has_made(before + 1)
            if sends:
                read = self.served.bytes_read
                await client.send(sends)
                await self.served.has_read(read + len(sends))
            clients.append(client)
        return clients

    async def busy(self, count: int = 1) -> list[RawClient]:
        """So many more with a request that is being answered."""
        clients = []
        for _ in range(count):
            client = await self.connect()
            await client.send(REQUEST)
            await self.app.begun.acquire()
            clients.append(client)
        return clients


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    """A server that ends with the test."""
    async with AsyncExitStack() as stack:
        yield Front(stack)


def told(answered: bytes) -> tuple[int, str, bool]:
    """Status, code, and whether it says when to come again."""
    head, _, body = answered.partition(b"\r\n\r\n")
    code = json.loads(body)["error"]["code"]
    return int(head.split()[1]), code, b"\r\nretry-after: " in head.lower()


@pytest.mark.parametrize(
    ("limits", "status", "reason"),
    [
        pytest.param({"open": 2}, 503, Reason.CONNECTIONS_EXHAUSTED, id="in all"),
        pytest.param({"per_address": 2}, 429, Reason.TOO_MANY_CONNECTIONS, id="of one address"),
    ],
)
@pytest.mark.parametrize(
    "says",
    [
        pytest.param(b"", id="that says nothing"),
        pytest.param(REQUEST, id="with a request"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="with a TLS hello"),
    ],
)
async def test_one_more_is_told_at_once(
    front: Front, limits: dict[str, int], status: int, reason: Reason, says: bytes
) -> None:
    """As JSON, before it asks; the others are served, and so is the next when one has left."""
    await front.open(**limits)
    busy = await front.busy(2)
    more = await front.connect()
    if says:
        await more.send(says)
    assert told(await more.read_until_closed()) == (status, reason, True)
    assert not more.was_reset
    assert [(refusal.reason, client) for refusal, client in front.served.refusals] == [
        (reason, "127.0.0.1")
    ]
    assert front.events == [reason]
    busy[0].close()
    more.close()
    await front.served.has_closed(left=1)
    front.app.go_on.set()
    another = await front.connect()
    assert (await another.request("GET", "/")).status == 200
    assert (await busy[1].read_response()).status == 200


@pytest.mark.parametrize("says", [b"", HALF], ids=["nothing", "half a head"])
async def test_the_longest_idle_gives_way(front: Front, says: bytes) -> None:
    """Without a word, or with 408 where it has begun to ask."""
    await front.open(idle=2)
    first, second = await front.idle(2, says)
    assert front.events == []
    await front.idle(1)
    answered = await first.read_until_closed()
    if says:
        assert told(answered) == (408, "request_timeout", False)
    else:
        assert answered == b""
    assert not first.was_reset
    assert front.events == ["idle"]
    assert (front.connections.open, front.connections.idle) == (2, 2)
    await second.send(REQUEST[len(says) :])
    front.app.go_on.set()
    assert (await second.read_response()).status == 200


async def test_a_busy_one_never_gives_way(front: Front) -> None:
    """However many come and say nothing."""
    await front.open(idle=2)
    (busy,) = await front.busy()
    await front.idle(9)
    assert front.events == ["idle"] * 7
    front.app.go_on.set()
    assert (await busy.read_response()).status == 200


class Large:
    """An application whose answers are more than the kernel takes for a client that does not read."""

    def __init__(self) -> None:
        self.sent = asyncio.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; a path says that it shows a key."""
        if scope["path"] == "/known":
            scope["extensions"][KNOWN]()
        await answer(send, 200, bytes(8_000_000))
        self.sent.release()


async def taking(front: Front, path: str = "/") -> RawClient:
    """A client that has asked, and whose answer is with the server as long as it does not read."""
    client = await front.stack.enter_async_context(
        await front.served.connect(receive_buffer_bytes=8_192)
    )
    await client.send(request_bytes("GET", path))
    await front.app.sent.acquire()  # type: ignore[attr-defined] # of Large
    return client


@pytest.mark.parametrize("limits", [{"idle": 3}, {"open": 3}], ids=["idle", "in all"])
async def test_an_answer_on_its_way_is_not_broken_off_by_those_who_say_nothing(
    front: Front, limits: dict[str, int]
) -> None:
    """However many; all of it is out at the application, and its client reads slowly."""
    front.app = Large()  # type: ignore[assignment] # the one that answers
    await front.open(**limits)
    client = await taking(front)
    await front.idle(9)
    response = await client.read_response()
    assert (len(response.body), response.complete) == (8_000_000, True)
    assert front.events == ["idle"] * 7


async def test_who_asks_and_does_not_read_keeps_nobody_out(front: Front) -> None:
    """Nor if it asks again."""
    front.app = Large()  # type: ignore[assignment] # the one that answers
    await front.open(open=2)
    silent = [await taking(front) for _ in range(2)]
    for client in silent:
        read = front.served.bytes_read
        await client.send(REQUEST)
        await front.served.has_read(read + len(REQUEST))
    another = await front.connect()
    assert (await another.request("GET", "/")).status == 200
    assert front.events == ["idle"]


@pytest.mark.parametrize("limits", [{"idle": 3}, {"open": 3}], ids=["idle", "in all"])
async def test_who_asks_and_does_not_read_cuts_off_nobody_with_a_key(
    front: Front, limits: dict[str, int]
) -> None:
    """Who has one has been at it for the longest; strangers go, the longest of them first."""
    front.app = Large()  # type: ignore[assignment] # the one that answers
    await front.open(**limits)
    client = await taking(front, "/known")
    strangers = [await taking(front) for _ in range(5)]
    response = await client.read_response()
    assert (len(response.body), response.complete) == (8_000_000, True)
    assert front.events == ["idle"] * 3
    response = await strangers[-1].read_response()
    assert (len(response.body), response.complete) == (8_000_000, True)


async def test_one_that_was_answered_is_idle_again(front: Front) -> None:
    """And not the first to give way."""
    await front.open(idle=2)
    front.app.go_on.set()
    (used,) = await front.busy()
    assert (await used.read_response()).status == 200
    (other,) = await front.idle(1)
    await used.send(REQUEST)
    assert (await used.read_response()).status == 200
    await front.idle(1)
    assert await other.read_until_closed() == b""
    await used.send(REQUEST)
    assert (await used.read_response()).status == 200


@pytest.mark.parametrize(
    ("request_", "behind"),
    [
        pytest.param(REQUEST, REQUEST, id="after a request that was pipelined"),
        pytest.param(
            request_bytes("POST", "/", {"Content-Length": "9"}), b"{}", id="after half a body"
        ),
    ],
)
async def test_one_that_lingers_keeps_nobody_out(
    front: Front, request_: bytes, behind: bytes
) -> None:
    """It has its answer: its place is the next one's."""
    await front.open(open=1, linger_seconds=60.0)
    lingers = await front.connect()
    await lingers.send(request_)
    await front.app.begun.acquire()
    await lingers.send(behind)
    await front.served.has_read(len(request_) + len(behind))
    front.app.go_on.set()
    assert (await lingers.read_response()).status == 200
    another = await front.connect()
    assert (await another.request("GET", "/")).status == 200
    assert front.events == ["idle"]


async def test_only_so_many_are_told(front: Front) -> None:
    """Whoever comes beyond them is closed without a word, and all are counted."""
    await front.open(open=1, told=2)
    await front.busy()
    clients = [await front.connect() for _ in range(4)]
    answers = [await client.read_until_closed() for client in clients]
    assert [bool(each) for each in answers] == [True, True, False, False]
    assert len(front.served.refusals) == 2
    assert front.events == [Reason.CONNECTIONS_EXHAUSTED] * 4


async def test_who_was_told_does_not_stay(front: Front) -> None:
    """It says nothing and does not leave: a moment later it is gone, and the next is told."""
    await front.open(open=1, told=1, linger_seconds=0.05)
    await front.busy()
    first = await front.connect()
    await first.read_until_closed()
    await front.served.has_closed(left=1)
    assert await (await front.connect()).read_until_closed()


@pytest.mark.parametrize("attack", [REQUEST[:-1], b"G", b""], ids=["heads", "a byte", "nothing"])
async def test_whoever_begins_and_does_not_end_keeps_nobody_out(
    front: Front, attack: bytes
) -> None:
    """Ten times as many as may be idle, all of which stay; a client is served among them."""
    front.app = Echo()  # type: ignore[assignment] # the one that answers
    await front.open(open=64, idle=40, told=8)
    for number in range(400):
        attacker = await front.connect()
        await attacker.send(attack)
        if number % 40 == 39:
            async with await front.served.connect() as client:
                assert (await client.request("GET", "/")).status == 200
        assert front.connections.open <= 64
    # Those that were answered 408 stay for a moment, and only so many of them.
    assert len(front.served.state.connections) <= 64 + 8 + 2


async def test_a_place_is_given_back_however_it_ends(front: Front) -> None:
    """By a FIN, a reset, a request that was refused, an answer that closes."""
    await front.open(open=4, idle=4, linger_seconds=0.05)
    front.app.go_on.set()
    ends: list[Callable[[RawClient], None]] = [RawClient.close, RawClient.reset]
    for end in ends:
        for clients in (await front.idle(1), await front.idle(1, HALF), await front.busy()):
            end(clients[0])
    for data in (
        b"nonsense\r\n\r\n",
        REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
    ):
        await front.served.ask(data)
    await front.served.has_closed()
    assert (front.connections.open, front.connections.idle) == (0, 0)
