"""A whole proxy in front of an engine that closes its connections at exactly the wrong moment."""

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.harness.forwarding import chat
from tests.harness.running import BEARER, CHAT, JSON, Launch
from tests.harness.turns import after
from tests.harness.upstream import COMPLETION, response

CLIENTS, REQUESTS = 4, 1_200
AUTHORIZED = {**BEARER, **JSON}
ANSWER = response(COMPLETION)


@dataclass
class Engine:
    """What the engine has seen.

    Attributes:
        url: Where it is.
        asked: How often it has answered each prompt.
        accepted: How many connections.
        dropped: How many requests it has not looked at, for it had closed before they came.
        turn: How many requests have come.
    """

    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    dropped: int = 0
    turn: int = 0


class Closing(asyncio.Protocol):
    """Of four requests it answers two as it should, and one shortly before it closes.

    The fourth, where its connection was used before, finds it closed: by FIN or by RST.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unread = b""
        self._answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        self._engine.accepted += 1
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        self._unread += data
        head, _, body = self._unread.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        if length and len(body) == int(length):
            self._unread = b""
            self._take(json.loads(body)["messages"][0]["content"])

    def _take(self, prompt: str) -> None:
        engine = self._engine
        engine.turn += 1
        if engine.turn % 4 == 3 and self._answered:
            engine.dropped += 1
            if engine.turn % 8 == 3:
                self._reset_on_close()
            self._transport.close()
            return
        engine.asked[prompt] += 1
        self._answered += 1
        self._transport.write(ANSWER)
        if engine.turn % 2:
            after(engine.turn % 7, self._transport.close)

    def _reset_on_close(self) -> None:
        side = self._transport.get_extra_info("socket")
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """The engine."""
    made = Engine()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Closing(made), "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    server.close()


async def test_no_request_is_lost_or_asked_twice(proxy: Launch, engine: Engine) -> None:
    """No client hears of a connection that was closed, and no prompt is worked on a second time."""
    running = await proxy(upstream_url=engine.url)

    async def some(first: int) -> None:
        client = await running.connect()
        for number in range(first, REQUESTS, CLIENTS):
            answer = await client.request("POST", CHAT, AUTHORIZED, chat(str(number)))
            assert (answer.status, answer.body) == (200, COMPLETION)

    await asyncio.gather(*map(some, range(CLIENTS)))
    assert engine.asked == {str(number): 1 for number in range(REQUESTS)}
    assert engine.accepted > REQUESTS // 4
    assert engine.dropped > REQUESTS // 20
