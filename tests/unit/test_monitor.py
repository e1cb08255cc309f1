"""The monitor: what it asks and when, what it tells, and that nothing ends it."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping

import httpx
import pytest

from proxy.upstream import target as targets
from proxy.upstream.monitor import IGNORED_REASONS, Monitor
from proxy.upstream.readings import MAX_PAGE_BYTES, Reading
from proxy.upstream.states import State

TARGET = targets.parse("http://engine:8000")


def page(pool: int | None = 186_624, running: int = 0, waiting: int = 0, tokens: int = 0) -> bytes:
    """A small page of vLLM."""
    shown = "None" if pool is None else pool
    return (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        f"vllm:generation_tokens_total {tokens}\n"
        f'vllm:cache_config_info{{kv_cache_size_tokens="{shown}"}} 1\n'
    ).encode()


class Body(httpx.AsyncByteStream):
    """A body that knows whether it was closed."""

    def __init__(self, content: bytes, crumbs: int = 0) -> None:
        self._content = content
        self._crumbs = crumbs
        self.sent_bytes = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(self._crumbs):
            yield self._content[start : start + 1]
        for start in range(self._crumbs, len(self._content), 64 * 1024):
            piece = self._content[start : start + 64 * 1024]
            self.sent_bytes += len(piece)
            yield piece

    async def aclose(self) -> None:
        """Closed."""
        self.closed = True


Answer = tuple[int, bytes] | tuple[int, bytes, Mapping[str, str]] | Exception


class Engine(httpx.AsyncBaseTransport):
    """An engine by hand: what it answers to each path, and what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {"/health": (200, b""), "/metrics": (200, page())}
        self.asked: list[httpx.Request] = []
        self.bodies: list[Body] = []
        self.crumbs = 0
        self.gate: asyncio.Event | None = None
        self.at_gate = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answers, once the gate is open."""
        self.asked.append(request)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            if self.gate is not None:
                self.at_gate.set()
                await self.gate.wait()
        finally:
            self.at_once -= 1
        answer = self.answers[request.url.path]
        if isinstance(answer, Exception):
            raise answer
        status, content, *headers = answer
        self.bodies.append(Body(content, self.crumbs))
        return httpx.Response(status, headers=dict(*headers), stream=self.bodies[-1])

    def paths(self) -> list[str]:
        """What it was asked since the last time."""
        paths = [request.url.path for request in self.asked]
        self.asked.clear()
        return paths


class Watched:
    """A monitor of such an engine, on a clock that stands still, with all that it tells."""

    def __init__(self, **options: Callable[..., object]) -> None:
        self.engine = Engine()
        self.now = 1000.0
        self.told: list[object] = []
        self.monitor = Monitor(
            self.engine,
            TARGET,
            clock=lambda: self.now,
            **{  # type: ignore[arg-type]
                "on_reading": self.told.append,
                "on_state": lambda *state: self.told.append(state),
                "on_fault": self.told.append,
                **options,
            },
        )

    async def looks(self, times: int = 1, after: float = 1.0) -> None:
        """Looks so many times, a second apart."""
        for _ in range(times):
            await self.monitor.look()
            self.now += after

    def states(self) -> list[object]:
        """The changes of state that it told."""
        return [told for told in self.told if isinstance(told, tuple)]


async def test_one_look() -> None:
    """Health, then metrics; no key, no compression; told are the state and the reading."""
    watched = Watched()
    assert (watched.monitor.state, watched.monitor.last_ok_seconds_ago) == (State.STARTING, None)
    await watched.looks()
    assert [str(request.url) for request in watched.engine.asked] == [
        "http://engine:8000/health",
        "http://engine:8000/metrics",
    ]
    for request in watched.engine.asked:
        assert request.method == "GET"
        assert request.headers == {"host": "engine:8000", "accept-encoding": "identity"}
    state, reading = watched.told
    assert state == (State.READY, "")
    assert reading is watched.monitor.reading
    assert isinstance(reading, Reading)
    assert reading.pool_tokens == watched.monitor.pool_tokens == 186_624
    assert watched.monitor.last_ok_seconds_ago == watched.monitor.since_seconds == 1.0
    assert all(body.closed for body in watched.engine.bodies)
    await watched.looks()
    assert watched.told[2:] == [watched.monitor.reading]


@pytest.mark.parametrize(
    ("answer", "reason", "again"),
    [
        pytest.param((404, page()), "absent", 10, id="no such page"),
        pytest.param((401, page()), "absent", 10, id="a key is wanted"),
        pytest.param((200, b"hello"), "no_series", 10, id="no engine's page"),
        pytest.param((200, page(5)), "impossible_pool", 10, id="a pool of 5 tokens"),
        pytest.param((200, page(2**40 + 1)), "impossible_pool", 10, id="a pool beyond belief"),
        pytest.param((200, page() + b"\n" * 40_000), "too_complex", 10, id="too many lines"),
        pytest.param((200, page() + b" " * MAX_PAGE_BYTES), "too_large", 10, id="over 4 MiB"),
        pytest.param(
            (200, page(), {"content-encoding": "gzip"}), "compressed", 10, id="compressed"
        ),
        pytest.param(httpx.ReadError(""), "broken", 1, id="it breaks off"),
        pytest.param(httpx.ReadTimeout(""), "broken", 1, id="a time-out of the transport's"),
        pytest.param(TimeoutError(), "late", 1, id="late"),
    ],
)  # fmt: skip
async def test_a_page_that_is_not_used(answer: Answer, reason: str, again: int) -> None:
    """Is counted, and changes nothing; where the next is no better, it is asked for seldom."""
    watched = Watched()
    await watched.looks()
    watched.engine.answers["/metrics"] = answer
    await watched.looks()
    assert watched.monitor.ignored == {each: int(each == reason) for each in IGNORED_REASONS}
    assert (watched.monitor.state, watched.monitor.pool_tokens) == (State.READY, 186_624)
    assert all(body.closed for body in watched.engine.bodies)
    watched.engine.paths()
    watched.engine.answers["/metrics"] = (200, page(5_000))
    await watched.looks(again - 1)
    assert "/metrics" not in watched.engine.paths()
    await watched.looks()
    assert watched.monitor.pool_tokens == 5_000


async def test_no_more_is_read_of_a_page_than_may_be_used() -> None:
    """Of one that does not end, either."""
    watched = Watched()
    watched.engine.answers["/metrics"] = (200, b" " * (3 * MAX_PAGE_BYTES))
    watched.engine.answers["/health"] = (200, b" " * (3 * MAX_PAGE_BYTES))
    await watched.looks()
    health, metrics = watched.engine.bodies
    assert health.sent_bytes <= 2 * 64 * 1024
    assert MAX_PAGE_BYTES < metrics.sent_bytes <= MAX_PAGE_BYTES + 64 * 1024
    assert (watched.monitor.state, health.closed, metrics.closed) == (State.READY, True, True)


@pytest.mark.parametrize(
    ("crumbs", "used"),
    [
        pytest.param(1_000, True, id="a thousand single bytes"),
        pytest.param(1_002, False, id="two more"),
    ],
)
async def test_a_page_in_crumbs(crumbs: int, used: bool) -> None:
    """Each costs as much as a large piece; that much time is nobody's to take."""
    watched = Watched()
    watched.engine.crumbs = crumbs
    watched.engine.answers = {
        "/health": (200, b" " * 5_000),
        "/metrics": (200, page() + b" " * 5_000),
    }
    await watched.looks()
    assert (watched.monitor.state is State.READY) is used
    assert all(body.closed for body in watched.engine.bodies)
    watched.engine.answers["/health"] = (200, b"")
    watched.engine.crumbs = 0
    await watched.looks()
    watched.engine.crumbs = crumbs
    await watched.monitor._page()
    assert (watched.monitor.ignored["too_complex"] == 0) is used
    assert watched.monitor.state is State.READY


