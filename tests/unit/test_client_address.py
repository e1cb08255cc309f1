"""Where a client is, as a truth table: who connects, who is trusted, what the header says."""

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.middleware.clients import ClientAddress, subscriber

PROXY = "10.0.0.1"
PEER = "203.0.113.9"
CLIENT = "192.0.2.7"
SIX = "2001:db8:1:2::7"

TUNNEL = b"cf-connecting-ip"
LIST = b"x-forwarded-for"

TCP = ("127.0.0.1", 8080)


def scope(
    peer: str | None, *fields: tuple[bytes, bytes | str], server: Any = TCP
) -> dict[str, Any]:
    """A request from this peer with these header fields, among others."""
    headers = [(name, v.encode("latin-1") if isinstance(v, str) else v) for name, v in fields]
    return {
        "type": "http",
        "client": (peer, 4711) if peer is not None else None,
        "server": server,
        "headers": [(b"host", b"x"), *headers, (b"accept", b"*/*")],
    }


@pytest.mark.parametrize(
    ("peer", "server", "address"),
    [
        pytest.param(PEER, TCP, PEER, id="IPv4"),
        pytest.param(SIX, TCP, SIX, id="IPv6"),
        pytest.param("::1", TCP, "::1", id="IPv6 loopback"),
        pytest.param("::ffff:203.0.113.9", TCP, PEER, id="IPv4 on a socket for both"),
        pytest.param("fe80::7%eth0", TCP, "fe80::7", id="link-local, with its zone"),
        pytest.param(None, ("/run/bulwark.sock", None), "unix", id="a Unix socket"),
        pytest.param(None, None, "unix", id="an abstract Unix socket"),
        pytest.param(None, TCP, "unknown", id="a TCP client that has gone already"),
    ],
)
@pytest.mark.parametrize(
    ("trusted", "header"),
    [
        pytest.param((), None, id="nothing set"),
        pytest.param((PROXY,), None, id="no header named"),
        pytest.param((), "X-Forwarded-For", id="nobody trusted"),
        pytest.param((PROXY,), "X-Forwarded-For", id="another one trusted"),
        pytest.param((PROXY,), "CF-Connecting-IP", id="another one trusted, by another header"),
    ],
)
def test_the_peer_of_the_socket_is_the_client(
    trusted: tuple[str, ...], header: str | None, peer: str | None, server: Any, address: str
) -> None:
    """Whatever the request says of itself: nobody who is trusted said it."""
    spoofed = [
        (name, b"192.0.2.66")
        for name in (TUNNEL, LIST, b"x-real-ip", b"forwarded", b"true-client-ip", b"client-ip")
    ]
    assert ClientAddress(trusted, header)(scope(peer, *spoofed, server=server)) == address


