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
    Prober,
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


def test_what_the_tunnel_reaches(deployment: Stack, report: Report) -> None:
    """From a tunnel's container the proxy's public port, and nothing else of the deployment."""
    public, admin = proxys_ports(deployment)
    others = (
        admin,
        ("vLLM", f"tcp:{deployment.vllm}:8000"),
        ("who is on the monitoring network", f"tcp:{deployment.net}.36:80"),
    )
    report.check(
        "From the tunnel's container",
        [Row(*public, OPEN), *rows(others, CLOSED)],
        from_container(deployment, "cloudflared", user=0),
    )


def test_what_neighbours_reach_with_all_of_roots_power(deployment: Stack, report: Report) -> None:
    """Whoever breaks out of a neighbour's container into its network gets to no listener but its own."""
    public, admin = proxys_ports(deployment)
    report.check(
        "From vLLM's network, with all of root's power",
        rows((public, admin), CLOSED),
        with_a_way_to_the_proxy(deployment, "vllm", deployment.inner),
    )
    report.check(
        "From the tunnel's network, with all of root's power",
        [Row(*public, OPEN), Row(*admin, CLOSED)],
        with_a_way_to_the_proxy(deployment, "cloudflared", deployment.proxy),
    )


def proxys_ports(stack: Stack) -> tuple[tuple[str, str], tuple[str, str]]:
    """Both, on the networks where they listen: the tunnel's and the monitoring's."""
    return (
        ("the proxy's public port", f"tcp:{stack.proxy}:8080"),
        ("the proxy's admin port", f"tcp:{stack.admin}:9090"),
    )


def with_a_way_to_the_proxy(stack: Stack, neighbour: str, by: str) -> Prober:
    """From a neighbour's network, which takes the proxy for its router to the other networks."""
    way = f"route replace {stack.net}.0/24 via {by}\n"
    run(stack.in_network(neighbour, "ip", "-batch", "-"), input=way)
    return from_network_of(stack, neighbour)


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
    for neighbour, by in (("vllm", unprotected.inner), ("cloudflared", unprotected.proxy)):
        report.check(
            f"From the network of {neighbour}, with all of root's power, no firewall (control)",
            rows(proxys_ports(unprotected), OPEN),
            with_a_way_to_the_proxy(unprotected, neighbour, by),
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


NAMES = ("rebinding.example",) * 4 + ("metadata.google.internal",)

KNOCK = """
import json, socket, sys
reached = []
for name in sys.argv[1:]:
    address = socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    try:
        socket.create_connection(address, timeout=2).close()
        reached.append((name, address[0], "open"))
    except ConnectionRefusedError:
        reached.append((name, address[0], "rejected"))
print(json.dumps(reached))
"""


@pytest.mark.case("FW-08")
@pytest.mark.case("FW-14")
def test_names_of_private_addresses(deployment: Stack, report: Report) -> None:
    """A name leads nowhere private, also one that was public the moment before."""
    knock = ("python3", "-I", "-S", "-", *NAMES)
    said = deployment.run("proxy", *knock, user=10001, input=KNOCK).stdout
    reached = {tuple(each) for each in json.loads(said)}
    wanted = {
        ("rebinding.example", "203.0.113.10", OPEN),
        ("rebinding.example", "10.0.0.5", "rejected"),
        ("metadata.google.internal", "169.254.169.254", "rejected"),
    }
    for name, address, outcome in sorted(reached | wanted):
        row = Row(name, address, outcome if (name, address, outcome) in wanted else "not that")
        holds = (name, address, outcome) in reached & wanted
        report.add("From the proxy's container, by name", row, outcome, holds=holds)
    assert reached == wanted


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
