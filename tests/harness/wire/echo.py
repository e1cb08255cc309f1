"""Answers TCP and UDP on ports with who asked: run inside a namespace or a container.

A program of its own, with nothing but the standard library::

    python3 -I echo.py '{"ports": [80, 53], "host": "::", "join": ["239.1.2.3", "ff02::1:2%eth0"]}'

It prints ``ready`` once it listens, and ends with its standard input. A TCP client gets one line, ``peer → address asked``, and then
what it sends back as an echo until it closes; a UDP packet gets the line. ``::`` serves both
families. It answers from the very address that was asked, so a client with a connected socket
hears it.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
from typing import IO

IPV6_RECVPKTINFO, IPV6_PKTINFO = 49, 50  # linux/in6.h: not in Python on every system


def listen(host: str, port: int, join: list[str], selector: selectors.BaseSelector) -> None:
    """Opens both listeners of a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tcp = socket.socket(family, socket.SOCK_STREAM)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    udp = socket.socket(family, socket.SOCK_DGRAM)
    for sock in (tcp, udp):
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.setblocking(False)
    if family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
    for group in join:
        _join(udp, group)
    tcp.listen(1024)
    selector.register(tcp, selectors.EVENT_READ, accept)
    selector.register(udp, selectors.EVENT_READ, answer)


def _join(udp: socket.socket, group: str) -> None:
    address, _, interface = group.partition("%")
    index = socket.if_nametoindex(interface or "eth0")
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address) + index.to_bytes(4, sys.byteorder)
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed)
    else:  # struct ip_mreqn
        packed = socket.inet_aton(address) + bytes(4) + index.to_bytes(4, sys.byteorder)
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, packed)


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:")


def accept(tcp: socket.socket, selector: selectors.BaseSelector) -> None:
    """Takes a connection and says who it is from."""
    with contextlib.suppress(OSError):
        connection, peer = tcp.accept()
        connection.setblocking(False)
        asked = connection.getsockname()
        connection.sendall(f"{_plain(peer[0])} → {_plain(asked[0])}\n".encode())
        selector.register(connection, selectors.EVENT_READ, echo)


def echo(connection: socket.socket, selector: selectors.BaseSelector) -> None:
    """Sends back what came, or closes."""
    with contextlib.suppress(OSError):
        if data := connection.recv(4096):
            connection.sendall(data)
            return
    selector.unregister(connection)
    connection.close()


def answer(udp: socket.socket, _selector: selectors.BaseSelector) -> None:
    """Says who a packet is from, from the address that it was sent to."""
    with contextlib.suppress(OSError):
        _, ancillary, _, peer = udp.recvmsg(200, 200)
        where, control = "?", []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.IPPROTO_IPV6, IPV6_PKTINFO):
                where = _plain(socket.inet_ntop(socket.AF_INET6, data[:16]))
                if not _many(data[:16]):
                    control = [(level, kind, data[:16] + bytes(4))]
        udp.sendmsg([f"{_plain(peer[0])} → {where}\n".encode()], control, 0, peer)


def _many(address: bytes) -> bool:
    """Whether a packet to this address was for many: nobody can answer from there."""
    if address[:12] == bytes(10) + b"\xff\xff":
        return address[12] >= 0xE0
    return address[0] == 0xFF


def end(stdin: IO[str], _selector: selectors.BaseSelector) -> None:
    """Ends with whoever started it, and is not left behind when that one is killed."""
    if not stdin.readline():
        sys.exit()


def main() -> None:
    """Serves until standard input ends."""
    asked = json.loads(sys.argv[1])
    selector = selectors.DefaultSelector()
    if (user := asked.get("user")) is not None:
        # Here and not by a wrapper, so that this file need not be readable by that user.
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for port in asked["ports"]:
        listen(asked.get("host", "::"), port, asked.get("join", []), selector)
    selector.register(sys.stdin, selectors.EVENT_READ, end)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for key, _ in selector.select():
            key.data(key.fileobj, selector)


if __name__ == "__main__":
    main()