@pytest.mark.parametrize(
    ("trusted", "peer", "believed"),
    [
        pytest.param("10.0.0.1", "10.0.0.1", True, id="an address"),
        pytest.param("10.0.0.1", "10.0.0.2", False, id="the next address"),
        pytest.param("10.0.0.0/30", "10.0.0.3", True, id="the last of a network"),
        pytest.param("10.0.0.0/30", "10.0.0.4", False, id="the first behind it"),
        pytest.param("10.0.0.4/30", "10.0.0.3", False, id="the last before it"),
        pytest.param("0.0.0.0/0", PEER, True, id="all of IPv4"),
        pytest.param("0.0.0.0/0", SIX, False, id="all of IPv4, and a peer of IPv6"),
        pytest.param("::/0", SIX, True, id="all of IPv6"),
        pytest.param("::/0", PEER, False, id="all of IPv6, and a peer of IPv4"),
        pytest.param("::/0", "::ffff:203.0.113.9", False, id="all of IPv6, and a mapped peer"),
        pytest.param("10.0.0.1", "::ffff:10.0.0.1", True, id="IPv4, and the peer mapped"),
        pytest.param("::ffff:10.0.0.1", "10.0.0.1", True, id="mapped, and a peer of IPv4"),
        pytest.param("::ffff:10.0.0.0/126", "10.0.0.3", True, id="a mapped network"),
        pytest.param("::ffff:10.0.0.0/126", "10.0.0.4", False, id="the first behind it, mapped"),
        pytest.param("2001:db8::/64", "2001:db8::ffff", True, id="in a network of IPv6"),
        pytest.param("2001:db8::/64", "2001:db8:0:1::", False, id="behind a network of IPv6"),
        pytest.param("2001:DB8:0::1", "2001:db8::1", True, id="IPv6 in another spelling"),
        pytest.param("fe80::1", "fe80::1%eth0", True, id="link-local"),
        pytest.param("::1", "127.0.0.1", False, id="the two loopbacks are two"),
        pytest.param("0.0.0.0/0", None, False, id="all of IPv4, and a Unix socket"),
    ],
)
@pytest.mark.parametrize("header", [TUNNEL, LIST])
def test_who_is_trusted(trusted: str, peer: str | None, header: bytes, *, believed: bool) -> None:
    """Only these are believed, and by either kind of header."""
    address = ClientAddress((trusted,), header.decode())
    server = ("/run/bulwark.sock", None) if peer is None else TCP
    found = address(scope(peer, (header, CLIENT), server=server))
    assert (found == CLIENT) is believed


@pytest.mark.parametrize("header", [TUNNEL, LIST])
def test_a_tcp_client_without_an_address_is_not_believed(header: bytes) -> None:
    """Whoever resets the connection behind his request has none: he could be anybody."""
    address = ClientAddress(("0.0.0.0/0", "::/0"), header.decode())
    assert address(scope(None, (header, CLIENT), server=TCP)) == "unknown"


def test_several_proxies_are_trusted_each() -> None:
    """Addresses and networks of several lengths, side by side."""
    address = ClientAddress((PROXY, "172.16.0.0/12", "10.9.0.0/16", "fd00::/8"), "X-Real-IP")
    field = (b"x-real-ip", CLIENT)
    for peer in (PROXY, "172.31.255.255", "10.9.1.1", "fd12::1"):
        assert address(scope(peer, field)) == CLIENT
    for peer in ("10.0.0.2", "172.32.0.0", "10.10.0.0", "fe00::1"):
        assert address(scope(peer, field)) == peer


