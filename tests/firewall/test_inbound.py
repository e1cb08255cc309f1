"""What comes in: clients are answered, the upstream opens nothing, and nobody passes through."""

import sys
import time

import pytest

from tests.firewall.egress import Firewall
from tests.harness.figures import Figures
from tests.harness.networks import Answer, Namespace, Networks

pytestmark = pytest.mark.root

UPSTREAM = "172.19.0.3:80,[fd12:19::3]:80"

PUBLIC, OTHER, ADMIN = 8080, 7070, 9090
"""The proxy's listeners: for everybody, another, and one on the upstream's network only."""

ON_TUNNEL = ("172.18.0.2", "fd12:18::2")
ON_UPSTREAM = ("172.19.0.2", "fd12:19::2")


@pytest.fixture(scope="module")
def place(networks: Networks) -> Networks:
    """Everybody serves, and everybody knows a way to every address of the proxy, through it."""
    for one in (networks.lan, networks.internet, networks.upstream, networks.tunnel):
        one.serve(80, 5000)
    networks.router.serve(80, 5000)
    networks.proxy.serve(PUBLIC, OTHER)
    for address in ON_UPSTREAM:
        networks.proxy.serve(ADMIN, host=address)
    # A neighbour may give the proxy packets for whomever it likes.
    networks.tunnel.ip(
        "route add 172.19.0.2/32 via 172.18.0.2",
        "route add fd12:19::2/128 via fd12:18::2",
        "route add 172.19.0.3/32 via 172.18.0.2",
        "route add fd12:19::3/128 via fd12:18::2",
    )
    networks.upstream.ip(
        "route add 172.18.0.2/32 via 172.19.0.2",
        "route add fd12:18::2/128 via fd12:19::2",
        "route add 172.18.0.3/32 via 172.19.0.2",
        "route add fd12:18::3/128 via fd12:19::2",
    )
    networks.sysctl(
        networks.proxy, {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}
    )
    return networks


def tcp(*addresses: str, port: int = PUBLIC) -> list[str]:
    """Probes by TCP."""
    return [f"tcp:[{one}]:{port}" if ":" in one else f"tcp:{one}:{port}" for one in addresses]


def udp(*addresses: str, port: int = PUBLIC) -> list[str]:
    """Probes by UDP."""
    return [target.replace("tcp", "udp", 1) for target in tcp(*addresses, port=port)]


def icmp(*addresses: str) -> list[str]:
    """Echo requests."""
    return [f"icmp:{one}" for one in addresses]


def closed(answers: dict[str, Answer]) -> bool:
    """Whether nobody answered any of them."""
    return not any(answer.open for answer in answers.values())


def opened(answers: dict[str, Answer]) -> bool:
    """Whether each was answered."""
    return all(answer.open for answer in answers.values())


BACK = [
    *tcp(*ON_UPSTREAM, *ON_TUNNEL),
    *udp(*ON_UPSTREAM, *ON_TUNNEL),
    *tcp(*ON_UPSTREAM, port=ADMIN),
    *udp(*ON_UPSTREAM, port=ADMIN),
    *icmp(*ON_UPSTREAM, *ON_TUNNEL),
]
"""All that the upstream could open towards the proxy."""

THROUGH = [
    *tcp("172.19.0.3", "fd12:19::3", port=80),
    *udp("172.19.0.3", "fd12:19::3", port=80),
    *icmp("172.19.0.3", "fd12:19::3"),
]
"""What the tunnel sends by way of the proxy to the upstream."""

BACK_THROUGH = [
    *tcp("172.18.0.3", "fd12:18::3", port=80),
    *udp("172.18.0.3", "fd12:18::3", port=80),
    *icmp("172.18.0.3", "fd12:18::3"),
]
"""And the upstream to the tunnel."""

ASTRAY = [*tcp(*ON_UPSTREAM, port=ADMIN), *udp(*ON_UPSTREAM, port=ADMIN), *tcp(*ON_UPSTREAM)]
"""What the tunnel sends to the addresses that the proxy has on the upstream's network."""


def test_everything_passes_without_rules(place: Networks, firewall: Firewall) -> None:
    """Each probe of this module gets its answer before there is a rule."""
    firewall.reset()
    assert opened(place.upstream.probe(*BACK, *BACK_THROUGH))
    assert opened(place.tunnel.probe(*THROUGH, *ASTRAY, *tcp(*ON_TUNNEL)))


