"""How the upstream is asked: an ``httpx.AsyncBaseTransport`` over the loop's own sockets.

httpx's own spends a millisecond of CPU on a request, accepts an answer with two lengths, and takes
what comes after an answer for the next one's. Everything above knows ``httpx.AsyncBaseTransport``
only, so that another transport can stand in this one's place.
"""

import httpx

from proxy.names import Names
from proxy.upstream.target import Target
from proxy.upstream.transport.connecting import Connector
from proxy.upstream.transport.pool import KEEPALIVE_EXPIRY_SECONDS, Pool
from proxy.upstream.transport.request import MAX_HEAD_BYTES
from proxy.upstream.transport.transport import Transport

__all__ = ["KEEPALIVE_EXPIRY_SECONDS", "MAX_HEAD_BYTES", "build"]


def build(target: Target, names: Names | None = None) -> httpx.AsyncBaseTransport:
    """A transport to the target, whatever the request's URL says. Nothing is connected yet.

    Args:
        target: Where it goes.
        names: Who knows the addresses of names; None asks the system.
    """
    return Transport(Pool(), Connector(target, names or Names()))
