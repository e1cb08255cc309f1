"""Every range of ``ranges.txt`` on the wire: what is in it is refused, what is beside it is not."""

from dataclasses import dataclass
from ipaddress import ip_address

import pytest

from tests.firewall.egress import Firewall
from tests.firewall.representatives import (
    INSIDE,
    LINK_LOCAL,
    LOOPBACK,
    MAPPED,
    MULTICAST,
    OUTSIDE,
    REPRESENTATIVES,
    ROUTED,
    bracketed,
)
from tests.harness.figures import Figures
from tests.harness.networks import Answer, Networks

pytestmark = pytest.mark.root


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of each probe without rules and with them, and what the rules have counted."""

    without: dict[str, Answer]
    ruled: dict[str, Answer]
    counted: dict[str, int]
    """Packets by range."""
    mapped: tuple[int, int]
    """Packets to mapped addresses that left the namespace: without rules, with them."""


def probes(address: str) -> list[str]:
    """A probe of each protocol."""
    host = bracketed(address)
    return [f"tcp:{host}:80", f"udp:{host}:80", f"icmp:{address}"]


@pytest.fixture(scope="module")
def seen(networks: Networks, firewall: Firewall, figures: Figures) -> Seen:
    """Every probe, without rules and then with IPv6 open, so that only a range can refuse."""
    lan = {REPRESENTATIVES[cidr] for cidr in ROUTED} | {address for _, address in INSIDE}
    networks.address(networks.lan, "lan", [_lone(one) for one in sorted(lan - _already(networks))])
    networks.address(
        networks.internet, "internet", [_lone(one) for _, one in dict.fromkeys(OUTSIDE)]
    )
    networks.lan.serve(80)
    networks.internet.serve(80)
    groups = [f"{REPRESENTATIVES[cidr]}%tunnel" for cidr in MULTICAST]
    link_local = f"{networks.link_local(networks.tunnel, 'tunnel')}%tunnel"
    networks.tunnel.ip(f"address add {REPRESENTATIVES[LINK_LOCAL]}/64 dev tunnel")
    networks.tunnel.serve(80, join=groups)
    way = "route {} fe80:1::/64 dev tunnel"  # while it is there it is a prefix on the link as well
    networks.proxy.ip(way.format("add"))
    targets = [
        *(target for address in sorted(lan) for target in probes(address)),
        *(target for _, address in OUTSIDE for target in probes(address)),
        *probes(f"{REPRESENTATIVES[LINK_LOCAL]}%tunnel"),
        *probes(link_local),
        f"udp:{REPRESENTATIVES['224.0.0.0/4']}:80",
        f"udp:[{REPRESENTATIVES['ff00::/8']}%tunnel]:80",
        f"raw:[{REPRESENTATIVES[MAPPED]}]",
    ]
    for one in (networks.router, networks.proxy):
        networks.sysctl(one, {"net/ipv4/conf/tunnel/route_localnet": "1"})
    networks.router.serve(80)
    router = Firewall(networks.router, firewall.backend)
    router.rule(6, "-t", "raw", "-A", "PREROUTING", "-d", MAPPED)
    loopback = probes(REPRESENTATIVES[LOOPBACK])
    without = networks.proxy.probe(*targets)
    without |= networks.proxy.probe(*loopback, interface="tunnel")
    left = _packets(router)
    networks.proxy.ip(way.format("del"))
    firewall.apply(ipv6="on")
    networks.proxy.ip(way.format("add"))
    ruled = networks.proxy.probe(*targets)
    ruled |= networks.proxy.probe(*loopback, interface="tunnel")
    counted = {
        cidr: firewall.counted(6 if ":" in cidr else 4, "BULWARK-OUT", f"range {cidr}")
        for cidr in REPRESENTATIVES
    }
    slowest = max(answer.ms for answer in ruled.values() if refused(answer))
    figures.add("Egress", f"slowest refusal, {firewall.backend}", ms=slowest)
    return Seen(without, ruled, counted, (left, _packets(router) - left))


def _lone(address: str) -> str:
    return f"{address}/{ip_address(address).max_prefixlen}"


def _already(networks: Networks) -> set[str]:
    shown = networks.lan.run(["cat", "/proc/net/fib_trie", "/proc/net/if_inet6"]).stdout.split()
    return {word for word in shown if "." in word} | {
        str(ip_address(int(word, 16))) for word in shown if len(word) == 32
    }


def _packets(router: Firewall) -> int:
    saved = router.where.run([f"ip6tables-{router.backend}-save", "-c", "-t", "raw"]).stdout
    return sum(int(line[1:].partition(":")[0]) for line in saved.splitlines() if line[:1] == "[")


def refused(answer: Answer) -> bool:
    """Whether the kernel said no at once: a reset to TCP, "prohibited" to the rest."""
    return answer.outcome == ("refused" if answer.target.startswith("tcp:") else "prohibited")


@pytest.mark.parametrize("cidr", ROUTED)
@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
def test_a_range_is_refused(seen: Seen, cidr: str, protocol: str) -> None:
    """Its representative answers without rules, and is refused with them, by the rule of the range."""
    (target,) = (one for one in probes(REPRESENTATIVES[cidr]) if one.startswith(protocol))
    assert seen.without[target].open
    assert refused(seen.ruled[target]), seen.ruled[target]
    assert seen.counted[cidr] >= 3  # each protocol, and its edges


@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
def test_link_local_is_refused(seen: Seen, protocol: str) -> None:
    """A neighbour's link-local addresses answer without rules, and are refused with them."""
    targets = [one for one in seen.without if "fe80:" in one and one.startswith(protocol)]
    assert len(targets) == 2
    for target in targets:
        assert seen.without[target].open
        assert refused(seen.ruled[target]), seen.ruled[target]
    assert seen.counted[LINK_LOCAL] >= 3


