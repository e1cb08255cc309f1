"""What may be reached in each mode, over everything that there is: exactly that, and no more."""

from dataclasses import dataclass
from ipaddress import ip_interface

import pytest

from tests.firewall.egress import Firewall
from tests.harness.figures import Figures
from tests.harness.networks import INTERNET, LAN, Answer, Networks

pytestmark = pytest.mark.root

UPSTREAM = ("172.19.0.3", "fd12:19::3")
TUNNEL = ("172.18.0.3", "fd12:18::3")
GATEWAYS = ("172.18.0.1", "fd12:18::1", "172.19.0.1", "fd12:19::1")
PUBLIC_NEIGHBOUR = ("198.51.100.3", "2001:db8:51::3")
"""A container on a bridge with public addresses."""
PUBLIC_GATEWAYS = ("198.51.100.1", "2001:db8:51::1", "192.0.2.254")
"""The router there, and by an address that is in no prefix on the link."""
OWN = ("172.18.0.2", "fd12:18::2", "127.0.0.1", "::1")

PORTS = (53, 80, 81)
RESOLVER, RESOLVERS_PORT = "127.0.0.11", 40053
"""As an engine has it in every container: a listener somewhere on loopback, and rules of nat."""


def of(*addresses: str, tcp: tuple[int, ...] = PORTS, udp: tuple[int, ...] = PORTS) -> set[str]:
    """Probes of these addresses by TCP and UDP on these ports."""
    hosts = [f"[{address}]" if ":" in address else address for address in addresses]
    return {
        f"{kind}:{host}:{port}"
        for host in hosts
        for kind, ports in (("tcp", tcp), ("udp", udp))
        for port in ports
    }


def every(*addresses: str) -> set[str]:
    """All that can be sent to these addresses."""
    return of(*addresses) | {f"icmp:{address}" for address in addresses}


