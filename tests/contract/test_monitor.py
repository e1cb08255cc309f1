"""The monitor beside the requests, over real sockets: what it notices, tells and leaves alone."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from proxy.app import Clocks
from proxy.upstream import target as targets
from proxy.upstream import transport as transports
from proxy.upstream.monitor import Monitor
from proxy.upstream.states import State
from tests.harness import upstream as upstreams
from tests.harness.awake import counting
from tests.harness.running import Launch, Running
from tests.harness.upstream import (
    COMPLETION,
    End,
    ReceivedRequest,
    Script,
    Step,
    Upstream,
    chunk,
    response,
)

SECONDS = 20.0
"""How long a change may take that three looks are needed for."""

PAGE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def page(pool: int = 186_624, running: int = 0, waiting: int = 0, started: int = 1) -> bytes:
    """A small page of vLLM's."""
    return (
        f"process_start_time_seconds {started}\n"
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        f"vllm:kv_cache_usage_perc 0.5\nvllm:generation_tokens_total 7\n"
        f'vllm:cache_config_info{{kv_cache_size_tokens="{pool}"}} 1\n'
    ).encode()


class Engine:
    """What an upstream answers: to the monitor what the test says, to others a completion."""

    def __init__(self, upstream: Upstream) -> None:
        self.health: Script = [response(b"")]
        self.metrics: Script = [response(page())]
        self._once: list[Script] = []
        self.looks = 0
        upstream.reply = self

    def fails_once(self, *steps: Step) -> None:
        """Its next answer for its health."""
        self._once.append(steps)

    def __call__(self, request: ReceivedRequest) -> Script:
        """The answer."""
        if request.target == b"/metrics":
            return self.metrics
        if request.target == b"/health":
            self.looks += 1
            return self._once.pop(0) if self._once else self.health
        return [response(COMPLETION)]


async def told(front: Running) -> tuple[int, str, str]:
    """What /readyz says: its status, the state and why."""
    answer = await front.ask_admin("GET", "/readyz")
    assert (answer.header(b"retry-after") is None) is (answer.status == 200)
    upstream = answer.json()["upstream"]
    return answer.status, upstream["state"], upstream["reason"]


async def until(front: Running, state: str, times: int = 1) -> None:
    """Returns once the upstream was so often said to be in this state."""
    await front.log.until(
        lambda: front.log.text.count(f'"event":"upstream","state":"{state}"') >= times,
        within=SECONDS,
    )


async def test_the_states_of_an_engine(proxy: Launch) -> None:
    """Ready, saturated, down, ready: at /readyz, in the metrics and in the log."""
    front = await proxy(monitor_transport=None)
    engine = Engine(front.upstream)
    assert await told(front) == (200, "ready", "")
    engine.metrics = [response(page(waiting=3))]
    await until(front, "saturated")
    assert await told(front) == (200, "saturated", "requests_wait")
    assert front.metric("bulwark_upstream_state", state="saturated") == 1
    engine.metrics = [response(page())]
    engine.health = [response(b"", 500)]
    await until(front, "down")
    assert await told(front) == (503, "down", "failing")
    assert front.metric("bulwark_upstream_state", state="down") == 1
    assert front.metric("bulwark_upstream_state", state="saturated") == 0
    # Told, and nothing more: whoever asks all the same is served as far as it goes.
    assert (await front.chat()).status == 200
    engine.health = [response(b"")]
    await until(front, "ready", times=2)
    assert await told(front) == (200, "ready", "")
    lines = [json.loads(line) for line in front.log.text.splitlines()]
    seen = [(line["state"], line["reason"]) for line in lines if line["event"] == "upstream"]
    assert seen == [
        ("ready", None),
        ("saturated", "requests_wait"),
        ("down", "failing"),
        ("ready", None),
    ]


async def test_a_hiccup_is_not_told(proxy: Launch) -> None:
    """One bad answer, of whatever kind, and readiness stays what it is."""
    front = await proxy(monitor_transport=None)
    engine = Engine(front.upstream)
    assert await told(front) == (200, "ready", "")
    for steps in ([response(b"", 500)], [End.RESET], [response(b"", 503)]):
        looks = engine.looks
        engine.fails_once(*steps)
        while engine.looks < looks + 2:
            await front.upstream.request(len(front.upstream.requests), within=SECONDS)
            assert await told(front) == (200, "ready", "")
    assert front.log.text.count('"event":"upstream"') == 1


