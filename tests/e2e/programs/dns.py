"""A name server with a table: run inside a namespace.

A program of its own, with nothing but the standard library::

    python3 -I -S dns.py '{"host": "8.8.8.8", "names": {"example.com": ["203.0.113.10"]}}'

It prints ``ready`` once it listens on UDP port 53, and ends with its standard input. A name with several addresses has one at a time, in turn;
others do not exist, and nobody has an IPv6 address.
"""

import itertools
import json
import select
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

_A = 1
_NO_SUCH_NAME = 3
_PROBE = b"?\n"


def answer(query: bytes, names: Mapping[str, Iterator[str]]) -> bytes:
    """What is answered to a query, which is taken for well-formed."""
    end = query.index(0, 12)
    (kind,) = struct.unpack_from("!H", query, end + 1)
    question = query[12 : end + 5]
    name = _name(query)
    found = b""
    if kind == _A and name in names:
        address = IPv4Address(next(names[name])).packed
        found = struct.pack("!HHHIH", 0xC00C, _A, 1, 0, len(address)) + address
    status = 0x8180 if name in names else 0x8180 | _NO_SUCH_NAME
    return query[:2] + struct.pack("!HHHHH", status, 1, bool(found), 0, 0) + question + found


def _name(query: bytes) -> str:
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii").lower())
        at += size + 1
    return ".".join(labels)


def main() -> None:
    """Serves until its input ends."""
    asked = json.loads(sys.argv[1])
    names = {name: itertools.cycle(addresses) for name, addresses in asked["names"].items()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((asked["host"], 53))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while sys.stdin not in select.select([sock, sys.stdin], [], [])[0]:
            query, client = sock.recvfrom(4096)
            # A probe is no query, and wants to hear that somebody is there.
            known = answer(query, names) if len(query) > len(_PROBE) else b"no query\n"
            sock.sendto(known, client)


if __name__ == "__main__":
    main()