@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
def test_the_hosts_loopback_is_refused(seen: Seen, protocol: str) -> None:
    """A packet to 127/8 that is sent out of an interface is answered without rules, and not with."""
    (target,) = (one for one in probes(REPRESENTATIVES[LOOPBACK]) if one.startswith(protocol))
    assert seen.without[target].open
    # The ICMP error comes in by loopback, which a socket that is bound to an interface never hears.
    assert seen.ruled[target].errno == ("ECONNREFUSED" if protocol == "tcp" else "EPERM")
    assert seen.counted[LOOPBACK] >= 3


@pytest.mark.parametrize("cidr", MULTICAST)
def test_multicast_is_refused(seen: Seen, cidr: str) -> None:
    """A neighbour that has joined a group hears of it without rules, and not with them."""
    scope = "%tunnel" if ":" in cidr else ""
    target = f"udp:{bracketed(REPRESENTATIVES[cidr] + scope)}:80"
    assert seen.without[target].open
    assert not seen.ruled[target].open
    assert seen.ruled[target].errno == "EPERM"  # no ICMP error is about a packet to many
    assert seen.counted[cidr] >= 1


def test_mapped_addresses_are_refused(seen: Seen) -> None:
    """A raw packet to a mapped address leaves without rules, and does not with them."""
    target = f"raw:[{REPRESENTATIVES[MAPPED]}]"
    assert seen.without[target].outcome == "sent"
    assert seen.mapped[0] == 1
    assert seen.ruled[target].outcome == "prohibited", seen.ruled[target]
    assert seen.mapped[1] == 0
    assert seen.counted[MAPPED] == 1


@pytest.mark.parametrize(("cidr", "address"), INSIDE)
def test_the_edges_of_a_range_are_in_it(seen: Seen, cidr: str, address: str) -> None:
    """Its first and its last address are refused as well."""
    for target in probes(address):
        assert seen.without[target].open, target
        assert refused(seen.ruled[target]), seen.ruled[target]


@pytest.mark.parametrize(("cidr", "address"), OUTSIDE)
def test_what_is_beside_a_range_is_open(seen: Seen, cidr: str, address: str) -> None:
    """The addresses just before and after a range are the internet's, and answer."""
    for target in probes(address):
        assert seen.without[target].open, target
        assert seen.ruled[target].open, seen.ruled[target]