async def test_an_engine_that_hangs_is_noticed_and_still_asked(proxy: Launch) -> None:
    """Well by its own account; a request runs, and for a minute it has generated nothing."""
    now = 1000.0
    front = await proxy(monitor_transport=None, clocks=Clocks(monotonic=lambda: now))
    engine = Engine(front.upstream)
    engine.metrics = [response(page(running=1))]
    assert await told(front) == (200, "ready", "")
    now += 59
    looks = engine.looks
    while engine.looks < looks + 2:
        await front.upstream.request(len(front.upstream.requests), within=SECONDS)
    assert await told(front) == (200, "ready", "")
    now += 2
    await until(front, "down")
    assert await told(front) == (503, "down", "stalled")
    assert (await front.chat()).status == 200
    engine.metrics = [response(page(running=0))]
    await until(front, "ready", times=2)


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("interim", "state", "reason"),
    [
        pytest.param(8, "ready", "", id="many interim answers"),
        pytest.param(9, "starting", "broken", id="too many"),
    ],
)
async def test_an_answer_that_does_not_begin(
    proxy: Launch, interim: int, state: str, reason: str
) -> None:
    """Neither for its health nor with its figures, of which none are needed to be ready."""
    front = await proxy(monitor_transport=None)
    engine = Engine(front.upstream)
    head = INTERIM * interim
    engine.health = [head, response(b"")]
    assert await told(front) == (200 if state == "ready" else 503, state, reason)
    engine.health = [response(b"")]
    engine.metrics = [head, response(page(pool=50_000))]
    await until(front, "ready")
    looks = engine.looks
    while engine.looks < looks + 2:
        await front.upstream.request(len(front.upstream.requests), within=SECONDS)
    status = (await front.ask_admin("GET", "/status")).json()
    assert (status["upstream"]["pool_tokens"] == 50_000) is (state == "ready")
    assert ("broken" in status["upstream"]["ignored_pages"]) is (state != "ready")


async def test_what_is_no_engine(proxy: Launch) -> None:
    """Served all the same, as one that is behind something else may not show itself; but told."""
    front = await proxy(monitor_transport=None)
    engine = Engine(front.upstream)
    engine.health = engine.metrics = [response(b"", 404)]
    assert await told(front) == (200, "ready", "no_health_page")
    assert (await front.ask_admin("GET", "/status")).json()["upstream"]["reason"] == (
        "no_health_page"
    )
    await front.log.until(lambda: '"reason":"no_health_page"' in front.log.text, within=SECONDS)
    assert (await front.chat()).status == 200


async def test_a_restart_brings_another_pool(proxy: Launch) -> None:
    """Which is in force at once, and told; before, metrics that fail change nothing."""
    front = await proxy(monitor_transport=None)
    engine = Engine(front.upstream)
    await until(front, "ready")
    budget = (await front.ask_admin("GET", "/readyz")).json()["kv_budget"]
    assert (budget["state"], budget["pool_tokens"]) == ("on", 186_624)
    engine.metrics = [response(b"", 500)]
    engine.health = [End.RESET]
    await until(front, "down")
    status = (await front.ask_admin("GET", "/status")).json()
    assert status["upstream"]["pool_tokens"] == status["kv_budget"]["pool_tokens"] == 186_624
    engine.metrics = [response(page(pool=50_000, started=2))]
    engine.health = [response(b"", 503)]  # it loads
    looks = engine.looks
    while engine.looks < looks + 2:
        await front.upstream.request(len(front.upstream.requests), within=SECONDS)
    engine.health = [response(b"")]
    await until(front, "ready", times=2)
    status = (await front.ask_admin("GET", "/status")).json()
    assert (status["upstream"]["restarts"], status["kv_budget"]["pool_tokens"]) == (1, 50_000)


async def test_it_neither_waits_for_requests_nor_shows_a_key(proxy: Launch) -> None:
    """All places are taken by a request that hangs, and it looks; what it asks has no key."""
    front = await proxy(
        monitor_transport=None, max_inflight=1, queue_size=0, upstream_api_key="up-" + "u" * 40
    )
    engine = Engine(front.upstream)
    await until(front, "ready")
    front.upstream.reply = lambda request: (
        [End.SILENCE] if request.target not in {b"/health", b"/metrics"} else engine(request)
    )
    asking = asyncio.create_task(front.chat())
    looks = engine.looks
    while engine.looks < looks + 3 or not front.upstream.asked:
        await front.upstream.request(len(front.upstream.requests), within=SECONDS)
    assert await told(front) == (200, "ready", "")
    for request in front.upstream.requests:
        ours = request.target in {b"/health", b"/metrics"}
        assert (request.header(b"authorization") is None) is ours
    front.stop.set()
    front.hurry.set()
    await asyncio.gather(asking, return_exceptions=True)