# What a hop or a header holds, and which address that is; None: none.
FORMS = [
    pytest.param("192.0.2.7", "192.0.2.7", id="IPv4"),
    pytest.param("192.0.2.7:4711", "192.0.2.7", id="IPv4 with a port"),
    pytest.param(" \t192.0.2.7 \t", "192.0.2.7", id="space around it"),
    pytest.param("2001:db8:1:2::7", SIX, id="IPv6"),
    pytest.param("2001:DB8:0001:2:0:0:0:7", SIX, id="IPv6, long and in capitals"),
    pytest.param("[2001:db8:1:2::7]", SIX, id="IPv6 in brackets"),
    pytest.param("[2001:db8:1:2::7]:4711", SIX, id="IPv6 with a port"),
    pytest.param("fe80::7%eth0", "fe80::7", id="a zone"),
    pytest.param("[fe80::7%25eth0]:80", "fe80::7", id="a zone as in a URL"),
    pytest.param("[fe80::7%eth0]:80", "fe80::7", id="a zone and a port"),
    pytest.param("::ffff:192.0.2.7", "192.0.2.7", id="IPv4 mapped"),
    pytest.param("[::FFFF:c000:207]:80", "192.0.2.7", id="IPv4 mapped, in hexadecimal"),
    pytest.param("64:ff9b::192.0.2.7", "64:ff9b::c000:207", id="IPv4 behind NAT64 stays IPv6"),
    pytest.param("::", "::", id="the unspecified address"),
    pytest.param("", None, id="nothing"),
    pytest.param("unknown", None, id="unknown (RFC 7239)"),
    pytest.param("_hidden", None, id="obfuscated (RFC 7239)"),
    pytest.param("unix", None, id="the word for a Unix socket"),
    pytest.param("unix:", None, id="nginx's word for one"),
    pytest.param("localhost", None, id="a name"),
    pytest.param("for=192.0.2.7", None, id="a pair of Forwarded"),
    pytest.param('"192.0.2.7"', None, id="quoted"),
    pytest.param("192.0.2", None, id="three numbers"),
    pytest.param("192.0.2.7.1", None, id="five numbers"),
    pytest.param("192.0.2.256", None, id="a number too large"),
    pytest.param("192.0.2.07", None, id="a leading zero, which some read as octal"),
    pytest.param("0xc0.0.2.7", None, id="hexadecimal"),
    pytest.param("3221225991", None, id="one number"),
    pytest.param("192.0.2.7:", None, id="a colon without a port"),
    pytest.param("192.0.2.7:port", None, id="a port that is no number"),
    pytest.param("192.0.2.7:123456", None, id="a port too long"),
    pytest.param("192.0.2.7%eth0", None, id="IPv4 with a zone"),
    pytest.param("[192.0.2.7]:80", None, id="IPv4 in brackets"),
    pytest.param("[2001:db8::7", None, id="a bracket that does not end"),
    pytest.param("2001:db8::7]:80", None, id="a bracket that does not begin"),
    pytest.param("2001:db8:::7", None, id="three colons"),
    pytest.param("1:2:3:4:5:6:7:8:9", None, id="nine groups"),
    pytest.param("2001:db8::g", None, id="no hexadecimal digit"),
    pytest.param("fe80::7%", None, id="an empty zone"),
    pytest.param("fe80::7%a b", None, id="a zone with a space"),
    pytest.param("fe80::7%" + "a" * 33, None, id="a long zone"),
    pytest.param("192.0.2.7/32", None, id="a network"),
    pytest.param("192.0.2.7 198.51.100.1", None, id="two, with a space between"),
    pytest.param("192.0.2.7;198.51.100.1", None, id="two, with a semicolon between"),
    pytest.param("192.0.2.7\0", None, id="a NUL behind"),
    pytest.param("192.0.2.7\n", None, id="a line break behind"),
    pytest.param("2001:db8::7\0", None, id="a NUL behind IPv6"),
    pytest.param("2001:db8::7\n", None, id="a line break behind IPv6"),
    pytest.param("\xb9\xb2.0.2.7", None, id="digits that are none"),
    pytest.param('192.0.2.7","key_id":"x', None, id="a forged log line"),
    pytest.param("9" * 30_000, None, id="30,000 characters"),
]


@pytest.mark.parametrize(("value", "address"), FORMS)
@pytest.mark.parametrize("header", [TUNNEL, b"x-real-ip", b"fly-client-ip", LIST])
def test_what_is_an_address(header: bytes, value: str, address: str | None) -> None:
    """In one form, whatever it was written in; what is none leaves the peer."""
    found = ClientAddress((PROXY,), header.decode())(scope(PROXY, (header, value)))
    assert found == (address or PROXY)


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        pytest.param([], PROXY, id="the tunnel did not set it"),
        pytest.param([(TUNNEL, CLIENT)], CLIENT, id="it did"),
        pytest.param([(TUNNEL, CLIENT), (TUNNEL, CLIENT)], PROXY, id="twice, the same"),
        pytest.param([(TUNNEL, "192.0.2.66"), (TUNNEL, CLIENT)], PROXY, id="twice"),
        pytest.param([(TUNNEL, f"192.0.2.66, {CLIENT}")], PROXY, id="joined by a hop between"),
        pytest.param([(TUNNEL, f"{CLIENT},")], PROXY, id="a comma behind"),
        pytest.param([(LIST, CLIENT)], PROXY, id="another header"),
        pytest.param([(LIST, "192.0.2.66"), (TUNNEL, CLIENT)], CLIENT, id="another header beside"),
        pytest.param([(b"cf_connecting_ip", "192.0.2.66")], PROXY, id="with underscores"),
        pytest.param([(TUNNEL, PROXY)], PROXY, id="the proxy itself"),
    ],
)
def test_a_header_that_one_proxy_sets(fields: list[tuple[bytes, str]], address: str) -> None:
    """Exactly one field with exactly one address."""
    assert ClientAddress((PROXY,), "CF-Connecting-IP")(scope(PROXY, *fields)) == address


