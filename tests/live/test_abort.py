"""Promise 4 in front of real engines: when the client leaves, the engine stops within a second.

What counts is what the engine says of itself: its gauges of requests that it works on and of those
that wait in it. How long they take is measured from the moment that the client leaves.
"""

import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from tests.harness.awake import soon
from tests.harness.client import RawClient, request_bytes
from tests.harness.engines import Engine
from tests.harness.figures import Figures
from tests.harness.running import BEARER, CHAT, JSON, Running
from tests.live.conftest import Live

pytestmark = pytest.mark.both_ways

WITHIN_SECONDS = 1.0
"""Our part, from the client's leaving to the end of our connection to the engine, or of its place in
our queue: every time. See `soon` for how it is counted."""

PATIENCE = 5
"""How many times its usual one the engine may take. What it says of itself lags behind: vLLM updates
its gauges with its next step, which another engine's test or a busy machine holds up, and nothing of
that is ours. So its rest is held to its bound at the median, and to so many times that on every run."""

TITLE = "Hang-ups: from the client's leaving to the engine's rest"
LONG = 30_000
"""Tokens: longer than any test."""


def runs(engine: Engine) -> int:
    """How often each of these is done."""
    return {"vllm-stub": 20, "vllm-cpu": 10, "llamacpp": 3}[engine.name]


def body(*, stream: bool, text: str = "hello") -> bytes:
    """What takes an engine long to answer."""
    messages = [{"role": "user", "content": text}]
    fields = {"model": "m", "messages": messages, "max_tokens": LONG, "ignore_eos": True}
    return json.dumps({**fields, "stream": stream}).encode()


def hang_up(client: RawClient, turn: int) -> None:
    """Leaves, politely or not."""
    if turn % 2:
        client.reset()
    else:
        client.close()


async def send(running: Running, body: bytes) -> RawClient:
    """Begins a chat through the proxy."""
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body))
    return client


@contextlib.asynccontextmanager
async def filled(engine: Engine) -> AsyncIterator[None]:
    """The engine works on as much as it can, for others than the proxy."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(engine.kind.seats):
            client = await stack.enter_async_context(
                await RawClient.open("127.0.0.1", engine.port, timeout=60)
            )
            await client.send(request_bytes("POST", CHAT, JSON, body(stream=False)))
        await engine.until_load(engine.kind.seats, 0)
        yield
    await engine.idle()


def closed(running: Running, index: int) -> Callable[[], bool]:
    """Whether we have closed this connection to the engine."""
    return running.upstream.connections[index].closed.is_set


class Times:
    """How long hang-ups took, for the figures."""

    def __init__(self, figures: Figures, engine: Engine, mode: str) -> None:
        self._figures = figures
        self._row = f"{engine.name}, {mode}"
        self._seconds: list[float] = []
        self._closed: list[float] = []

    async def left(self, running: Running, turn: int, rest: Callable[[], Awaitable[float]]) -> None:
        """One more: until the engine's socket is closed, by us, and until the engine rests."""
        started = time.perf_counter()
        await soon(closed(running, turn))
        self._closed.append(time.perf_counter() - started)
        await rest()
        self.add(time.perf_counter() - started)
        self._figures.add(TITLE, self._row, worst_to_its_socket_ms=max(self._closed) * 1000)

    def add(self, seconds: float) -> None:
        """One more, as measured."""
        self._seconds.append(seconds)
        self._figures.add(
            TITLE,
            self._row,
            runs=len(self._seconds),
            median_ms=statistics.median(self._seconds) * 1000,
            worst_ms=max(self._seconds) * 1000,
        )

    def assert_soon(self, within: float) -> None:
        """Half of them at least; our own part is asserted of each as it happens."""
        assert statistics.median(self._seconds) <= within


async def assert_all_left(running: Running, hang_ups: int) -> None:
    """Every request is recorded as left by its client, and holds nothing any more."""
    await running.idle()
    outcomes = [line["outcome"] for line in running.log.requests()]
    assert outcomes == ["client_disconnected"] * hang_ups
    assert running.bulwark.lifelines.in_flight == 0
    for gauge in ("bulwark_slots_in_use", "bulwark_queue_length", "bulwark_buffered_bytes"):
        assert running.registry.get_sample_value(gauge) == 0
    await soon(lambda: running.upstream.open_connections == 0)


BOTH_KINDS = pytest.mark.parametrize("stream", [False, True], ids=["one piece", "stream"])


