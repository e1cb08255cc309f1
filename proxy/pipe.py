"""The way of a body from one socket into another, without a task in between.

Where the upstream's transport can push (the response extension ``PIPE``) and the server can be
pushed into (the scope extension ``CLIENT``), chunks go from the one's callback into the other's, and
the request's task sleeps until the end. Where either is missing, the same chunks go through ASGI's
``send``. Here is what the two sides know of each other, which is nothing else.
"""

from collections.abc import Callable
from typing import Protocol

from proxy.errors import Refusal

PIPE = "pipe"
"""The extension of an ``httpx.Response`` whose value is a ``Pipe``.

A transport that has it keeps the time by itself: ``first_byte`` and ``idle``, in seconds, in the
``timeout`` extension of the request. Nobody above it sees a chunk come. And a cancelled task leaves
nothing open in it, without a shield of anyio's.
"""

CLIENT = "bulwark.relay"
"""The extension of an ASGI scope whose value is a ``Client``."""

ON_SENT = "bulwark.on_sent"
"""The extension of a request to a transport that keeps the time: called whenever the request is
handed to a connection, after which the engine may be at work, and not while one is being made."""

Sink = Callable[[bytes], None]
"""Takes the next chunk of a body, at once; never called with an empty one. What it raises ends the
pipe."""


class Source(Protocol):
    """Where chunks come from."""

    def pause(self) -> None:
        """No more until ``resume``; a second time does nothing."""

    def resume(self) -> None:
        """More again; without a ``pause`` before it does nothing."""


class Flow:
    """Says to whatever is at the other end that there is no room now.

    The server's side calls ``pause`` and ``resume`` as its client keeps up or does not; the
    transport's side attaches what it reads from.
    """

    __slots__ = ("_source", "paused")

    def __init__(self) -> None:
        self.paused = False
        self._source: Source | None = None

    def attach(self, source: Source) -> None:
        """From now on it is this that is paused, at once if there is no room now."""
        self._source = source
        if self.paused:
            source.pause()

    def detach(self) -> None:
        """The source is not to be touched any more: it may be another request's by now."""
        self._source = None

    def pause(self) -> None:
        """There is no room."""
        self.paused = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        """There is room."""
        self.paused = False
        if self._source is not None:
            self._source.resume()


class Pipe(Protocol):
    """Pushes the body of one response."""

    async def __call__(self, sink: Sink, flow: Flow) -> None:
        """Returns when the sink was given the whole body, and every byte in its order.

        Raises:
            httpx.TransportError: The body is not complete, and will not be.
            BaseException: What the sink has raised; the connection is closed.
        """


class Client(Protocol):
    """The server's side of one request, for as long as its answer is pending.

    Attributes:
        behind: Whether its client had not taken all that was written when it left.
    """

    behind: bool

    def on_disconnect(self, leave: Callable[[Refusal | None], None]) -> None:
        """Calls this once when the client leaves, at once if it has left.

        Only for a request whose body was read to its end. A refusal says why the rest of what it
        sends cannot be read; None that it is gone.
        """

    def open(self, flow: Flow) -> Sink | None:
        """Where to push the body of the answer whose head was sent; None where that cannot be done.

        It can where each chunk is a chunk of HTTP/1.1: not where a length was announced, nor for
        HEAD or HTTP/1.0. The flow is paused and resumed from now on, until ``done``. What is pushed
        after the client has left is dropped.
        """

    def done(self) -> None:
        """Nothing more is pushed: the end of the body goes through ``send``."""