def family(number: int, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Those of one family, without their prefix lengths."""
    plain = [ip_interface(address) for address in addresses]
    return tuple(str(one.ip) for one in plain if one.version == number)


INTERNET_4, INTERNET_6 = every(*family(4, INTERNET)), every(*family(6, INTERNET))
LOOPBACK = every(*OWN)
ENGINES_RESOLVER = of(RESOLVER, tcp=(53, RESOLVERS_PORT), udp=(53, RESOLVERS_PORT))
ALWAYS = LOOPBACK | ENGINES_RESOLVER

EVERYTHING = (
    INTERNET_4
    | INTERNET_6
    | ALWAYS
    | every(*family(4, LAN), *family(6, LAN))
    | every(*UPSTREAM, *TUNNEL, *GATEWAYS, *PUBLIC_NEIGHBOUR, *PUBLIC_GATEWAYS)
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Settings, and all that may be reached with them."""

    settings: dict[str, str]
    reached: set[str]


def scenario(name: str, reached: set[str], **settings: str) -> object:
    """A row; its name says what it expects."""
    return pytest.param(Scenario(settings, reached), id=name)


SCENARIOS = [
    scenario(
        "the internet over IPv4 and nothing else",
        ALWAYS | INTERNET_4,
    ),
    scenario(
        "the internet over both when IPv6 is on",
        ALWAYS | INTERNET_4 | INTERNET_6,
        ipv6="on",
    ),
    scenario(
        "nothing at all in upstream-only mode without an upstream",
        ALWAYS,
        mode="upstream-only",
    ),
    scenario(
        "IPv6 on opens nothing in upstream-only mode",
        ALWAYS,
        mode="upstream-only",
        ipv6="on",
    ),
    scenario(
        "one port of the upstream, by TCP unless told otherwise",
        ALWAYS | of("172.19.0.3", tcp=(80,), udp=()),
        mode="upstream-only",
        allow="172.19.0.3:80",
    ),
    scenario(
        "an exception beside the internet",
        ALWAYS | INTERNET_4 | of("172.19.0.3", tcp=(80,), udp=()),
        allow="172.19.0.3:80",
    ),
    scenario(
        "a whole network on one port",
        ALWAYS
        | of(
            "172.19.0.3", "172.18.0.3", "172.18.0.1", "172.19.0.1", "172.16.3.4", tcp=(81,), udp=()
        ),
        mode="upstream-only",
        allow="172.16.0.0/12:81/tcp",
    ),
    scenario(
        "a name, with every address that it has",
        ALWAYS | of(*UPSTREAM, tcp=(80,), udp=()),
        mode="upstream-only",
        allow="vllm:80",
    ),
    scenario(
        "UDP alone",
        ALWAYS | of("10.0.0.5", tcp=(), udp=(53,)),
        mode="upstream-only",
        allow="10.0.0.5:53/udp",
    ),
    scenario(
        "an address and a network of IPv6, whether IPv6 is on or off",
        ALWAYS | of("fd12:19::3", tcp=(80,), udp=()) | of("fd00:1::10", tcp=(81,), udp=()),
        mode="upstream-only",
        allow="[fd12:19::3]:80,[fd00:1::/64]:81",
    ),
    scenario(
        "a public exception in upstream-only mode",
        ALWAYS | of("203.0.113.10", tcp=(80,), udp=()) | of("2600::10", tcp=(81,), udp=()),
        mode="upstream-only",
        allow="203.0.113.10:80,[2600::10]:81",
    ),
    scenario(
        "several exceptions for one host",
        ALWAYS | of("172.19.0.3", tcp=(80, 81), udp=(53,)),
        mode="upstream-only",
        allow="172.19.0.3:80,172.19.0.3:81,172.19.0.3:53/udp",
    ),
    scenario(
        "not what is denied, by network, address and name",
        ALWAYS | every("192.0.2.1", "2001:db8:1::10"),
        ipv6="on",
        deny="203.0.113.10,google,2600::/16",
    ),
    scenario(
        "an exception in what is denied",
        ALWAYS | INTERNET_4 - every("203.0.113.10") | of("203.0.113.10", tcp=(80,), udp=()),
        allow="203.0.113.10:80",
        deny="203.0.113.0/24",
    ),
    scenario(
        "a resolver on the LAN, on its port, by both protocols",
        ALWAYS | of("192.168.1.10", "fd00:1::10", tcp=(53,), udp=(53,)),
        mode="upstream-only",
        dns="192.168.1.10,fd00:1::10",
    ),
    scenario(
        "a public resolver in upstream-only mode",
        ALWAYS | of("8.8.8.8", tcp=(53,), udp=(53,)),
        mode="upstream-only",
        dns="8.8.8.8",
    ),
    scenario(
        "not even the engine's resolver, with DNS none",
        LOOPBACK,
        mode="upstream-only",
        dns="none",
    ),
]


@pytest.fixture(scope="module")
def place(networks: Networks, firewall: Firewall) -> Networks:
    """The networks with a neighbour in a public range, an engine's resolver, and names."""
    networks.bridge("street", "198.51.100.1/24", "2001:db8:51::1/64")
    neighbour = networks.namespace("neighbour")
    networks.connect(neighbour, "street", "198.51.100.3/24", "2001:db8:51::3/64", default=True)
    networks.connect(networks.proxy, "street", "198.51.100.2/24", "2001:db8:51::2/64")
    networks.router.ip("address add 192.0.2.254/32 dev street")
    networks.proxy.ip("route add default via 192.0.2.254 dev street onlink metric 5000")
    networks.proxy.file(
        "hosts",
        "".join(f"{one} vllm\n" for one in UPSTREAM) + "8.8.8.8 google\n127.0.0.1 localhost\n",
    )
    networks.proxy.file("resolv.conf", f"nameserver {RESOLVER}\n")
    for one in (networks.lan, networks.internet, networks.upstream, networks.tunnel, neighbour):
        one.serve(*PORTS)
    networks.router.serve(*PORTS)
    networks.proxy.serve(*PORTS)
    networks.proxy.serve(RESOLVERS_PORT, host=RESOLVER)
    engines_nat(firewall)
    return networks


def engines_nat(firewall: Firewall) -> None:
    """The rules by which an engine has its resolver on port 53."""
    chain = ("-d", f"{RESOLVER}/32")
    firewall.rule(4, "-t", "nat", "-N", "DOCKER_OUTPUT")
    firewall.rule(4, "-t", "nat", "-A", "OUTPUT", *chain, "-j", "DOCKER_OUTPUT")
    for kind in ("tcp", "udp"):
        to = ("-j", "DNAT", "--to-destination", f"{RESOLVER}:{RESOLVERS_PORT}")
        rule = ("-A", "DOCKER_OUTPUT", *chain, "-p", kind, "-m", kind, "--dport", "53", *to)
        firewall.rule(4, "-t", "nat", *rule)


def probe(place: Networks) -> dict[str, Answer]:
    """What becomes of everything."""
    return place.proxy.probe(*sorted(EVERYTHING))


@pytest.fixture(scope="module")
def control(place: Networks) -> dict[str, Answer]:
    """Without rules."""
    return probe(place)


def test_everything_answers_without_rules(control: dict[str, Answer]) -> None:
    """Each probe gets its answer before there is a rule: else its refusal would prove nothing."""
    assert [answer for answer in control.values() if not answer.open] == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exactly_the_table(
    control: dict[str, Answer],
    place: Networks,
    firewall: Firewall,
    scenario: Scenario,
    figures: Figures,
) -> None:
    """What the row names answers; everything else is refused at once, by the kernel."""
    firewall.hold(**scenario.settings)
    answers = probe(place)
    assert {target for target, answer in answers.items() if answer.open} == scenario.reached
    closed = {answer.target: answer for answer in answers.values() if not answer.open}
    assert {
        target: answer
        for target, answer in closed.items()
        if answer.outcome != ("refused" if target.startswith("tcp") else "prohibited")
    } == {}
    figures.add("Egress", f"probes of each mode, {firewall.backend}", probes=len(EVERYTHING))


@pytest.mark.case("FW-08")
@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"],
)
@pytest.mark.parametrize("mode", ["internet", "upstream-only"])
def test_metadata_is_refused(place: Networks, firewall: Firewall, mode: str, address: str) -> None:
    """The addresses where clouds keep credentials, in ranges of four kinds, are refused."""
    firewall.hold(mode=mode, ipv6="on")
    answers = place.proxy.probe(*of(address, tcp=(80,), udp=(80,)))
    assert {answer.outcome for answer in answers.values()} == {"refused", "prohibited"}


