"""Says what becomes of what is sent to addresses: run inside a namespace or a container.

A program of its own, with nothing but the standard library, so that it also runs where only the
proxy's own Python is::

    python3 -I probe.py '{"targets": ["tcp:192.0.2.1:80", "udp:[fd00::1]:53", "icmp:10.0.0.5"]}'

It prints one JSON list, an object a target in the order asked: ``target``, ``outcome``, ``ms``,
``said`` (what the other side answered), ``errno``. All targets are tried at the same time.

Outcomes: ``OPEN`` (an answer came), ``refused`` (TCP reset, or no such port), ``prohibited`` (ICMP
says that an administrator forbids it), ``no route`` (no such network or host), ``dropped`` (this
machine's own filter, without a word), ``timeout``, and for ``raw:`` targets, which nobody answers,
``sent``. ``raw47:`` is a packet of that protocol.
"""

import errno
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from typing import Any

IP_RECVERR, IPV6_RECVERR = 11, 25  # linux/in.h, linux/in6.h: Python does not name them

# The type and code of an ICMP error: by these, and not by errno, "a host that is not there" can be
# told from "forbidden", which are both EHOSTUNREACH over IPv4.
PROHIBITED = {(2, 3, 13), (2, 3, 10), (2, 3, 9), (3, 1, 1)}
NO_PORT = {(2, 3, 3), (3, 1, 4)}

Address = tuple[Any, ...]
Source = tuple[str | None, str | None]
"""The address and the interface that it is sent from, where it is to be a certain one."""

Result = tuple[str, str, int | None]
"""The outcome, what was answered, and the number of the error."""

ROUTES = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL}


def probe(target: str, seconds: float, source: Source) -> dict[str, Any]:
    """Sends to one target and waits that long for what comes back."""
    kind, _, rest = target.partition(":")
    host, port = _address(rest, kind)
    # AI_NUMERICHOST: no name is ever asked for, but every spelling of an address is known. Bytes: a
    # string would need a codec, which another user may not be able to read.
    family, _, _, _, address = socket.getaddrinfo(host.encode(), port, flags=socket.AI_NUMERICHOST)[
        0
    ]
    start = time.monotonic()
    if kind.startswith("raw"):
        outcome, said, code = _raw(int(kind[3:] or socket.IPPROTO_UDP), family, address, source)
    else:
        send = {"tcp": _tcp, "udp": _udp, "icmp": _icmp}[kind]
        outcome, said, code = send(family, address, seconds, source)
    milliseconds = round((time.monotonic() - start) * 1000, 2)
    return {
        "target": target,
        "outcome": outcome,
        "ms": milliseconds,
        "said": said,
        "errno": errno.errorcode.get(code, str(code)) if code else None,
    }


def _address(rest: str, kind: str) -> tuple[str, int]:
    if kind not in ("tcp", "udp"):
        return rest.strip("[]"), 9
    host, _, port = rest.rpartition(":")
    return host.strip("[]"), int(port)


def _tcp(family: int, address: Address, seconds: float, source: Source) -> Result:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        _prepare(sock, seconds, source)
        _hear_of_errors(sock, family)
        try:
            sock.connect(address)
        except TimeoutError:
            return "timeout", "", 0
        except OSError as problem:
            return _outcome(sock, problem), "", problem.errno
        # Not everybody speaks first: who accepts is open, whatever comes of it.
        sock.settimeout(min(seconds, 0.5))
        try:
            return "OPEN", sock.recv(200).decode(errors="replace").strip(), 0
        except OSError:
            return "OPEN", "", 0