async def test_it_ends_with_the_server(proxy: Launch) -> None:
    """Even while the engine is silent; its connections are closed."""
    front = await proxy(monitor_transport=None)
    engine = Engine(front.upstream)
    engine.health = [End.SILENCE]
    await front.upstream.request(0)
    front.stop.set()
    async with asyncio.timeout(SECONDS):
        assert await asyncio.shield(front.served) == 0
    await front.upstream.all_closed()


# The monitor alone, over the transport that it has in a proxy.


@asynccontextmanager
async def watching(
    on_fault: Callable[[Exception], object] | None = None,
) -> AsyncIterator[tuple[Monitor, Upstream, Engine]]:
    """A monitor that looks when it is told to, and what it looks at."""
    async with upstreams.serve() as upstream:
        target = targets.parse(upstream.url)
        transport = transports.build(target)
        faults: list[Exception] = []
        monitor = Monitor(transport, target, on_fault=on_fault or faults.append)
        try:
            yield monitor, upstream, Engine(upstream)
        finally:
            await transport.aclose()
        assert faults == []


async def test_it_keeps_its_connection() -> None:
    """Ten looks, twenty questions, one connection; a stale one is replaced without a word."""
    async with watching() as (monitor, upstream, _):
        for _ in range(10):
            await monitor.look()
        assert (len(upstream.requests), len(upstream.connections)) == (20, 1)
        upstream.connections[0].close()
        await upstream.connection_closed(0)
        await monitor.look()
        assert (monitor.state, len(upstream.connections)) == (State.READY, 2)
        assert sum(monitor.ignored.values()) == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param([End.SILENCE], "late", id="no answer"),
        pytest.param([PAGE_HEAD, End.SILENCE], "late", id="a head and nothing more"),
        pytest.param([PAGE_HEAD, chunk(page()), End.SILENCE], "late", id="all but its end"),
        pytest.param([PAGE_HEAD, chunk(page()), End.RESET], "broken", id="broken off"),
        pytest.param([b"nonsense\r\n\r\n"], "broken", id="no HTTP"),
        pytest.param([response(page(), content_length=4 << 30)], "late", id="too short a body"),
    ],
)
async def test_a_page_that_does_not_come(script: list[Step], reason: str) -> None:
    """Given up after a second; the engine is well all the same, and the next page is read."""
    async with watching() as (monitor, _, engine):
        engine.metrics = script
        began = time.monotonic()
        async with counting() as awake:
            await monitor.look()
            assert awake() < 2.0
        assert (monitor.state, monitor.reading) == (State.READY, None)
        assert monitor.ignored[reason] == sum(monitor.ignored.values()) == 1
        engine.metrics = [response(page())]
        while monitor.reading is None:
            await monitor.look()
        assert time.monotonic() - began < SECONDS
        assert monitor.pool_tokens == 186_624


async def test_a_silent_engine_is_given_up() -> None:
    """After two seconds for its health, and one for its figures."""
    async with watching() as (monitor, upstream, engine):
        await monitor.look()
        engine.health = engine.metrics = [End.SILENCE]
        began = time.monotonic()
        async with counting() as awake:
            await monitor.look()
            assert time.monotonic() - began > 2.9
            assert awake() < 6.0
        assert monitor.ignored["late"] == 1
        await upstream.all_closed()


def in_pieces(body: bytes, size: int) -> Iterator[bytes]:
    """A chunked body in chunks of this size."""
    yield PAGE_HEAD
    for start in range(0, len(body), size):
        yield chunk(body[start : start + size])
    yield b"0\r\n\r\n"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(list(in_pieces(page(), 1)), id="byte by byte"),
        pytest.param(list(in_pieces(page() + b"# x\n" * 9_000, 99)), id="many chunks"),
    ],
)
async def test_a_page_in_pieces(script: list[Step]) -> None:
    """However it is cut, as long as it comes within its second."""
    async with watching() as (monitor, _, engine):
        engine.metrics = script
        await monitor.look()
        assert monitor.pool_tokens == 186_624