def kind(stream: bool) -> str:
    """What the figures call it."""
    return "stream" if stream else "one piece"


@BOTH_KINDS
async def test_hang_up_while_the_engine_works(
    live: Live, engine: Engine, figures: Figures, stream: bool
) -> None:
    """It stops: during an answer in one piece, and in mid-stream."""
    running = await live(max_output_tokens=LONG)
    times = Times(figures, engine, kind(stream))
    await engine.idle()
    for turn in range(runs(engine)):
        client = await send(running, body(stream=stream))
        if stream:
            assert (await client.read_head()).status == 200
            for _number in range(3):
                assert await client.read_chunk()
        await engine.until_load(1, 0)
        hang_up(client, turn)
        await times.left(running, turn, partial(engine.idle, PATIENCE * engine.kind.rest_seconds))
    times.assert_soon(engine.kind.rest_seconds)
    await assert_all_left(running, runs(engine))


@BOTH_KINDS
async def test_hang_up_while_the_engine_reads(
    live: Live, engine: Engine, figures: Figures, stream: bool
) -> None:
    """A long prompt, each time another, so that none is remembered."""
    running = await live(max_output_tokens=LONG)
    times = Times(figures, engine, f"long prompt, {kind(stream)}")
    await engine.idle()
    for turn in range(runs(engine)):
        client = await send(running, body(stream=stream, text=f"{turn} {stream} " * 1_000))
        await engine.until_load(1, 0)
        hang_up(client, turn)
        await times.left(running, turn, partial(engine.idle, PATIENCE * engine.kind.rest_seconds))
    times.assert_soon(engine.kind.rest_seconds)
    await assert_all_left(running, runs(engine))


@BOTH_KINDS
async def test_hang_up_in_the_engines_queue(
    live: Live, engine: Engine, figures: Figures, stream: bool
) -> None:
    """It forgets the request, and goes on with the others."""
    running = await live(max_output_tokens=LONG)
    times = Times(figures, engine, f"engine's queue, {kind(stream)}")
    await engine.idle()
    seats = engine.kind.seats
    async with filled(engine):
        for turn in range(runs(engine)):
            client = await send(running, body(stream=stream))
            await engine.until_load(seats, 1)
            hang_up(client, turn)
            rest = partial(engine.until_load, seats, 0, PATIENCE * engine.kind.rest_seconds)
            await times.left(running, turn, rest)
    times.assert_soon(engine.kind.rest_seconds)
    await assert_all_left(running, runs(engine))


@BOTH_KINDS
async def test_hang_up_in_the_proxys_queue(
    live: Live, engine: Engine, figures: Figures, stream: bool
) -> None:
    """The engine never hears of those that waited; the one that ran makes room for the next."""
    running = await live(max_output_tokens=LONG, max_inflight=1)
    times = Times(figures, engine, f"proxy's queue, {kind(stream)}")
    await engine.idle()

    def queued(number: int) -> Callable[[], bool]:
        return lambda: running.metric("bulwark_queue_length") == number

    def asked(number: int) -> Callable[[], bool]:
        return lambda: len(running.upstream.requests) >= number

    def state() -> str:
        gauges = (running.metric("bulwark_slots_in_use"), running.metric("bulwark_queue_length"))
        requests, connections = running.upstream.requests, running.upstream.connections
        return f"{len(requests)} on {len(connections)}, {gauges}: {running.log.text[-2000:]}"

    first = await send(running, body(stream=stream))
    await engine.until_load(1, 0)
    for turn in range(runs(engine)):
        waits = await send(running, body(stream=stream))
        await soon(queued(1), PATIENCE)
        started = time.perf_counter()
        hang_up(waits, turn)
        await soon(queued(0))
        times.add(time.perf_counter() - started)
    times.assert_soon(WITHIN_SECONDS)
    assert len(running.upstream.requests) == 1
    for turn in range(runs(engine)):
        following = await send(running, body(stream=stream))
        await soon(queued(1), PATIENCE)
        hang_up(first, turn)
        # Its seat is taken again at once, by the one that waited: both have to be told apart.
        await soon(closed(running, turn))
        # No part of a hang-up: this waits for as long as an engine may hold the machine up.
        await soon(asked(turn + 2), 30, state)
        first = following
    await engine.until_load(1, 0)
    first.close()
    await engine.idle(PATIENCE * engine.kind.rest_seconds)
    await assert_all_left(running, 2 * runs(engine) + 1)
    assert len(running.upstream.requests) == runs(engine) + 1
