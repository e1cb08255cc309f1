"""What ``verify`` makes of its probes: the right rules are in, and something else decides."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.firewall.egress import Check, Firewall
from tests.harness.networks import Networks

pytestmark = pytest.mark.root

GOOD = {"allow": "172.19.0.3:80,[fd12:19::3]:80"}


@pytest.fixture(scope="module")
def good(networks: Networks, firewall: Firewall) -> Firewall:
    """Our rules, and somebody in the internet who answers on the port that is probed."""
    networks.internet.serve(9)
    firewall.apply(**GOOD)
    return firewall


@dataclass(frozen=True, slots=True)
class Meddling:
    """A rule in another table than ours, and the probes that it meets.

    Attributes:
        rule: Table, chain, and the rule.
        probes: As ``verify`` calls them.
        family: Whose table it is.
    """

    rule: str
    probes: set[str]
    family: int = 4


BY_TCP = {"10.0.0.1 tcp/9", "::ffff:10.0.0.1 tcp/9"}

MEDDLING = {
    "before ours, with an error that a reject has, too": Meddling(
        "raw OUTPUT -d 10.0.0.0/8 -p udp -j DROP", {"10.0.0.1 udp/9"}
    ),
    "over IPv6": Meddling("raw OUTPUT -d fec0::/10 -p udp -j DROP", {"fec0::1 udp/9"}, 6),
    "in the way of one of two that one rule decides about": Meddling(
        "raw OUTPUT -d 100.100.100.200/32 -p udp -j DROP",
        {"100.64.0.1 udp/9", "100.100.100.200 udp/9"},
    ),
    "in the way of what should be let out": Meddling(
        "mangle OUTPUT -d 192.0.2.1/32 -j DROP", {"192.0.2.1 udp/9"}
    ),
    "in the way of an exception": Meddling(
        "mangle OUTPUT -d 172.19.0.3/32 -j DROP", {"172.19.0.3 tcp/80"}
    ),
    "that leads to somebody who answers": Meddling(
        "nat OUTPUT -d 10.0.0.0/8 -j DNAT --to-destination 203.0.113.10",
        {*BY_TCP, "10.0.0.1 udp/9"},
    ),
    "that leads to nobody, where a packet has left and there is no route": Meddling(
        "nat OUTPUT -p tcp -d 10.0.0.0/8 -j DNAT --to-destination 203.0.113.99", BY_TCP
    ),
    "that swallows the refusal": Meddling(
        "raw PREROUTING -s 10.0.0.0/8 -i lo -p tcp -j DROP", BY_TCP
    ),
}


@pytest.fixture
def meddled(good: Firewall, meddling: Meddling) -> Iterator[Meddling]:
    """The rule, for as long as the test takes."""
    table, chain, *rule = meddling.rule.split()
    good.rule(meddling.family, "-t", table, "-A", chain, *rule)
    yield meddling
    good.rule(meddling.family, "-t", table, "-D", chain, *rule)


def probes(checks: list[Check]) -> dict[str, Check]:
    """Those about a probe, by its name."""
    return {check.name: check for check in checks if check.kind == "probe"}


@pytest.mark.parametrize("meddling", MEDDLING.values(), ids=MEDDLING.keys())
def test_a_rule_of_somebody_elses(good: Firewall, meddled: Meddling) -> None:
    """Exactly the probes that it meets are a surprise, because our rule did not decide, or not so."""
    code, report = good.verify(**GOOD)
    assert {check.name for check in report.surprises()} == meddled.probes
    assert (code, report.ok) == (1, False)


def test_without_a_route(good: Firewall, networks: Networks) -> None:
    """What the kernel has no way to is closed, and told as that."""
    for family in ("-4", "-6"):
        networks.proxy.run(["ip", family, "route", "del", "default"])
    good.apply(**GOOD)
    code, report = good.verify(**GOOD)
    networks.proxy.ip("route add default via 172.18.0.1", "route add default via fd12:18::1")
    assert report.surprises() == []
    assert code == 0
    found = probes(report.checks)
    for name in ("10.0.0.1 tcp/9", "10.0.0.1 udp/9", "fc00::1 tcp/9", "fc00::1 udp/9"):
        assert found[name].result.startswith("no route"), found[name]
    assert found["172.18.0.1 tcp/9"].result.startswith("Connection refused")