@pytest.mark.parametrize("answer", [TimeoutError(), httpx.ReadError("")], ids=["late", "broken"])
async def test_pages_that_do_not_come_are_asked_for_ever_less(answer: Exception) -> None:
    """After 1, 2, 4, 8 and then 10 s; its health each second; and all as before once one comes."""
    watched = Watched()
    watched.engine.answers["/metrics"] = answer
    asked = []
    for second in range(40):
        await watched.looks()
        if "/metrics" in watched.engine.paths():
            asked.append(second)
    assert asked == [0, 1, 3, 7, 15, 25, 35]
    assert watched.monitor.state is State.READY
    watched.engine.answers["/metrics"] = (200, page())
    await watched.looks(6)
    watched.engine.paths()
    watched.engine.answers["/metrics"] = answer
    await watched.looks(2)
    assert watched.engine.paths().count("/metrics") == 2


@pytest.mark.parametrize(
    ("health", "metrics", "reason"),
    [
        pytest.param((404, b""), (404, b""), "no_health_page", id="neither page"),
        pytest.param((404, b""), (200, b"hello"), "no_health_page", id="another's page"),
        pytest.param((404, b""), (200, page()), "", id="figures of an engine"),
        pytest.param((200, b""), (404, b""), "", id="health only"),
        pytest.param((401, b""), (401, b""), "", id="it wants a key"),
    ],
)
async def test_what_looks_like_no_engine(health: Answer, metrics: Answer, reason: str) -> None:
    """It is served, and what is odd about it is told, once."""
    watched = Watched()
    watched.engine.answers = {"/health": health, "/metrics": metrics}
    await watched.looks(3)
    assert (watched.monitor.state, watched.monitor.reason) == (State.READY, reason)
    assert watched.states() == [(State.READY, reason)]


