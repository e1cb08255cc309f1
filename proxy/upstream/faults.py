"""What a failure of the upstream means to the client: one table.

The messages say which part failed and what to do, and nothing else: no address, no port, no text
of an exception.
"""

from collections.abc import Callable

import httpx

from proxy.errors import Fault, InternalError, UpstreamError, UpstreamTimeout, UpstreamUnavailable

RETRY_AFTER_SECONDS = 5
"""A model server that restarts is away for longer; one whose queue is full, for less."""


def unavailable() -> Fault:
    """Nobody accepts connections there, or there is no there."""
    return UpstreamUnavailable(
        "The model server cannot be reached: it is starting, or down. Try again soon.",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def late(what: str, setting: str) -> Fault:
    """The upstream took too long; `what` completes "The model server did not …"."""
    return UpstreamTimeout(
        f"The model server did not {what} in time ({setting}).",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


# The most specific first; see the tree at the top of httpx._exceptions.
_TABLE: tuple[tuple[type[httpx.TransportError], Callable[[], Fault]], ...] = (
    (httpx.ConnectTimeout, lambda: late("accept a connection", "PROXY_CONNECT_TIMEOUT_SECONDS")),
    (httpx.TimeoutException, lambda: late("go on", "the transport's own limit")),
    (httpx.ConnectError, unavailable),
    (httpx.UnsupportedProtocol, lambda: InternalError("The upstream's address is not usable.")),
    (httpx.LocalProtocolError, lambda: InternalError("The request could not be passed on.")),
    (
        httpx.RemoteProtocolError,
        lambda: UpstreamError("The model server broke off, or its answer is not valid HTTP."),
    ),
    (
        httpx.TransportError,
        lambda: UpstreamError("The connection to the model server broke while it was in use."),
    ),
)


def translate(exc: httpx.TransportError) -> Fault:
    """The fault to raise from an exception of an httpx transport."""
    return next(fault() for failure, fault in _TABLE if isinstance(exc, failure))