@pytest.mark.parametrize(
    ("values", "address"),
    [
        pytest.param([], PROXY, id="no field"),
        pytest.param([""], PROXY, id="an empty field"),
        pytest.param([CLIENT], CLIENT, id="one hop"),
        pytest.param([f"192.0.2.66, {CLIENT}"], CLIENT, id="a spoofed hop before it"),
        pytest.param([f"10.0.0.5, {CLIENT}"], CLIENT, id="a spoofed hop that is trusted"),
        pytest.param(
            [f"192.0.2.66,10.0.0.5 ,\t{CLIENT}, 10.0.0.2"], CLIENT, id="a proxy behind it"
        ),
        pytest.param([f"{CLIENT}, 10.0.0.3, 10.0.0.2"], CLIENT, id="two proxies behind it"),
        pytest.param([f"{SIX}, fd00::3"], SIX, id="IPv6 throughout"),
        pytest.param([f"[{SIX}]:443, ::ffff:10.0.0.3"], SIX, id="a port, and a mapped proxy"),
        pytest.param([CLIENT, "10.0.0.2"], CLIENT, id="two fields"),
        pytest.param(["192.0.2.66", CLIENT], CLIENT, id="a spoofed field before it"),
        pytest.param(["10.0.0.2", CLIENT], CLIENT, id="fields in the order of the hops"),
        pytest.param(["", CLIENT], CLIENT, id="an empty field before it"),
        pytest.param(["10.0.0.4, 10.0.0.3, 10.0.0.2"], "10.0.0.4", id="all trusted: the left-most"),
        pytest.param(["10.0.0.2"], "10.0.0.2", id="one, trusted"),
        pytest.param(["192.0.2.66, unknown"], PROXY, id="the right-most is unknown"),
        pytest.param(["192.0.2.66, _hidden, 10.0.0.2"], "10.0.0.2", id="one that is obfuscated"),
        pytest.param(["192.0.2.66, , 10.0.0.2"], "10.0.0.2", id="one that is empty"),
        pytest.param(["192.0.2.66,"], PROXY, id="the right-most is empty"),
        pytest.param(["192.0.2.66", ""], PROXY, id="the last field is empty"),
        pytest.param(["192.0.2.66, unix"], PROXY, id="the word for a Unix socket is no hop"),
        pytest.param([f"junk, {CLIENT}"], CLIENT, id="junk before it"),
        pytest.param([f"10.0.0.2\0, {CLIENT}\0"], PROXY, id="NULs"),
    ],
)
def test_a_list_of_hops(values: list[str], address: str) -> None:
    """The right-most that is not trusted, over all fields; what is no address ends the way."""
    believed = ClientAddress(("10.0.0.0/24", "fd00::/8"), "X-Forwarded-For")
    assert believed(scope(PROXY, *((LIST, value) for value in values))) == address