def connect_error(cause: OSError) -> httpx.ConnectError:
    """As a transport may raise it: from None, which hides the cause."""
    error = httpx.ConnectError("")
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        pytest.param((200, b""), State.READY, "", id="200"),
        pytest.param((401, b""), State.READY, "", id="it wants a key for its health"),
        pytest.param((404, b""), State.READY, "", id="it does not know the question, but serves"),
        pytest.param((503, b""), State.DOWN, "unavailable", id="503"),
        pytest.param((500, b""), State.DOWN, "failing", id="500"),
        pytest.param(TimeoutError(), State.DOWN, "silent", id="no answer"),
        pytest.param(httpx.ConnectTimeout(""), State.DOWN, "silent", id="no connection in time"),
        pytest.param(httpx.RemoteProtocolError(""), State.DOWN, "broken", id="no HTTP"),
        pytest.param(httpx.ReadError(""), State.DOWN, "broken", id="it breaks off"),
        pytest.param(RuntimeError("canary"), State.DOWN, "bug", id="a bug of ours"),
        pytest.param(
            connect_error(ConnectionRefusedError()), State.STARTING, "refused", id="refused"
        ),
        pytest.param(
            connect_error(OSError("Multiple exceptions: [Errno 111] x, [Errno 111] y")),
            State.STARTING,
            "refused",
            id="refused at both of its addresses",
        ),
        pytest.param(
            connect_error(FileNotFoundError()), State.STARTING, "refused", id="no such socket"
        ),
        pytest.param(
            connect_error(socket.gaierror(-2, "canary")),
            State.STARTING,
            "unknown_host",
            id="no such name",
        ),
        pytest.param(connect_error(ssl.SSLError("canary")), State.DOWN, "tls", id="TLS"),
        pytest.param(
            connect_error(OSError(113, "canary")), State.DOWN, "unreachable", id="no way there"
        ),
    ],
)
async def test_what_its_health_means(answer: Answer, state: State, reason: str) -> None:
    """To an engine that was ready: nothing at first, and this at the third time."""
    watched = Watched(on_fault=lambda _: None)
    await watched.looks()
    watched.engine.answers = {"/health": answer, "/metrics": (404, b"")}
    await watched.looks(2)
    assert watched.monitor.state is State.READY
    await watched.looks()
    assert (watched.monitor.state, watched.monitor.reason) == (state, reason)
    changes: list[object] = [(State.READY, "")]
    assert watched.states() == changes + ([(state, reason)] if reason else [])


async def test_silence_is_no_sign_while_its_figures_move() -> None:
    """SGLang answers for its health behind whatever else it generates."""
    watched = Watched()
    await watched.looks()
    watched.engine.answers["/health"] = TimeoutError()
    for tokens in range(1, 10):
        watched.engine.answers["/metrics"] = (200, page(running=1, tokens=tokens))
        await watched.looks()
    assert watched.monitor.state is State.READY
    await watched.looks(3)
    assert (watched.monitor.state, watched.monitor.reason) == (State.DOWN, "silent")


async def test_a_stalled_engine_is_told() -> None:
    """Its health is good to the end."""
    watched = Watched()
    watched.engine.answers["/metrics"] = (200, page(running=2, tokens=7))
    await watched.looks(60)
    assert watched.monitor.state is State.READY
    await watched.looks()
    assert watched.states() == [(State.READY, ""), (State.DOWN, "stalled")]
    assert watched.monitor.since_seconds == 1.0


