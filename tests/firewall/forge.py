"""Packets that lie about where they are from: run inside a namespace.

A program of its own, with nothing but the standard library::

    python3 -I forge.py over_loopback udp fd12:18::2 5000 fd00:1::10 7
    python3 -I forge.py from_the_link upstream 02:… 192.168.1.10 53 172.18.0.2 5000
    python3 -I forge.py claim fd00:1::10 7 fd12:18::2 5000
    python3 -I forge.py ask 172.18.0.2 5000 192.168.1.10 53
    python3 -I forge.py hear 172.18.0.2 5010 203.0.113.10 9

Each prints what it got from the other side, a line each, or nothing.
"""

import contextlib
import os
import socket
import struct
import sys
from ipaddress import ip_address

USER = 10001
IPV6_FREEBIND = 78  # linux/in6.h: needs no privilege
SECONDS = 0.5


def become_the_server() -> None:
    """Gives up root; here and not by a wrapper, so that this file need not be readable to it."""
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


def made(kind: int, address: str, port: int) -> socket.socket:
    """A socket at any address, one's own or not."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, kind)
    sock.settimeout(SECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    sock.bind(at(address, port))
    return sock


def at(address: str, port: int) -> tuple[str, int]:
    """What a socket call takes, with the interface where the address names one."""
    # As bytes: else it looks for a codec, which the server's user may not be allowed to read.
    found = socket.getaddrinfo(address.encode(), port, type=socket.SOCK_DGRAM)
    return found[0][4]  # type: ignore[return-value]  # with two items more for IPv6


def over_loopback(kind: str, own: str, port: str, other: str, other_port: str) -> None:
    """Tells connection tracking that the other opened a flow to here; then answers it."""
    become_the_server()
    with contextlib.suppress(OSError):
        {"udp": by_udp, "tcp": by_tcp}[kind](own, int(port), other, int(other_port))


def by_udp(own: str, port: int, other: str, other_port: int) -> None:
    """One packet over loopback is enough."""
    mine = made(socket.SOCK_DGRAM, own, port)
    forged = made(socket.SOCK_DGRAM, other, other_port)
    with contextlib.suppress(OSError):
        forged.sendto(b"forged\n", at(own, port))
        mine.recv(100)
    mine.sendto(b"asked\n", at(other, other_port))
    sys.stdout.write(mine.recv(100).decode())


def by_tcp(own: str, port: int, other: str, other_port: int) -> None:
    """A listener whose queue is full swallows the forged SYN, and a simultaneous open follows."""
    listener = made(socket.SOCK_STREAM, own, port)
    listener.listen(0)
    kept = [made(socket.SOCK_STREAM, own, 0) for _ in range(2)]
    kept.append(made(socket.SOCK_STREAM, other, other_port))
    for one in kept:
        one.setblocking(False)
        with contextlib.suppress(OSError):
            one.connect((own, port))
    listener.close()
    mine = made(socket.SOCK_STREAM, own, port)
    mine.connect((other, other_port))
    sys.stdout.write(mine.recv(100).decode())


def checksum(data: bytes) -> int:
    """RFC 1071."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def packet(source: str, sport: int, target: str, dport: int) -> tuple[int, bytes]:
    """A UDP packet as it is on the wire, after the number of its protocol there."""
    here, there = ip_address(source), ip_address(target)
    text = b"forged\n"
    size = 8 + len(text)
    head = struct.pack("!HHHH", sport, dport, size, 0)
    pseudo = here.packed + there.packed + struct.pack("!II", size, socket.IPPROTO_UDP)
    body = head[:6] + struct.pack("!H", checksum(pseudo + head + text) or 0xFFFF) + text
    if here.version == 6:
        return 0x86DD, struct.pack(
            "!IHBB", 6 << 28, size, 17, 64
        ) + here.packed + there.packed + body
    bare = (
        struct.pack("!BBHHHBBH", 0x45, 0, 20 + size, 1, 0, 64, 17, 0) + here.packed + there.packed
    )
    return 0x0800, bare[:10] + struct.pack("!H", checksum(bare)) + bare[12:] + body


def from_the_link(link: str, mac: str, *flow: str) -> None:
    """As whoever owns a neighbour with the right to raw sockets."""
    source, port, target, target_port = flow
    kind, data = packet(source, int(port), target, int(target_port))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((link, 0))
        own = sock.getsockname()[4]
        sock.send(bytes.fromhex(mac.replace(":", "")) + own + struct.pack("!H", kind) + data)


def claim(other: str, other_port: str, target: str, port: str) -> None:
    """One datagram from an address that is another's, without any privilege; IPv6 only."""
    become_the_server()
    made(socket.SOCK_DGRAM, other, int(other_port)).sendto(b"forged\n", at(target, int(port)))


def ask(own: str, port: str, other: str, other_port: str) -> None:
    """One question by UDP from a port of one's own."""
    become_the_server()
    with contextlib.suppress(OSError):
        mine = made(socket.SOCK_DGRAM, own, int(port))
        mine.sendto(b"asked\n", at(other, int(other_port)))
        sys.stdout.write(mine.recv(100).decode())


def hear(own: str, port: str, other: str, other_port: str) -> None:
    """Asks, says ``asked``, and then tells whatever comes until a line comes in."""
    become_the_server()
    mine = made(socket.SOCK_DGRAM, own, int(port))
    mine.connect(at(other, int(other_port)))
    mine.send(b"asked\n")
    sys.stdout.write("asked\n")
    sys.stdout.flush()
    sys.stdin.readline()
    with contextlib.suppress(OSError):
        sys.stdout.write(mine.recv(100).decode())


def speak(own: str, port: str) -> None:
    """Takes one connection, says ``taken``, and sends it what comes in, speaking first each time."""
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    with socket.create_server((own, int(port)), family=family) as listener:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        connection, _ = listener.accept()
    for line in sys.stdin:
        connection.sendall(line.encode())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