@pytest.mark.parametrize(
    ("hops", "address"),
    [
        pytest.param(31, CLIENT, id="as many as are looked at"),
        pytest.param(32, CLIENT, id="one more, which is the client"),
        pytest.param(33, "10.0.0.3", id="one too many: the last that was looked at"),
        pytest.param(10_000, "10.0.0.3", id="10,000"),
    ],
)
def test_a_way_is_followed_so_far(hops: int, address: str) -> None:
    """What is trusted may be many, but not without end."""
    proxies = [f"10.0.0.{3 if n == 31 else 2}" for n in range(hops)]
    value = ",".join([CLIENT, *reversed(proxies)])
    believed = ClientAddress(("10.0.0.0/24",), "X-Forwarded-For")
    assert believed(scope(PROXY, (LIST, value))) == address


def test_spoofed_hops_cost_nothing() -> None:
    """The right-most is not trusted: nothing left of it is read."""
    believed = ClientAddress(("10.0.0.0/24",), "X-Forwarded-For")
    value = ",".join(["10.0.0.9"] * 10_000 + [CLIENT])
    assert believed(scope(PROXY, (LIST, value))) == CLIENT


@pytest.mark.parametrize("header", [TUNNEL, LIST])
def test_a_peer_that_says_nothing_usable_is_in_canonical_form(header: bytes) -> None:
    """So that it is one address in the log, whatever socket it came by."""
    believed = ClientAddress((PROXY,), header.decode())
    for fields in ([], [(header, "junk")], [(header, ""), (header, "")]):
        assert believed(scope(f"::ffff:{PROXY}", *fields)) == PROXY


_ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@given(st.lists(st.one_of(st.binary(max_size=50), _ADDRESSES.map(lambda a: str(a).encode()))))
def test_what_comes_out_is_an_address(values: list[bytes]) -> None:
    """Whatever a client writes: an address in one spelling, or the peer's."""
    for header in (LIST, TUNNEL):
        believed = ClientAddress((PROXY, "192.0.2.0/24"), header.decode())
        found = believed(scope(PROXY, *((header, value) for value in values)))
        assert ipaddress.ip_address(found) is not None
        assert found == believed(scope(PROXY, (header, found)))


@given(_ADDRESSES)
def test_every_address_is_read_as_what_it_is(address: Any) -> None:
    """As Python's own library reads it, mapped ones as IPv4."""
    believed = ClientAddress((PROXY,), "X-Real-IP")
    found = believed(scope(PROXY, (b"x-real-ip", str(address))))
    assert ipaddress.ip_address(found) == ipaddress.ip_address(_plain(address))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        pytest.param(CLIENT, CLIENT, id="IPv4: itself"),
        pytest.param("unix", "unix", id="a Unix socket: itself"),
        pytest.param("unknown", "unknown", id="unknown: itself"),
        pytest.param("2001:db8:1:2::7", "2001:db8:1:2::/64", id="IPv6: the first half"),
        pytest.param("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64", id="its last one"),
        pytest.param("2001:db8:1:3::", "2001:db8:1:3::/64", id="the first of the next one"),
        pytest.param("::1", "::/64", id="loopback"),
    ],
)
def test_what_one_client_has_whole(address: str, network: str) -> None:
    """A subscriber of IPv6 has 2^64 addresses, and must not have so many turns."""
    assert subscriber(address) == network


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        pytest.param("192.0.2.1", "192.0.2.1", id="an address"),
        pytest.param("::ffff:192.0.2.1", "192.0.2.1", id="the same in IPv6"),
        pytest.param("2001:db8:1:2:3::4", "2001:db8:1:2::/64", id="IPv6 by /64"),
        pytest.param("fe80::1%eth0", "fe80::/64", id="with a zone"),
        pytest.param("10.0.0.9", None, id="a trusted proxy"),
        pytest.param("::ffff:10.0.0.9", None, id="a trusted one in IPv6"),
        pytest.param("what", "what", id="no address"),
    ],
)
def test_by_what_connections_are_counted(peer: str, counted: str | None) -> None:
    """Those of a trusted proxy are many clients'."""
    assert ClientAddress(["10.0.0.0/24"], "X-Forwarded-For").counted(peer) == counted