async def test_a_pool_stays_until_another_is_shown() -> None:
    """Whatever the pages in between do not tell."""
    watched = Watched()
    await watched.looks()
    for answer in ((200, page(None)), (404, b"")):
        watched.engine.answers["/metrics"] = answer
        await watched.looks()
        assert watched.monitor.pool_tokens == 186_624
    assert watched.monitor.reading is not None
    assert watched.monitor.reading.pool_tokens is None


async def test_a_page_is_asked_for_at_once_after_a_restart() -> None:
    """Even if there was none before: the engine may have been started with other options."""
    watched = Watched()
    watched.engine.answers["/metrics"] = (404, b"")
    await watched.looks()
    watched.engine.answers["/health"] = connect_error(ConnectionRefusedError())
    await watched.looks()
    assert watched.engine.paths() == ["/health", "/metrics", "/health"]
    watched.engine.answers = {"/health": (200, b""), "/metrics": (200, page())}
    await watched.looks()
    assert watched.monitor.pool_tokens == 186_624


async def test_llamacpp_is_asked_for_its_page_less_often() -> None:
    """Or it would never notice that a client has left."""
    watched = Watched()
    watched.engine.answers["/metrics"] = (200, b"llamacpp:requests_processing 0\n")
    await watched.looks(11)
    assert watched.engine.paths().count("/metrics") == 3


async def test_sglang_may_be_asked_elsewhere() -> None:
    """Where its health costs no token."""
    engine = Engine()
    engine.answers["/ready"] = (200, b"")
    monitor = Monitor(engine, TARGET, health_path="/ready")
    await monitor.look()
    assert (monitor.state, engine.paths()) == (State.READY, ["/ready", "/metrics"])


async def test_a_bug_is_told_once_and_is_not_the_end() -> None:
    """Neither one here nor one of whoever is told something."""

    def fail(_: object) -> None:
        raise LookupError("canary")

    told: list[Exception] = []
    watched = Watched(on_reading=fail, on_fault=told.append)
    await watched.looks(3)
    assert [type(fault) for fault in told] == [LookupError]
    watched.engine.answers["/health"] = RuntimeError()
    await watched.looks(3)
    assert [type(fault) for fault in told] == [LookupError, RuntimeError]
    watched.engine.answers["/health"] = (200, b"")
    await watched.looks(3)
    # Told again: it had been gone in between.
    assert [type(fault) for fault in told] == [LookupError, RuntimeError, LookupError]
    assert watched.monitor.state is State.READY


class Sleeps:
    """Sleeps as long as the test says, and remembers how long it should have."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.asleep = asyncio.Event()
        self.wake = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        """Sleeps."""
        self.seconds.append(seconds)
        self.asleep.set()
        await self.wake.wait()
        self.wake.clear()


async def test_it_looks_once_a_second_and_never_twice_at_once() -> None:
    """However long the engine takes; and it ends when it is cancelled."""
    sleeps = Sleeps()
    watched = Watched(sleep=sleeps)
    running = asyncio.create_task(watched.monitor.run())
    await sleeps.asleep.wait()
    assert (sleeps.seconds, len(watched.engine.asked)) == ([1.0], 2)
    sleeps.asleep.clear()
    watched.engine.gate = asyncio.Event()
    sleeps.wake.set()
    await watched.engine.at_gate.wait()
    watched.now += 0.75
    watched.engine.gate.set()
    await sleeps.asleep.wait()
    assert (sleeps.seconds, watched.engine.most_at_once) == ([1.0, 0.25], 1)
    sleeps.asleep.clear()
    watched.engine.gate.clear()
    watched.engine.at_gate.clear()
    sleeps.wake.set()
    await watched.engine.at_gate.wait()
    watched.now += 5.0
    watched.engine.gate.set()
    await sleeps.asleep.wait()
    assert sleeps.seconds == [1.0, 0.25, 0.0]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_who_asks_before_the_first_look_waits_for_it() -> None:
    """But not for ever."""
    watched = Watched()
    watched.engine.gate = asyncio.Event()
    assert not await watched.monitor.looked(0.0)
    looking = asyncio.create_task(watched.monitor.look())
    waiting = [asyncio.create_task(watched.monitor.looked(60.0)) for _ in range(3)]
    watched.engine.gate.set()
    assert await asyncio.gather(*waiting) == [True] * 3
    await looking
    assert await watched.monitor.looked(0.0)
