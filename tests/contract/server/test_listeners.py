"""Two listeners and one drain, in process and as a process that gets real signals."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.server import listeners
from proxy.server.protocol import ProtocolLimits, protocol
from tests.harness.client import BrokenOff, RawClient, request_bytes
from tests.harness.served import Receive, Scope, Send, answer, piece, start

REQUEST = request_bytes("GET", "/")


@dataclass
class Public:
    """An application whose answers end when they are told to, or at a disconnect."""

    stubborn: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["path"] == "/quick":
            await answer(send, 200, b"quick")
            return
        await receive()
        await start(send)
        await piece(send, b"one")
        self.begun.set()
        await self.go_on.wait()
        await piece(send, b"two", more=False)


async def admin(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is always well."""
    await answer(send, 200, b"admin")


@dataclass
class Running:
    """A server in this process.

    Attributes:
        told: What it called, in order.
    """

    port: int
    admin_port: int
    stop: asyncio.Event
    hurry: asyncio.Event
    told: list[str]
    task: asyncio.Task[int]

    async def connect(self) -> RawClient:
        """A client of the public listener."""
        return await RawClient.open("127.0.0.1", self.port)

    async def ask_admin(self) -> int:
        """The status that the admin listener answers."""
        async with await RawClient.open("127.0.0.1", self.admin_port) as client:
            return (await client.request("GET", "/")).status

    async def begin_to_drain(self) -> None:
        """Returns once the public listener takes no more connections."""
        self.stop.set()
        async with asyncio.timeout(5):
            while True:
                try:
                    (await self.connect()).close()
                except ConnectionRefusedError:
                    return
                except ConnectionResetError:
                    pass  # it was waiting to be accepted when the listener closed
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(
    public: Public, *, drain_seconds: float = 30.0, by_signals: bool = False
) -> AsyncIterator[Running]:
    """Starts a server and sees to it that it ends."""
    sockets = [listeners.bind("127.0.0.1", 0, "PROXY_PORT") for _ in range(2)]
    ready, told = asyncio.Event(), list[str]()

    def on_ready() -> None:
        told.append("ready")
        ready.set()

    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_deadline() -> None:
        told.append("deadline")
        if not public.stubborn:
            public.go_on.set()

    task = asyncio.create_task(
        listeners.serve(
            public,  # type: ignore[arg-type] # ASGI's types are looser than uvicorn's
            admin,  # type: ignore[arg-type]
            http_protocol=protocol(ProtocolLimits(linger_seconds=0.1), lambda *_: None),
            public_socket=sockets[0],
            admin_socket=sockets[1],
            drain_seconds=drain_seconds,
            on_ready=on_ready,
            on_drain=lambda: told.append("drain"),
            on_deadline=on_deadline,
            stop=None if by_signals else stop,
            hurry=None if by_signals else hurry,
        )
    )
    ports = [sock.getsockname()[1] for sock in sockets]
    await asyncio.wait_for(ready.wait(), 5)
    try:
        yield Running(ports[0], ports[1], stop, hurry, told, task)
    finally:
        public.go_on.set()
        stop.set()
        hurry.set()
        if not task.done() and by_signals:
            task.cancel()
        await asyncio.wait([task])


async def test_both_listen_and_stop(caplog: pytest.LogCaptureFixture) -> None:
    """Each serves its own application; idle connections do not hold up the end."""
    async with running(Public()) as server, await server.connect() as client:
        assert (await client.request("GET", "/quick")).body == b"quick"
        assert await server.ask_admin() == 200
        assert server.told == ["ready"]
        server.stop.set()
        assert await asyncio.wait_for(server.task, 3) == 0
        assert server.told == ["ready", "drain"]
        assert await client.read_until_closed() == b""
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def test_what_is_in_flight_finishes() -> None:
    """The public listener closes at once, the admin listener answers until the end."""
    public = Public()
    async with running(public) as server, await server.connect() as client:
        await client.send(REQUEST)
        await public.begun.wait()
        await server.begin_to_drain()
        assert await server.ask_admin() == 200
        assert server.told == ["ready", "drain"]
        public.go_on.set()
        response = await client.read_response()
        assert (response.body, response.complete) == (b"onetwo", True)
        assert await asyncio.wait_for(server.task, 3) == 0
        assert server.told == ["ready", "drain"]
        with pytest.raises(ConnectionRefusedError):
            await server.ask_admin()


