"""Where a client is: the peer of its socket, or what a proxy that is trusted says of it.

Anybody can send a header that says where he is. It is believed of trusted peers only, in one header
only, and as far back as each hop was named by one that is trusted. What comes out is an address in
canonical form, or one of two words of ours: nothing that a client writes gets into a log by it.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence

from starlette.types import Scope

# Who has no address: by a Unix socket, and who had left before he could be asked for it.
_UNIX = "unix"
_UNKNOWN = "unknown"

# The only header that every hop adds to. Any other one is set by one proxy, whole.
_LIST = b"x-forwarded-for"

# A longer way is looked at no further: 32 KiB of trusted hops would take 10 ms.
_MAX_HOPS = 32

# An IPv4 address with a port (Azure writes one); an IPv6 address in brackets, perhaps with a port; a
# bare IPv6 address. Either IPv6 form may have a zone, which means nothing elsewhere.
_WITH_COLON = re.compile(
    r"(?P<v4>[0-9.]{7,15}):[0-9]{1,5}"
    r"|\[(?P<bracketed>[0-9A-Fa-f:.]{2,45})(?:%[0-9A-Za-z_.-]{1,32})?\](?::[0-9]{1,5})?"
    r"|(?P<bare>[0-9A-Fa-f:.]{2,45})(?:%[0-9A-Za-z_.-]{1,32})?"
)
_IPV4_BYTES = 4
_MAPPED = bytes(10) + b"\xff\xff"  # RFC 4291 §2.5.5.2
_SUBSCRIBER_BYTES = 8


class ClientAddress:
    """Says where the client of a scope is.

    Args:
        trusted: Addresses and networks of proxies. Who has no address is never one of them.
        header: The one field in which they say it, or None. ``X-Forwarded-For`` is a list to which
            every hop appends its peer; any other one holds one address.
    """

    def __init__(self, trusted: Sequence[str] = (), header: str | None = None) -> None:
        self._header = header.lower().encode() if header is not None and trusted else None
        self._networks = _by_length(map(ipaddress.ip_network, trusted))

    def __call__(self, scope: Scope) -> str:
        """The address in canonical form, ``unix`` or ``unknown``."""
        client = scope["client"]
        peer: str = client[0] if client else _nameless(scope)
        if self._header is None:
            return _canonical(peer) if ":" in peer else peer
        packed = _packed(peer)
        if packed is None:
            return peer
        if self._trusts(packed):
            values = [value for name, value in scope["headers"] if name == self._header]
            packed = self._origin(values) or packed
        return _text(packed)

    def counted(self, peer: str) -> str | None:
        """By what the connections of a peer are counted; None of a trusted one, who brings many."""
        packed = _packed(peer)
        if packed is None:
            return peer
        return None if self._trusts(packed) else subscriber(_text(packed))

    def _origin(self, values: list[bytes]) -> bytes | None:
        """Whom the header names; None if nobody."""
        if self._header == _LIST:
            return self._last_known(values)
        # Set by the proxy, it occurs once. Twice, one of the two is somebody else's.
        return _written(values[0]) if len(values) == 1 else None

    def _last_known(self, values: list[bytes]) -> bytes | None:
        """The right-most hop that is not trusted; it was named by one that is.

        What is left of it may be made up. A hop that is no address ends the way too, at whoever
        named it; and if all are trusted, the left-most is the client.
        """
        known = None
        for hop in reversed(b",".join(values).rsplit(b",", _MAX_HOPS)):
            address = _written(hop)
            if address is None:
                break
            known = address
            if not self._trusts(address):
                break
        return known

    def _trusts(self, packed: bytes) -> bool:
        number = int.from_bytes(packed)
        for shift, prefixes in self._networks[len(packed)]:  # noqa: SIM110 - twice as fast as any()
            if number >> shift in prefixes:
                return True
        return False


def subscriber(address: str) -> str:
    """What one client has whole, by its canonical address: that, or of IPv6 the /64 around it."""
    if ":" not in address:
        return address
    network = socket.inet_pton(socket.AF_INET6, address)[:_SUBSCRIBER_BYTES]
    return socket.inet_ntop(socket.AF_INET6, network.ljust(16, b"\0")) + "/64"


def _nameless(scope: Scope) -> str:
    """Which of those without an address this is.

    A TCP client that resets its connection at once may have sent a request before. The server's own
    side is a port then.
    """
    server = scope.get("server")
    return _UNKNOWN if server is not None and server[1] is not None else _UNIX


def _packed(text: str) -> bytes | None:
    """The address in a text as its 4 or 16 bytes, IPv4-mapped ones as 4; None if it is none."""
    try:
        if ":" not in text:
            return socket.inet_pton(socket.AF_INET, text)
        match = _WITH_COLON.fullmatch(text)
        if match is None:
            return None
        if (v4 := match["v4"]) is not None:
            return socket.inet_pton(socket.AF_INET, v4)
        v6 = match["bracketed"] or match["bare"]
        return socket.inet_pton(socket.AF_INET6, v6).removeprefix(_MAPPED)
    except (OSError, ValueError):
        # Of the second kind: a NUL in it.
        return None


def _written(value: bytes) -> bytes | None:
    return _packed(value.decode("latin-1").strip(" \t"))


def _canonical(peer: str) -> str:
    packed = _packed(peer)
    return peer if packed is None else _text(packed)


def _text(packed: bytes) -> str:
    family = socket.AF_INET if len(packed) == _IPV4_BYTES else socket.AF_INET6
    return socket.inet_ntop(family, packed)


def _by_length(
    networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> dict[int, list[tuple[int, set[int]]]]:
    """Prefixes by the bytes of an address and the bits behind them: one look-up for each length."""
    found: dict[int, dict[int, set[int]]] = {4: {}, 16: {}}
    for network in networks:
        # One that begins so has a prefix of at least these bits, and is one of IPv4.
        packed = network.network_address.packed.removeprefix(_MAPPED)
        behind = network.max_prefixlen - network.prefixlen
        found[len(packed)].setdefault(behind, set()).add(int.from_bytes(packed) >> behind)
    return {size: list(prefixes.items()) for size, prefixes in found.items()}
