"""Clients that vanish, and ends that must not be taken for orderly ones: what the kernel can do."""

import asyncio
import socket
import struct

from proxy.server.limits import ProtocolLimits

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def notice_vanished_client(transport: asyncio.Transport, limits: ProtocolLimits) -> None:
    """Lets the kernel end a connection whose other side neither reads nor says that it left."""
    sock = transport.get_extra_info("socket")
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # Linux ends a connection by this time-out also where the client's kernel answers but its
    # window stays shut (tcp_write_timer; measured: 30.3 s with 30 s). A client that only
    # reads slowly has the write time-out, so this must not be shorter.
    seconds = max(limits.user_timeout_seconds, limits.write_timeout_seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
    # It only counts while something is unacknowledged. A client that vanishes while it waits
    # for its answer is found by probes.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def reset(transport: asyncio.Transport) -> None:
    """Ends a connection at once and with a reset, so that nobody takes the end for an orderly one."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
