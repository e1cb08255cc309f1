"""What a connection still holds of the last request while it waits for the next: nothing."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.pipe import CLIENT
from proxy.server.cycle import Cycle
from tests.harness.client import RawClient, request_bytes
from tests.harness.served import Receive, Scope, Send, Serve, Served, answer

LARGE = {f"X-{number}": "x" * 1_000 for number in range(20)}
HELD = 100  # a name here and there
BODY = b"x" * 3_000


class Ends:
    """Is called when the client leaves."""

    def __call__(self, refusal: object) -> None:
        """It has."""


class Strict:
    """Answers 401 and reads nothing; it would be told if its client left."""

    def __init__(self) -> None:
        self.told: list[weakref.ref[Ends]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        ends = Ends()
        self.told.append(weakref.ref(ends))
        scope["extensions"][CLIENT].on_disconnect(ends)
        await answer(send, 401, b"who are you?")


def held(connection: Any) -> Iterator[int]:
    """How much is in each of its own fields, and in those of its cycle, that may hold a request."""
    cycle: Cycle = connection.cycle
    values = [*vars(connection).values(), *(getattr(cycle, name) for name in Cycle.__slots__)]
    for value in values:
        if isinstance(value, bytes | bytearray):
            yield len(value)
        elif isinstance(value, list):
            yield from (len(part) for field in value for part in field)


async def one_request(served: Served, client: RawClient, data: bytes) -> None:
    """Asks, and reads the answer of a connection that goes on."""
    await client.send(data)
    response = await client.read_response()
    assert (response.status, response.header(b"connection")) == (401, None)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request_bytes("GET", "/" + "x" * 4_000), id="a target"),
        pytest.param(request_bytes("GET", "/", LARGE), id="a head"),
        pytest.param(request_bytes("POST", "/", {}, BODY), id="a body that was not read"),
    ],
)
async def test_nothing_is_kept_of_what_was_answered(serve: Serve, data: bytes) -> None:
    """Else a thousand strangers that wait would hold what each has sent for minutes."""
    app = Strict()
    served = await serve(app)
    async with await served.connect() as client:
        for _ in range(2):
            await one_request(served, client, data)
            [connection] = served.state.connections
            assert sum(held(connection)) < HELD
            assert app.told[-1]() is None
