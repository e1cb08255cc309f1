"""Deployments that an operator has set up otherwise, each in the few lines that this takes."""

import json
import sys
from typing import Any

import pytest

from tests.e2e.harness.chat import Chat
from tests.e2e.harness.engine import Engine
from tests.e2e.harness.places import (
    HOST,
    INTERNET,
    LAN,
    PUBLIC,
    rows,
)
from tests.e2e.harness.probes import (
    CLOSED,
    OPEN,
    REJECTED,
    Prober,
    Report,
    Row,
    from_container,
)
from tests.e2e.harness.resolving import assert_names
from tests.e2e.harness.servers import HOME_RESOLVER
from tests.e2e.harness.stack import DEMO, Stack, until
from tests.harness.networks import Networks

WORDS = 30


def soon(**proxy: Any) -> dict[str, Any]:
    """An overlay with this for the proxy, whose health is looked at each second."""
    return {"services": {"proxy": {"healthcheck": {"interval": "1s"}, **proxy}}}


def test_a_resolver_at_home(engine: Engine, report: Report) -> None:
    """Where names are asked of a machine of the LAN, that is said; named in EGRESS_DNS it may be asked.

    And what is named in EGRESS_DENY is closed, such as this machine's own public address.
    """
    place = f"Names in the proxy's container, resolver {HOME_RESOLVER}"
    with Stack(engine, overlay=soon(dns=[HOME_RESOLVER])) as stack:
        stack.up()
        assert any("EGRESS_DNS" in line for line in stack.logs("proxy").splitlines())
        names = {"vllm": stack.vllm, "example.com": ""}
        assert_names(stack, report, place, names)
        settings = {"EGRESS_DNS": HOME_RESOLVER, "EGRESS_DENY": "203.0.113.1"}
        stack.overlay(soon(dns=[HOME_RESOLVER], environment=settings))
        stack.up()
        names = {"vllm": stack.vllm, "example.com": "203.0.113.10"}
        assert_names(stack, report, f"{place}, EGRESS_DNS", names)
        report.check(
            "From the proxy's container, EGRESS_DENY=203.0.113.1",
            [
                *rows(PUBLIC, REJECTED),
                *rows(INTERNET, OPEN),
                Row("its neighbour by number", "tcp:203.0.113.10:80", OPEN),
                Row("the resolver's other ports", f"tcp:{HOME_RESOLVER}:22", REJECTED),
            ],
            from_container(stack, "proxy"),
        )


@pytest.mark.case("DK-03")
def test_an_upstream_on_this_machine(engine: Engine, networks: Networks, report: Report) -> None:
    """``host.docker.internal`` works on Linux, and only that port of this machine is open."""
    model = ("-m", "proxy", "demo", "--model-only", "--host", "172.17.0.1", "--port", "8000")
    networks.router.popen([sys.executable, *model])
    there = "tcp:172.17.0.1:8000"
    until(lambda: networks.router.probe(there)[there].open, "the model does not serve")
    with Stack(engine, (*DEMO, "compose.host.yaml"), soon()) as stack:
        stack.up()
        report.check(
            "From the proxy's container, the upstream on this machine",
            [
                Row("the upstream", there, OPEN),
                *rows((*HOST, *LAN), REJECTED),
                Row("the gateway", f"tcp:{stack.net}.1:22", REJECTED),
                Row("the upstream's port, elsewhere", "tcp:192.168.1.10:8000", REJECTED),
            ],
            from_container(stack, "proxy"),
        )
        Chat(networks.router, stack.port, f"count to {WORDS}").end().assert_counted_live(WORDS)


def test_an_upstream_without_a_network(engine: Engine, networks: Networks, report: Report) -> None:
    """By a Unix socket a chat works, although the model has no network and the proxy no exception."""
    files = ("compose.yaml", "compose.uds.yaml", "compose.demo.yaml")
    with Stack(engine, files, soon()) as stack:
        stack.up()
        assert stack.inspect("vllm")["HostConfig"]["NetworkMode"] == "none"
        assert not json.loads(stack.run("vllm", "python3", "-c", _INTERFACES, user=10001).stdout), (
            "the model has a network"
        )
        Chat(networks.router, stack.port, f"count to {WORDS}").end().assert_counted_live(WORDS)
        report.check(
            "From vLLM's container, on a Unix socket",
            rows((*LAN, *HOST, *PUBLIC, *INTERNET), CLOSED),
            from_container(stack, "vllm", user=0),
        )
        targets = (*LAN, *HOST, ("the upstream's network", f"tcp:{stack.vllm}:8000"))
        report.check(
            "From the proxy's container, on a Unix socket",
            rows(targets, REJECTED),
            from_container(stack, "proxy"),
        )
        allowed = stack.run("proxy", "sh", "-c", "iptables-save | grep -- '\"allow '", check=False)
        assert not allowed.stdout, "there is an exception"


_INTERFACES = """
import json, socket
print(json.dumps([name for _, name in socket.if_nameindex() if name != "lo"]))
"""


@pytest.mark.case("DK-02")
@pytest.mark.case("FW-02")
def test_with_ipv6(engine: Engine, report: Report) -> None:
    """On a network with IPv6 it becomes healthy; IPv6 is closed, and with EGRESS_IPV6=on what is private."""
    with Stack(engine) as stack:

        def start(**environment: str) -> Prober:
            subnets = [{"subnet": f"{stack.net}.0/28"}, {"subnet": "fd00:30::/64"}]
            tunnel = {"enable_ipv6": True, "ipam": {"config": subnets}}
            stack.overlay({**soon(environment=environment), "networks": {"tunnel": tunnel}})
            stack.up()
            return from_container(stack, "proxy")

        private = rows(
            (
                ("the LAN", "tcp:[fd00:1::10]:80"),
                ("the LAN, UDP", "udp:[fd00:1::10]:80"),
                ("AWS's metadata service", "tcp:[fd00:ec2::254]:80"),
                ("the host on the LAN", "tcp:[fd00:1::1]:22"),
                ("the gateway", "tcp:[fd00:30::1]:22"),
            ),
            REJECTED,
        )
        public = (("the internet", "tcp:[2600::10]:443"),)
        place = "From the proxy's container, with IPv6"
        control = [Row(row.what, row.target, OPEN) for row in private]
        report.check(
            f"{place}, without the firewall (control)",
            [*control, *rows(public, OPEN)],
            start(EGRESS_FIREWALL="off"),
        )
        report.check(place, [*private, *rows(public, REJECTED)], start())
        report.check(
            f"{place} and EGRESS_IPV6=on", [*private, *rows(public, OPEN)], start(EGRESS_IPV6="on")
        )
