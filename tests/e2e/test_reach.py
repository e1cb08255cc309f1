"""What can be reached from the model's container, and from the proxy's, and from around them."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e.harness import neighbours
from tests.e2e.harness.engine import Engine
from tests.e2e.harness.places import (
    HOST,
    INTERNET,
    IPV6,
    LAN,
    PUBLIC,
    SPELLINGS,
    beside,
    gateways,
    rows,
)
from tests.e2e.harness.probes import (
    CLOSED,
    MEASURED,
    OPEN,
    REJECTED,
    Report,
    Row,
    from_container,
    from_namespace,
    from_network_of,
    run,
)
from tests.e2e.harness.stack import Stack
from tests.harness.networks import Networks


@pytest.mark.case("FW-12")
def test_what_vllm_reaches(deployment: Stack, report: Report) -> None:
    """From the model's container nothing at all is reached, not even the proxy that asks it."""
    proxy = (
        ("the proxy", f"tcp:{deployment.proxy}:8080"),
        ("the proxy on their network", f"tcp:{deployment.inner}:8080"),
        ("the proxy's admin port", f"tcp:{deployment.admin}:9090"),
        ("the proxy's admin port on their network", f"tcp:{deployment.inner}:9090"),
    )
    own_gateway = ("the host on their network", f"tcp:{deployment.net}.17:22")
    host = (*HOST, *PUBLIC, *gateways(deployment))
    report.check(
        "From vLLM's container",
        [
            *rows((*LAN, *host, *INTERNET, *proxy, *SPELLINGS), CLOSED),
            Row(*own_gateway, CLOSED if deployment.engine.isolates else MEASURED),
        ],
        from_container(deployment, "vllm", user=0),
    )


def test_what_vllm_reaches_with_all_of_roots_power(deployment: Stack, report: Report) -> None:
    """Whoever breaks out of the model's container into its network cannot open anything to the proxy's."""
    # A way to the proxy's other networks: by the proxy itself, as a router between them.
    ways = [f"route add {deployment.net}.0/24 via {deployment.inner}", "address show"]
    run(deployment.in_network("vllm", "ip", "-batch", "-"), input="\n".join(ways))
    targets = (
        ("the proxy's public port", f"tcp:{deployment.proxy}:8080"),
        ("the proxy's admin port", f"tcp:{deployment.admin}:9090"),
        ("the proxy on their network", f"tcp:{deployment.inner}:8080"),
        ("the tunnel, through the proxy", f"tcp:{deployment.tunnel}:80"),
        ("the monitoring, through the proxy", f"tcp:{deployment.net}.36:80"),
        ("the host, through the proxy", f"tcp:{deployment.net}.1:22"),
    )
    report.check(
        "From vLLM's network, with all of root's power",
        rows(targets, CLOSED),
        from_network_of(deployment, "vllm"),
    )


@pytest.fixture(scope="module")
def unprotected(engine: Engine) -> Iterator[Stack]:
    """The same deployment without a firewall in the proxy."""
    overlay = neighbours.overlay()
    overlay["services"]["proxy"]["environment"] = {"EGRESS_FIREWALL": "off"}
    with Stack(engine, overlay=overlay) as made:
        yield made.up()


def test_what_the_proxy_would_reach_without_its_firewall(
    unprotected: Stack, report: Report
) -> None:
    """The control: everything that the proxy is kept from does listen, and would answer it."""
    targets = (
        *LAN,
        *HOST,
        *PUBLIC,
        *INTERNET,
        *SPELLINGS,
        *gateways(unprotected),
        *beside(unprotected),
    )
    report.check(
        "From the proxy's container, without the firewall (control)",
        rows(targets, OPEN),
        from_container(unprotected, "proxy"),
    )


@pytest.mark.case("FW-01")
@pytest.mark.case("FW-08")
@pytest.mark.case("FW-14")
def test_what_the_proxy_reaches(deployment: Stack, report: Report) -> None:
    """From the proxy's container only the public internet and the upstream's port are reached."""
    rejected = (*LAN, *HOST, *SPELLINGS, *gateways(deployment), *beside(deployment))
    allowed = (("the upstream", f"tcp:{deployment.vllm}:8000"), *INTERNET, *PUBLIC)
    for user, who in ((10001, "the server's user"), (0, "root")):
        report.check(
            f"From the proxy's container, as {who}",
            [*rows(rejected, REJECTED), *rows(IPV6, CLOSED), *rows(allowed, OPEN)],
            from_container(deployment, "proxy", user=user),
        )


@pytest.mark.case("FW-14")
def test_a_name_that_is_public_and_then_private(deployment: Stack, report: Report) -> None:
    """A name whose address turns from a public into a private one leads to the public one only."""
    reached = json.loads(
        deployment.run("proxy", "python3", "-I", "-S", "-", user=10001, input=_REBINDING).stdout
    )
    place = "From the proxy's container, a name that is rebound"
    for address, outcome in reached:
        expected = OPEN if address == "203.0.113.10" else "rejected"
        row = Row("rebinding.example", address, expected)
        report.add(place, row, outcome, holds=outcome == expected)
    assert {tuple(pair) for pair in reached} == {("203.0.113.10", OPEN), ("10.0.0.5", "rejected")}


_REBINDING = """
import json, socket
reached = []
for _ in range(4):
    address = socket.getaddrinfo("rebinding.example", 80, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    try:
        socket.create_connection(address, timeout=2).close()
        reached.append((address[0], "open"))
    except ConnectionRefusedError:
        reached.append((address[0], "rejected"))
print(json.dumps(reached))
"""


@pytest.mark.case("DK-01")
def test_what_others_reach(deployment: Stack, networks: Networks, report: Report) -> None:
    """Neither the LAN nor the internet reaches the proxy or the upstream; this machine reaches the proxy."""
    published = (
        ("the published port on the host's address", f"tcp:192.168.1.1:{deployment.port}"),
        ("the published port on a bridge's address", f"tcp:{deployment.net}.1:{deployment.port}"),
        ("vLLM's port on the host's address", "tcp:192.168.1.1:8000"),
    )
    # By the containers' own addresses, of which this machine is the router.
    inside = (
        ("the admin port", f"tcp:{deployment.admin}:9090"),
        ("vLLM", f"tcp:{deployment.vllm}:8000"),
    )
    proxy = ("the proxy", f"tcp:{deployment.proxy}:8080")
    for name, machine in (("the LAN", networks.lan), ("the internet", networks.internet)):
        control = Row("a service of the host (control)", "tcp:192.168.1.1:22", OPEN)
        report.check(
            f"From {name}",
            [
                *rows((*published, *inside), CLOSED),
                Row(*proxy, CLOSED if deployment.engine.isolates else MEASURED),
                control,
            ],
            from_namespace(machine),
        )
    local = (("the published port", f"tcp:127.0.0.1:{deployment.port}"),)
    report.check("From the host", rows(local, OPEN), from_namespace(networks.router))