HOST = ("172.18.0.1", "172.19.0.1", "192.168.1.1", "fd12:18::1", "fd12:19::1", "fd00:1::1")
"""Addresses of the machine that the container runs on."""
PUBLIC_HOST = ("203.0.113.1", "2001:db8:1::1")


@pytest.mark.case("FW-01")
@pytest.mark.parametrize("mode", ["internet", "upstream-only"])
def test_the_host_is_refused(place: Networks, firewall: Firewall, mode: str) -> None:
    """The host by its bridges and by its address on the LAN, which no forwarding rule would see."""
    firewall.reset()
    assert all(answer.open for answer in place.proxy.probe(*every(*HOST, *PUBLIC_HOST)).values())
    firewall.hold(mode=mode)
    assert not any(answer.open for answer in place.proxy.probe(*every(*HOST)).values())


@pytest.mark.case("FW-01")
def test_the_hosts_public_address(place: Networks, firewall: Firewall) -> None:
    """Nothing in a container knows it: in internet mode it must be named, and then is refused."""
    firewall.hold(mode="upstream-only", ipv6="on")
    assert not any(answer.open for answer in place.proxy.probe(*every(*PUBLIC_HOST)).values())
    firewall.hold(ipv6="on", deny=",".join(PUBLIC_HOST))
    assert not any(answer.open for answer in place.proxy.probe(*every(*PUBLIC_HOST)).values())


@pytest.mark.case("FW-02")
@pytest.mark.parametrize("ipv6", ["on", "off"])
def test_a_name_of_the_lan_over_ipv6(place: Networks, firewall: Firewall, ipv6: str) -> None:
    """A device of the LAN is refused by its unique local and its link-local address as well."""
    gateway = place.link_local(place.router, "tunnel")
    targets = [*every("fd00:1::10", "fd00:ec2::254"), f"tcp:[{gateway}%tunnel]:80"]
    firewall.reset()
    assert all(answer.open for answer in place.proxy.probe(*targets).values())
    firewall.hold(ipv6=ipv6)
    answers = place.proxy.probe(*targets).values()
    assert {answer.outcome for answer in answers} == {"refused", "prohibited"}