def _udp(family: int, address: Address, seconds: float, source: Source) -> Result:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        _prepare(sock, seconds, source)
        _hear_of_errors(sock, family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            # Not connected: what is sent to many (multicast) is answered by one of them.
            sock.sendto(b"?\n", address)
            return "OPEN", sock.recvfrom(200)[0].decode().strip(), 0
        except TimeoutError:
            return "timeout", "", 0
        except OSError as problem:
            return _outcome(sock, problem), "", problem.errno


def _icmp(family: int, address: Address, seconds: float, source: Source) -> Result:
    six = family == socket.AF_INET6
    number = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    key = threading.get_native_id() & 0xFFFF
    packet = struct.pack("!BBHHH", 128 if six else 8, 0, 0, key, 1) + b"bulwark!"
    if not six:  # ICMPv6's checksum is the kernel's work, ICMP's is ours
        packet = packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]
    with socket.socket(family, socket.SOCK_RAW, number) as sock:
        _prepare(sock, seconds, source)
        deadline = time.monotonic() + seconds
        try:
            # In this order: a raw socket that is not connected hears of the errors of all others.
            sock.connect((address[0], 0, *address[2:]))
            _hear_of_errors(sock, family)
            sock.send(packet)
            while (left := deadline - time.monotonic()) > 0:
                sock.settimeout(left)
                reply = sock.recv(200)
                body = reply if six else reply[(reply[0] & 15) * 4 :]
                if body[0] == (129 if six else 0) and body[4:6] == struct.pack("!H", key):
                    return "OPEN", "", 0
        except TimeoutError:
            pass
        except OSError as problem:
            return _outcome(sock, problem), "", problem.errno
        return "timeout", "", 0


def _raw(protocol: int, family: int, address: Address, source: Source) -> Result:
    """A packet of any protocol (of UDP, one to an address that no ordinary socket sends to)."""
    packet = struct.pack("!HHHH", 9, 9, 16, 0) + b"bulwark!"
    with socket.socket(family, socket.SOCK_RAW, protocol) as sock:
        _prepare(sock, 1, source)
        _hear_of_errors(sock, family)
        try:
            sock.sendto(packet, (address[0], 0, *address[2:]))
        except OSError as problem:
            return _outcome(sock, problem), "", problem.errno
        return "sent", "", 0


def _prepare(sock: socket.socket, seconds: float, source: Source) -> None:
    address, interface = source
    if interface is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    if address is not None:
        sock.bind((address, 0))
    sock.settimeout(seconds)


def _hear_of_errors(sock: socket.socket, family: int) -> None:
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
    # Of both, for an address may be a mapped one, which goes by IPv4.
    if family == socket.AF_INET or sock.type != socket.SOCK_RAW:
        sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)


def _outcome(sock: socket.socket, problem: OSError) -> str:
    told = _told(sock, 0.2 if problem.errno == errno.EPERM else 0)
    if told in PROHIBITED or problem.errno == errno.EACCES:
        return "prohibited"
    if told in NO_PORT or problem.errno == errno.ECONNREFUSED:
        return "refused"
    if problem.errno == errno.EPERM:
        return "dropped"
    return "no route" if problem.errno in ROUTES else "timeout"


def _told(sock: socket.socket, seconds: float) -> tuple[int, int, int] | None:
    """The ICMP error about what was sent (origin, type, code), where one came."""
    poll = select.poll()
    poll.register(sock, 0)  # errors only
    poll.poll(seconds * 1000)
    sock.setblocking(False)
    try:
        _, ancillary, _, _ = sock.recvmsg(200, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) in ((0, IP_RECVERR), (41, IPV6_RECVERR)):
            _, origin, icmp_type, icmp_code = struct.unpack_from("=IBBB", data)
            return origin, icmp_type, icmp_code
    return None


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def main() -> None:
    """Tries every target of the argument at once and prints what became of each."""
    asked = json.loads(sys.argv[1])
    if (user := asked.get("user")) is not None:
        # Here and not by a wrapper, so that this file need not be readable by that user.
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    answers: list[dict[str, Any] | None] = [None] * len(asked["targets"])

    def one(place: int, target: str) -> None:
        source = asked.get("source"), asked.get("interface")
        answers[place] = probe(target, asked.get("seconds", 1.0), source)

    threads = [
        threading.Thread(target=one, args=item, daemon=True) for item in enumerate(asked["targets"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in answers:
        sys.exit("a probe failed, see above")
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