CLIENTS = {
    "the tunnel beside it": ("tunnel", None),
    "the host, to a published port": ("router", None),
    "a peer in 192.168/16": ("lan", "192.168.1.10"),
    "a peer in 10/8": ("lan", "10.0.0.5"),
    "a peer in 172.16/12": ("lan", "172.16.3.4"),
    "a peer in fd00/8": ("lan", "fd00:1::10"),
    "a public one": ("internet", "203.0.113.10"),
}


@pytest.mark.case("FW-03")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mode", ["internet", "upstream-only"])
def test_clients_are_answered_and_not_called(
    place: Networks, firewall: Firewall, mode: str, client: str, figures: Figures
) -> None:
    """Replies to private clients go out, while the same peer is refused at once as a target."""
    firewall.hold(mode=mode, allow=UPSTREAM)
    role, source = CLIENTS[client]
    machine: Namespace = getattr(place, role)
    own = [one for one in ON_TUNNEL if source is None or (":" in one) == (":" in source)]
    answers = machine.probe(*tcp(*own), source=source)
    assert opened(answers), answers
    if mode != "internet" or role != "internet":
        # A datagram with a forged address would open a way there.
        assert closed(machine.probe(*udp(*own), source=source, seconds=0.25))
    peers = {answer.said.split(" → ")[0] for answer in answers.values()}
    refused = place.proxy.probe(*tcp(*peers, port=80), *udp(*peers, port=80), *icmp(*peers))
    if mode == "internet" and role == "internet":
        assert opened(refused)
        return
    wanted = {"tcp": "refused", "udp": "prohibited", "icmp": "prohibited"}
    for answer in refused.values():
        assert answer.outcome == wanted[answer.target.partition(":")[0]], answer
    slowest = max(answer.ms for answer in refused.values())
    figures.add("Egress", f"a client as a target is refused, {firewall.backend}", ms=slowest)


BOTH = f"{UPSTREAM},172.19.0.3:80/udp,[fd12:19::3]:80/udp"


@pytest.mark.case("FW-12")
@pytest.mark.parametrize(
    ("allow", "mode"),
    [
        pytest.param(UPSTREAM, "internet", id="addresses"),
        pytest.param(UPSTREAM, "upstream-only", id="addresses, in upstream-only mode"),
        pytest.param("172.19.0.0/29:80,[fd12:19::/64]:80", "upstream-only", id="networks"),
        pytest.param("vllm:80", "upstream-only", id="a name"),
        pytest.param(BOTH, "upstream-only", id="both protocols"),
    ],
)
def test_the_upstream_cannot_connect_back(
    place: Networks, firewall: Firewall, mode: str, allow: str
) -> None:
    """It answers what it is asked, and opens nothing: no port, no protocol, no address."""
    place.proxy.file("hosts", "172.19.0.3 vllm\nfd12:19::3 vllm\n")
    firewall.hold(mode=mode, allow=allow)
    assert opened(place.proxy.probe(*tcp("172.19.0.3", "fd12:19::3", port=80)))
    assert closed(place.upstream.probe(*BACK, seconds=0.25))


def test_the_upstream_cannot_connect_back_from_its_other_address(
    place: Networks, firewall: Firewall
) -> None:
    """Nor by the link-local address that every machine has, which no exception names."""
    own = f"{place.link_local(place.proxy, 'upstream')}%upstream"
    probes = [*tcp(own), *udp(own), *tcp(own, port=OTHER)]
    firewall.reset()
    assert opened(place.upstream.probe(*probes, *icmp(own)))
    firewall.hold(mode="upstream-only", allow=UPSTREAM)
    assert closed(place.upstream.probe(*probes, seconds=0.25))


def test_the_upstream_cannot_connect_back_over_the_other_family(
    place: Networks, firewall: Firewall
) -> None:
    """Nor over IPv6 where only its IPv4 address is an exception, on a network of its own."""
    firewall.hold(mode="upstream-only", allow="172.19.0.3:80")
    assert closed(place.upstream.probe(*BACK, seconds=0.25))


def test_an_exception_that_goes_is_answered_again(place: Networks, firewall: Firewall) -> None:
    """Only an exception is refused on the way in: without it, the same machine is a client."""
    firewall.hold(mode="upstream-only")
    assert opened(place.upstream.probe(*tcp(*ON_UPSTREAM)))


def test_nobody_passes_through(place: Networks, firewall: Firewall) -> None:
    """The proxy is no router between its networks, though the kernel would forward."""
    firewall.hold(allow=UPSTREAM, ipv6="on")
    assert closed(place.tunnel.probe(*THROUGH, seconds=0.25))
    assert closed(place.upstream.probe(*BACK_THROUGH, seconds=0.25))


