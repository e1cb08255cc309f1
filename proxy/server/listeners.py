"""Two listeners, one loop, one drain.

The public listener stops first and the admin listener last, so that what watches the process can
see it drain. uvicorn serves both, but owns neither the sockets (they are bound before anything is
built, so that a port in use is told in time) nor the signals (it raises them again at its end, and
a drained process would exit as if it had been killed).
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp

KEEP_ALIVE_SECONDS = 120
"""How long an idle connection is kept. Tunnels pool theirs for 90 s and must not lose the race."""

# What requests get to say their last word after the drain's deadline, and then connections to go.
_LAST_WORD_SECONDS = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ListenError(Exception):
    """A socket that cannot be listened on. The text names host, port, setting and reason."""


def bind(host: str, port: int, setting: str, backlog: int = 2048) -> socket.socket:
    """A listening TCP socket.

    Args:
        host: A name or address of this machine.
        port: 0 for any that is free.
        setting: The name of the setting that the operator would have to change.
        backlog: Connections that wait to be accepted.

    Raises:
        ListenError: It cannot be had.
    """
    try:
        # Without the port: getaddrinfo takes 70000 for 4464.
        family, kind, proto, _, address = socket.getaddrinfo(
            host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With its protocol: asyncio's own loop sets TCP_NODELAY only on what says that it is TCP, and
        # without it the second piece of each answer waits 40 ms for an acknowledgement.
        sock = socket.socket(family, kind, proto)
        try:
            # A server that restarts must not wait for the connections of its last life.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address[0], port, *address[2:]))
            # With that option two sockets can be bound to one port; only one can listen on it.
            sock.listen(backlog)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except (OSError, ValueError, OverflowError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise ListenError(f"cannot listen on {host} port {port} ({setting}): {reason}") from exc
    return sock


async def serve(
    public: ASGIApp,
    admin: ASGIApp,
    *,
    http_protocol: type[asyncio.Protocol],
    public_socket: socket.socket,
    admin_socket: socket.socket,
    drain_seconds: float,
    on_ready: Callable[[], None],
    on_drain: Callable[[], None],
    on_deadline: Callable[[], None],
    backlog: int = 2048,
    keep_alive_seconds: int = KEEP_ALIVE_SECONDS,
    admin_protocol: type[asyncio.Protocol] | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
) -> int:
    """Serves both applications until told to stop, then drains.

    Args:
        public: What the internet sees.
        admin: What the operator sees.
        http_protocol: As ``server.protocol.protocol`` makes it, of the public listener.
        public_socket: As ``bind`` makes it; closed at the end, like the other.
        admin_socket: As ``bind`` makes it.
        drain_seconds: How long requests in flight may take to finish.
        on_ready: Called when both listen.
        on_drain: Called when the drain begins.
        on_deadline: Called when its time is up and requests are left, which then have 2 s.
        backlog: Connections that wait to be accepted, on each.
        keep_alive_seconds: How long an idle connection is kept.
        admin_protocol: That of the admin listener, with places of its own for connections, so that
            it can be reached when the public one is full; without it the same.
        stop: Begins the drain. Without it SIGTERM and SIGINT do, and a second one hurries it.
        hurry: Ends the drain's time.

    Returns:
        The exit status: 0 after a drain, 1 when a server ended that nobody had stopped.
    """
    told_to_stop, told_to_hurry = stop or asyncio.Event(), hurry or asyncio.Event()
    with contextlib.ExitStack() as stack:
        if stop is None:
            stack.enter_context(_signals(told_to_stop, told_to_hurry))

        def server(app: ASGIApp, speaks: type[asyncio.Protocol]) -> _Server:
            return _Server(_config(app, speaks, backlog, keep_alive_seconds))

        async with (
            server(admin, admin_protocol or http_protocol).running(admin_socket) as admin_server,
            server(public, http_protocol).running(public_socket) as public_server,
        ):
            on_ready()
            await _first(told_to_stop.wait(), public_server.ended(), admin_server.ended())
            status = 0 if told_to_stop.is_set() else 1
            on_drain()
            public_server.should_exit = True
            await _first(public_server.ended(), told_to_hurry.wait(), seconds=drain_seconds)
            if not public_server.has_ended:
                on_deadline()
    return status


class _Server(uvicorn.Server):
    """A uvicorn server that another coroutine starts, waits for and ends."""

    _task: asyncio.Task[None]  # from ``running`` on

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._listens = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says when it listens."""
        await super().startup(sockets=sockets)
        self._listens.set()

    @contextlib.asynccontextmanager
    async def running(self, sock: socket.socket) -> AsyncIterator[Self]:
        """Serves; at the end it gives what is still in flight a last word and closes all."""
        self._task = asyncio.create_task(self.serve(sockets=[sock]))
        try:
            await _first(self._listens.wait(), self.ended())
            if self.has_ended:
                await self._task  # why it could not start
            yield self
        finally:
            await self._finish()

    @property
    def has_ended(self) -> bool:
        """Whether it serves no more."""
        return self._task.done()

    async def ended(self) -> None:
        """Returns when it serves no more, for whatever reason."""
        await asyncio.wait([self._task])

    async def _finish(self) -> None:
        self.should_exit = True
        await _first(self.ended(), seconds=_LAST_WORD_SECONDS)
        # Whoever is left neither reads its answer nor goes away.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await _first(self.ended(), seconds=_LAST_WORD_SECONDS)
        # And this would be an application that does not notice a disconnect.
        self.force_exit = True
        await self._task


def _config(
    app: ASGIApp,
    http_protocol: type[asyncio.Protocol],
    backlog: int,
    keep_alive_seconds: int,
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http_protocol,
        interface="asgi3",
        ws="none",
        lifespan="off",
        backlog=backlog,
        timeout_keep_alive=keep_alive_seconds,
        # Its own graceful time-out writes 500s; ours lets every request say why it ends.
        timeout_graceful_shutdown=None,
        # Its default believes X-Forwarded-For from any process of this machine, tunnels included.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        # Spelled out, or uvicorn takes it from WEB_CONCURRENCY in the environment.
        workers=1,
    )


@contextlib.contextmanager
def _signals(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """The first signal stops, every further one hurries."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    before = [(number, signal.getsignal(number)) for number in _SIGNALS]
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before:
            loop.remove_signal_handler(number)
            # The loop leaves the default, but asyncio.Runner had a handler of its own.
            signal.signal(number, handler)


async def _first(*waits: Coroutine[Any, Any, object], seconds: float | None = None) -> None:
    """Returns when one of them has, or when time is up; the others are given up."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
