"""What ``apply`` tells the operator: what is open, what a name is, and which resolver is cut off."""

import pytest

from tests.firewall.egress import Firewall
from tests.harness.networks import Networks

pytestmark = pytest.mark.root

ENGINES = "nameserver 127.0.0.11\n# ExtServers: [{}]\n"
"""As Docker writes it: it asks these itself, from inside of the container's network."""

PRIVATE, PUBLIC = "192.168.1.1", "8.8.8.8"

RESOLVERS = {
    "a private one of the engine": (ENGINES.format(PRIVATE), {}, True),
    "that is named": (ENGINES.format(PRIVATE), {"dns": PRIVATE}, False),
    "a public one of the engine": (ENGINES.format(PUBLIC), {}, False),
    "a public one in upstream-only mode": (ENGINES.format(PUBLIC), {"mode": "upstream-only"}, True),
    "one that the engine asks from the host": (ENGINES.format(f"host({PRIVATE})"), {}, False),
    "a private one without an engine": (f"nameserver {PRIVATE}\n", {}, True),
    "a private one over IPv6": ("nameserver fd00:1::10\n", {}, True),
}


@pytest.mark.parametrize(("file", "settings", "told"), RESOLVERS.values(), ids=RESOLVERS.keys())
def test_a_resolver_that_is_cut_off(
    networks: Networks, firewall: Firewall, file: str, settings: dict[str, str], told: bool
) -> None:
    """A resolver of the namespace that is refused now is named, and the setting that opens it."""
    networks.proxy.file("resolv.conf", file)
    notices = [line for line in firewall.apply(**settings).stdout.splitlines() if "notice" in line]
    assert len(notices) == told
    for line in notices:
        assert "EGRESS_DNS" in line
        assert any(one in line for one in (PRIVATE, PUBLIC, "fd00:1::10"))


def test_addresses_of_a_name(networks: Networks, firewall: Firewall) -> None:
    """Each name is printed with what it was at apply, for that is what the rules are about."""
    networks.proxy.file("hosts", "172.19.0.3 vllm\nfd12:19::3 vllm\n203.0.113.10 bad\n")
    told = firewall.apply(allow="vllm:8000", deny="bad").stdout
    for words in (("vllm", "172.19.0.3", "fd12:19::3"), ("bad", "203.0.113.10")):
        assert any(all(word in line for word in words) for line in told.splitlines()), told


UPSTREAMS = "nobody on the network of upstream may open connections"
WIDE = "no host there may open connections to the proxy"

SHUT_OUT: dict[str, tuple[dict[str, str], list[str]]] = {
    "the upstream's own network": ({"allow": "172.19.0.3:80"}, [UPSTREAMS]),
    "over the other family": ({"allow": "[fd12:19::3]:80"}, [UPSTREAMS]),
    "an exception on the clients' network": ({"allow": "172.18.0.3:80"}, []),
    "all of the clients' network": ({"allow": "172.18.0.0/16:80"}, [WIDE]),
    "more than the clients' network": ({"allow": "[fd12:18::/60]:80"}, [WIDE]),
    "part of the clients' network": ({"allow": "172.18.0.0/17:80"}, []),
    "an exception elsewhere": ({"allow": "10.0.0.5:80"}, []),
}


@pytest.mark.parametrize(("settings", "told"), SHUT_OUT.values(), ids=SHUT_OUT.keys())
def test_who_is_shut_out(
    networks: Networks, firewall: Firewall, settings: dict[str, str], told: list[str]
) -> None:
    """An exception costs those on its network something, who would find out by a time-out."""
    networks.proxy.file("resolv.conf", "")
    said = firewall.apply(**settings).stdout.splitlines()
    notices = [line for line in said if "notice" in line]
    assert len(notices) == len(told), notices
    assert all(word in line for word, line in zip(told, notices, strict=True))