async def test_the_drain_has_a_deadline() -> None:
    """At which whatever is in flight is told to end itself."""
    public = Public()
    async with running(public, drain_seconds=0.5) as server, await server.connect() as client:
        await client.send(REQUEST)
        await public.begun.wait()
        began = time.monotonic()
        server.stop.set()
        response = await client.read_response()
        # uvloop's timers count in whole milliseconds.
        assert 0.49 <= time.monotonic() - began < 3
        assert (response.body, response.complete) == (b"onetwo", True)
        assert await asyncio.wait_for(server.task, 3) == 0
        assert server.told == ["ready", "drain", "deadline"]


async def test_the_drain_can_be_hurried() -> None:
    """The deadline is now."""
    public = Public()
    async with running(public) as server, await server.connect() as client:
        await client.send(REQUEST)
        await public.begun.wait()
        await server.begin_to_drain()
        server.hurry.set()
        assert (await client.read_response()).complete
        assert await asyncio.wait_for(server.task, 3) == 0
        assert server.told == ["ready", "drain", "deadline"]


async def test_signals_stop_and_hurry() -> None:
    """The process has its handlers back afterwards."""
    public = Public()
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with running(public, by_signals=True) as server, await server.connect() as client:
        await client.send(REQUEST)
        await public.begun.wait()
        signal.raise_signal(signal.SIGTERM)
        await client.read_head()
        assert await server.ask_admin() == 200
        signal.raise_signal(signal.SIGTERM)
        assert await client.read_chunk() == b"one"
        assert await client.read_chunk() == b"two"
        assert await asyncio.wait_for(server.task, 3) == 0
        assert server.told == ["ready", "drain", "deadline"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_an_application_that_does_not_end_is_ended() -> None:
    """Its client sees a cut, never a good end."""
    public = Public(stubborn=True)
    async with running(public, drain_seconds=0.1) as server, await server.connect() as client:
        await client.send(REQUEST)
        await public.begun.wait()
        server.stop.set()
        await client.read_head()
        assert await client.read_chunk() == b"one"
        with pytest.raises(BrokenOff):
            await client.read_chunk()
        assert await asyncio.wait_for(server.task, 5) == 0


async def test_a_client_that_does_not_read_is_not_waited_for() -> None:
    """An answer that nobody takes ends with the drain."""

    class Large(Public):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await start(send)
            self.begun.set()
            await piece(send, bytes(20_000_000), more=False)

    public = Large()
    async with running(public, drain_seconds=0.1) as server, await server.connect() as client:
        await client.send(REQUEST)
        await public.begun.wait()
        server.stop.set()
        assert await asyncio.wait_for(server.task, 5) == 0


async def test_a_server_that_cannot_start_says_why() -> None:
    """Nothing is announced as ready."""
    sockets = [listeners.bind("127.0.0.1", 0, "PROXY_PORT") for _ in range(2)]
    sockets[0].close()
    told: list[str] = []
    with pytest.raises(OSError, match="Bad file descriptor"):
        await listeners.serve(
            admin,  # type: ignore[arg-type]
            admin,  # type: ignore[arg-type]
            http_protocol=protocol(ProtocolLimits(), lambda *_: None),
            public_socket=sockets[0],
            admin_socket=sockets[1],
            drain_seconds=1,
            on_ready=lambda: told.append("ready"),
            on_drain=lambda: None,
            on_deadline=lambda: None,
            stop=asyncio.Event(),
        )
    assert told == []


# bind


def test_what_it_accepts_sends_at_once() -> None:
    """On asyncio's own loop too, which turns Nagle's algorithm off only where it knows of TCP."""

    async def nodelay() -> int:
        accepted: asyncio.Queue[int] = asyncio.Queue()

        class Noting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                sock = transport.get_extra_info("socket")
                accepted.put_nowait(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        sock = listeners.bind("127.0.0.1", 0, "PROXY_PORT")
        server = await asyncio.get_running_loop().create_server(Noting, sock=sock)
        async with server, await RawClient.open(*sock.getsockname()):
            return await accepted.get()

    assert asyncio.run(nodelay()) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_bind_listens(host: str) -> None:
    """By name, and by address of either kind."""
    with contextlib.closing(listeners.bind(host, 0, "PROXY_PORT")) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        assert not sock.getblocking()
        socket.create_connection(sock.getsockname()[:2], timeout=5).close()


def test_bind_says_that_a_port_is_in_use() -> None:
    """Also while the other has not accepted anything yet."""
    with contextlib.closing(listeners.bind("127.0.0.1", 0, "PROXY_PORT")) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(listeners.ListenError) as info:
            listeners.bind("127.0.0.1", port, "PROXY_ADMIN_PORT")
    assert str(info.value) == (
        f"cannot listen on 127.0.0.1 port {port} (PROXY_ADMIN_PORT): Address already in use"
    )


@pytest.mark.parametrize(
    ("host", "port"),
    [
        pytest.param("192.0.2.1", 0, id="an address of another machine"),
        pytest.param("a" * 70, 0, id="a name that cannot exist"),
        pytest.param("\udcff", 0, id="no name at all"),
        pytest.param("a\x00b", 0, id="a name with NUL"),
        pytest.param("127.0.0.1", 70000, id="a port that does not exist"),
    ],
)
def test_bind_says_what_cannot_be_had(host: str, port: int) -> None:
    """With host, port, setting and reason."""
    with pytest.raises(listeners.ListenError) as info:
        listeners.bind(host, port, "PROXY_HOST")
    text = str(info.value)
    prefix = f"cannot listen on {host} port {port} (PROXY_HOST): "
    assert text.startswith(prefix)
    assert text != prefix + "None"


# A process

PROGRAM = """
import asyncio, sys, uvloop
from proxy.server import listeners
from proxy.server.protocol import ProtocolLimits, protocol

end = None

async def public(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await end.wait()
    await send({"type": "http.response.body", "body": b"two", "more_body": False})

async def admin(scope, receive, send):
    end.set()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})

async def main():
    global end
    end = asyncio.Event()
    sockets = [listeners.bind("127.0.0.1", 0, name) for name in ("PROXY_PORT", "PROXY_ADMIN_PORT")]
    ports = [sock.getsockname()[1] for sock in sockets]
    def on_deadline():
        print("deadline", flush=True)
        end.set()
    return await listeners.serve(
        public, admin, http_protocol=protocol(ProtocolLimits(), print),
        public_socket=sockets[0], admin_socket=sockets[1], drain_seconds=60,
        on_ready=lambda: print("ready", *ports, flush=True),
        on_drain=lambda: print("drain", flush=True), on_deadline=on_deadline)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    sys.exit(runner.run(main()))
"""


PATIENCE_SECONDS = 30
"""For a program that shares its cores. Its drain would wait for twice that, but for the signal."""


@dataclass
class Process:
    """That program, running."""

    process: subprocess.Popen[str]
    port: int = 0
    admin_port: int = 0

    async def line(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        said = asyncio.to_thread(self.process.stdout.readline)
        return (await asyncio.wait_for(said, PATIENCE_SECONDS)).strip()

    async def end(self) -> tuple[int, str, str]:
        """Its exit status, and what it still said on its two streams."""
        out, err = await asyncio.to_thread(self.process.communicate, timeout=PATIENCE_SECONDS)
        return self.process.returncode, out, err


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    """Runs the program until the end of the test at the latest."""
    with _popen() as popen:
        running = Process(popen)
        try:
            _, port, admin_port = (await running.line()).split()
            running.port, running.admin_port = int(port), int(admin_port)
            yield running
        finally:
            popen.kill()


@contextlib.contextmanager
def _popen() -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).parents[3]
    options: dict[str, Any] = {"cwd": root, "env": {"PYTHONPATH": str(root)}, "text": True}
    with subprocess.Popen(  # noqa: S603 - this very Python and the text above
        [sys.executable, "-W", "error", "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    ) as popen:
        yield popen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_idle_process_with_0(
    process: Process, number: signal.Signals
) -> None:
    """Not as if the signal had killed it, and without a word on stderr."""
    process.process.send_signal(number)
    assert await process.line() == "drain"
    assert await process.end() == (0, "", "")


async def test_a_signal_lets_what_is_in_flight_finish(process: Process) -> None:
    """Then the process ends with 0."""
    async with await RawClient.open("127.0.0.1", process.port) as client:
        await client.send(REQUEST)
        await client.read_head()
        assert await client.read_chunk() == b"one"
        process.process.send_signal(signal.SIGTERM)
        assert await process.line() == "drain"
        async with await RawClient.open("127.0.0.1", process.admin_port) as asking:
            assert (await asking.request("GET", "/")).status == 204
        assert await client.read_chunk() == b"two"
        assert await client.read_chunk() == b""
        assert await process.end() == (0, "", "")


async def test_a_second_signal_skips_the_wait(process: Process) -> None:
    """The requests in flight are told to end themselves, and the process ends with 0."""
    patient = RawClient.open("127.0.0.1", process.port, timeout=PATIENCE_SECONDS)
    async with await patient as client:
        await client.send(REQUEST)
        await client.read_head()
        assert await client.read_chunk() == b"one"
        process.process.send_signal(signal.SIGTERM)
        assert await process.line() == "drain"
        process.process.send_signal(signal.SIGINT)
        assert await process.line() == "deadline"
        assert await client.read_chunk() == b"two"
        assert await process.end() == (0, "", "")
