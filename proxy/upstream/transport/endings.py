"""How a connection ends, in httpx's words, and whether it was ended by who is at the other side."""

import asyncio
import os
import ssl
from typing import cast

import httpx

from proxy.upstream.wire import WireError


def cut() -> httpx.RemoteProtocolError:
    """Over TLS, and nobody has said within TLS that this is all."""
    return httpx.RemoteProtocolError("the connection was cut before its response was complete")


def not_valid(exc: WireError) -> httpx.RemoteProtocolError:
    """What was read is no response."""
    error = httpx.RemoteProtocolError(str(exc))
    error.__cause__ = exc
    return error


def broken(exc: Exception, *, writing: bool) -> httpx.TransportError:
    """The system says so."""
    kind = httpx.WriteError if writing else httpx.ReadError
    error = kind("the connection broke")
    error.__cause__ = exc
    return error


def left_at(transport: asyncio.Transport, buffer: memoryview) -> int:
    """Reads what the system has received and the loop did not read; 0 where there is nothing more."""
    try:
        return os.readv(transport.get_extra_info("socket").fileno(), (buffer,))
    except OSError:
        return 0


def left_in(tls: ssl.SSLObject, buffer: memoryview) -> int | None:
    """Reads what the loop has received and not decrypted.

    Neither loop decrypts more than one buffer in a turn, nor anything after the end of the connection.

    Returns:
        How much is in the buffer; 0 for the end that the other side has said (``close_notify``), which
        nobody on the way can; None where nothing is left.
    """
    try:
        return cast("int", tls.read(len(buffer), buffer))
    except ssl.SSLError:
        return None


def is_drained(tls: ssl.SSLObject) -> bool:
    """Whether nothing is left in it, be it an end; if something is, some of it is lost now."""
    try:
        tls.read(1)
    except ssl.SSLWantReadError:
        return True
    except ssl.SSLError:
        pass
    return False