def test_neighbours_are_found(place: Networks, firewall: Firewall) -> None:
    """The kernel may still ask who has an IPv6 address: by multicast, which is refused otherwise."""
    firewall.hold(mode="upstream-only", allow="[fd12:19::3]:80,[2600::10]:80")
    place.proxy.ip("neighbour flush dev tunnel", "neighbour flush dev upstream")
    place.upstream.ip("neighbour flush dev upstream")
    answers = place.proxy.probe("tcp:[fd12:19::3]:80", "tcp:[2600::10]:80")
    assert all(answer.open for answer in answers.values()), answers


@pytest.mark.case("FW-07")
@pytest.mark.parametrize("mode", ["internet", "upstream-only"])
def test_the_engines_resolver_answers(place: Networks, firewall: Firewall, mode: str) -> None:
    """127.0.0.11 is asked on port 53 and answers from another, by rules that are left alone."""
    before = firewall.saved(4, table="nat")
    firewall.hold(mode=mode)
    answers = place.proxy.probe(*of(RESOLVER, tcp=(53,), udp=(53,)))
    assert all(answer.open for answer in answers.values())
    assert firewall.saved(4, table="nat") == before


SPELLINGS = [
    "tcp:[::ffff:10.0.0.5]:80",
    "tcp:[::ffff:a00:5]:80",
    "tcp:0x0a000005:80",
    "tcp:167772165:80",
    "tcp:012.0.0.5:80",
    "tcp:10.5:80",
    "udp:[::ffff:10.0.0.5]:80",
]


@pytest.mark.case("FW-14")
def test_other_spellings_of_an_address(place: Networks, firewall: Firewall) -> None:
    """However an address of the LAN is written, its packets are the same, and refused."""
    firewall.reset()
    assert all(answer.open for answer in place.proxy.probe(*SPELLINGS).values())
    firewall.hold()
    answers = place.proxy.probe(*SPELLINGS).values()
    assert {answer.outcome for answer in answers} == {"refused", "prohibited"}


@pytest.mark.case("FW-14")
def test_a_name_that_changes(place: Networks, firewall: Firewall) -> None:
    """What a name is later plays no part: an exception is for the address that it had at apply."""
    place.proxy.file("hosts", "203.0.113.10 vllm\n")
    firewall.apply(mode="upstream-only", allow="vllm:80")
    place.proxy.file("hosts", "10.0.0.5 vllm\n")
    answers = place.proxy.probe("tcp:203.0.113.10:80", "tcp:10.0.0.5:80")
    assert answers["tcp:203.0.113.10:80"].open
    assert answers["tcp:10.0.0.5:80"].outcome == "refused"


def test_addresses_are_judged_after_they_are_rewritten(place: Networks, firewall: Firewall) -> None:
    """A rule of nat that leads from a public address into the LAN leads to a refusal."""
    to = ("-j", "DNAT", "--to-destination", "10.0.0.5")
    firewall.reset()
    firewall.rule(4, "-t", "nat", "-A", "OUTPUT", "-d", "8.8.8.8/32", *to)
    targets = of("8.8.8.8", tcp=(80,), udp=(80,))
    assert {answer.said.split(" → ")[1] for answer in place.proxy.probe(*targets).values()} == {
        "10.0.0.5"
    }
    firewall.hold()
    answers = place.proxy.probe(*targets).values()
    firewall.rule(4, "-t", "nat", "-D", "OUTPUT", "-d", "8.8.8.8/32", *to)
    assert {answer.outcome for answer in answers} == {"refused", "prohibited"}


PROTOCOLS = (2, 4, 41, 47, 50, 132)
"""IGMP, IPv4 in IP, IPv6 in IP, GRE, ESP, SCTP."""


def test_other_protocols(place: Networks, firewall: Firewall) -> None:
    """Tunnels and whatever else is neither TCP nor UDP: not one packet gets to the LAN."""
    targets = [f"raw{number}:{one}" for number in PROTOCOLS for one in ("10.0.0.5", "fd00:1::10")]
    firewall.reset()
    answers = place.proxy.probe(*targets)
    assert {answer.outcome for answer in answers.values()} == {"sent"}
    firewall.hold(mode="internet", allow="10.0.0.5:80,10.0.0.5:80/udp,[fd00:1::10]:80")
    answers = place.proxy.probe(*targets)
    # Of some, which the kernel has tunnels for, no error comes back to a raw socket.
    assert {answer.outcome for answer in answers.values()} <= {"prohibited", "dropped"}