def test_a_listener_of_another_network(place: Networks, firewall: Firewall) -> None:
    """Who is on the tunnel's network cannot reach what listens on another one's address."""
    firewall.hold()
    assert closed(place.tunnel.probe(*ASTRAY, seconds=0.25))
    assert opened(place.tunnel.probe(*tcp(*ON_TUNNEL), *icmp(*ON_TUNNEL)))
    assert opened(place.upstream.probe(*tcp(*ON_UPSTREAM, port=ADMIN)))


HOST = "172.18.0.1:80,[fd12:18::1]:80"


@pytest.mark.parametrize("port", [PUBLIC, 5000])
def test_an_upstream_on_the_host(place: Networks, firewall: Firewall, port: int) -> None:
    """The host is reached on that port only, and may itself connect to the public port only."""
    firewall = Firewall(firewall.where, firewall.backend, {"PROXY_PORT": str(port)})
    firewall.hold(mode="upstream-only", allow=HOST)
    there = ("172.18.0.1", "fd12:18::1")
    assert opened(place.proxy.probe(*tcp(*there, port=80)))
    assert closed(place.proxy.probe(*tcp(*there, port=5000), *udp(*there, port=80)))
    answers = place.router.probe(*tcp(*ON_TUNNEL), *tcp(*ON_TUNNEL, port=OTHER), seconds=0.25)
    opens = {target for target, answer in answers.items() if answer.open}
    assert opens == (set(tcp(*ON_TUNNEL)) if port == PUBLIC else set())
    assert closed(place.router.probe(*udp(*ON_TUNNEL), *icmp(*ON_TUNNEL), seconds=0.25))


def test_related_packets_are_not_replies(place: Networks, firewall: Firewall) -> None:
    """What a helper calls related to a flow is let neither out nor in by itself."""
    firewall.hold(allow=UPSTREAM)
    assert "RELATED" not in "".join(firewall.both())


ADVERTISE = """
import socket, sys
sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
advertisement = bytes([134, 0, 0, 0, 64, 0, 7, 8]) + bytes(8)
sock.sendto(advertisement, ("ff02::1", 0, 0, socket.if_nametoindex(sys.argv[1])))
"""
"""A router's word that it is one."""


@pytest.mark.parametrize(("network", "taken"), [("upstream", False), ("tunnel", True)])
def test_who_may_be_a_router(
    place: Networks, firewall: Firewall, network: str, taken: bool
) -> None:
    """Nobody on the upstream's network becomes the proxy's; elsewhere IPv6 works as it does."""
    place.sysctl(place.proxy, {f"net/ipv6/conf/{network}/accept_ra": "2"})  # though it forwards
    firewall.apply(mode="upstream-only", allow=UPSTREAM)
    neighbour: Namespace = getattr(place, network)
    show = ["ip", "-6", "route", "show", "default", "proto", "ra"]
    rule = "neighbour discovery" if taken else "network of an exception"
    before = firewall.counted(6, "BULWARK-IN", rule)
    neighbour.run([sys.executable, "-I", "-S", "-c", ADVERTISE, network])
    deadline = time.monotonic() + 10
    while firewall.counted(6, "BULWARK-IN", rule) == before:
        assert time.monotonic() < deadline, "the advertisement did not come"
    routes = place.proxy.run(show).stdout
    place.proxy.run(["ip", "-6", "route", "flush", "proto", "ra"])
    assert (f"dev {network}" in routes) is taken


def test_an_upstream_behind_a_router(place: Networks, firewall: Firewall) -> None:
    """By the link of that router nobody opens anything, as where the exception is on the link."""
    place.proxy.ip("route add 10.9.0.0/16 via 172.19.0.3")
    place.upstream.ip("address add 10.9.0.9/32 dev lo")
    firewall.hold()
    assert opened(place.upstream.probe(*tcp(*ON_UPSTREAM)))
    firewall.hold(mode="upstream-only", allow="10.9.0.9:80")
    assert opened(place.proxy.probe(*tcp("10.9.0.9", port=80)))
    assert closed(place.upstream.probe(*tcp(*ON_UPSTREAM), *udp(*ON_UPSTREAM), seconds=0.25))
    assert opened(place.tunnel.probe(*tcp(*ON_TUNNEL)))
    place.proxy.ip("route del 10.9.0.0/16")
    place.upstream.ip("address del 10.9.0.9/32 dev lo")
