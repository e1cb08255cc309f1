"""A port on which connections are begun and never accepted."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

_SYN_SENT = "02"


@contextlib.contextmanager
def deaf_port(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A port of the loopback, by default any: its listener's queue is full, every SYN dropped."""
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind((address, port))
        listener.listen(0)
        port = listener.getsockname()[1]
        while not connecting(port):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect((address, port))
        yield port


def connecting(port: int) -> int:
    """How many sockets of this machine wait to be accepted at a port."""
    # As text: a long run has left ten thousand closed ones, and this is asked every millisecond.
    return Path("/proc/net/tcp").read_text().count(f":{port:04X} {_SYN_SENT} ")
