"""Whose network it is: a container's own is taken wholly, the host's only for one user."""

from dataclasses import dataclass

import pytest

from tests.firewall.egress import USER, Firewall
from tests.harness.networks import Answer, Namespace, Networks

pytestmark = pytest.mark.root

CLOSED = 81
"""A port that an administrator of the host has closed to everybody."""

HOST_CHAINS = ["DOCKER", "DOCKER-USER", "KUBE-SERVICES", "CNI-FORWARD", "cali-INPUT"]


@dataclass(frozen=True, slots=True)
class Home:
    """A host of containers behind the router, and a container on it."""

    networks: Networks
    host: Namespace
    container: Namespace


@pytest.fixture(scope="module")
def home(networks: Networks) -> Home:
    """Everybody serves; the host forwards for its container, and serves on a second port itself."""
    host = networks.machine(
        "host", "192.168.7.1/24", "fd00:7::1/64", ("192.168.7.10/24", "fd00:7::10/64")
    )
    networks.sysctl(host, {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
    networks.bridge("docker0", "172.17.0.1/16", "fd12:17::1/64", host=host)
    container = networks.namespace("container")
    networks.connect(
        container, "docker0", "172.17.0.2/16", "fd12:17::2/64", default=True, host=host
    )
    networks.router.ip(
        "route add 172.17.0.0/16 via 192.168.7.10", "route add fd12:17::/64 via fd00:7::10"
    )
    host.ip(f"address add {PUBLIC_OWN}/32 dev lo")
    for one in (networks.lan, networks.internet, container):
        one.serve(80, CLOSED)
    host.serve(80, 8000)
    return Home(networks, host, container)


@pytest.fixture
def host(home: Home, backend: str) -> Firewall:
    """The host's namespace with its engine's rules and without ours."""
    made = Firewall(home.host, backend, {"EGRESS_SCOPE": "uid", "EGRESS_UID": str(USER)})
    made.reset(
        "*filter\n:DOCKER - [0:0]\n:DOCKER-USER - [0:0]\n"
        "-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -j RETURN\n"
        f"-A OUTPUT -p tcp -m tcp --dport {CLOSED} -j REJECT --reject-with tcp-reset\nCOMMIT"
    )
    return made


def refuses(firewall: Firewall, *words: str) -> None:
    """Asserts that it is exit 2 with one line that has these words, and that no rule was made."""
    before = firewall.both()
    done = firewall.call("apply")
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in ("egress: ", "EGRESS_SCOPE", *words)), line
    assert firewall.both() == before


def test_a_namespace_with_a_bridge_is_refused(home: Home, backend: str) -> None:
    """Containers have no bridges: it is the host's network, where rules would cut off everybody."""
    firewall = Firewall(home.host, backend)
    firewall.reset()
    refuses(firewall, "bridge")


@pytest.mark.parametrize("chain", HOST_CHAINS)
def test_a_namespace_with_an_engines_chains_is_refused(firewall: Firewall, chain: str) -> None:
    """Nor have they an engine's chains of the filter table."""
    firewall.reset(f"*filter\n:{chain} - [0:0]\nCOMMIT")
    refuses(firewall, chain)
    firewall.reset()
    firewall.apply()


def test_chains_in_the_other_backend_are_found(firewall: Firewall) -> None:
    """Whichever backend the engine uses, it is looked for in both."""
    other = Firewall(firewall.where, "legacy" if firewall.backend == "nft" else "nft")
    firewall.reset()
    other.reset("*filter\n:DOCKER - [0:0]\nCOMMIT")
    refuses(firewall, "DOCKER")
    other.reset()


def test_a_namespace_with_a_physical_device_is_refused(firewall: Firewall) -> None:
    """Hardware belongs to the host; here, a /sys that shows one."""
    firewall.reset()
    before = firewall.both()
    fake = 'mount -t tmpfs none /sys/class/net; mkdir -p /sys/class/net/eth0/device; exec "$@"'
    done = firewall.call("apply", around=["sh", "-ec", fake, "sh"])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "eth0" in done.stderr
    assert firewall.both() == before


LAN = ("192.168.1.10", "10.0.0.5", "169.254.169.254", "100.64.0.7", "fd00:1::10", "fd00:ec2::254")
INTERNET = ("203.0.113.10", "8.8.8.8")
INTERNET_6 = ("2001:db8:1::10", "2600::10")
CONTAINERS = ("172.17.0.2", "fd12:17::2")
PUBLIC_OWN = "198.51.100.77"
"""An address that the host has itself, in no range and on no link."""
OWN = (PUBLIC_OWN, "127.0.0.1", "::1", "172.17.0.1", "192.168.7.10", "fd12:17::1", "fd00:7::10")


def both(*addresses: str, port: int = 80) -> list[str]:
    """Probes by TCP and UDP."""
    hosts = [f"[{one}]" if ":" in one else one for one in addresses]
    return [f"{kind}:{host}:{port}" for kind in ("tcp", "udp") for host in hosts]


ALL = both(*LAN, *INTERNET, *INTERNET_6, *CONTAINERS, *OWN)


def reached(answers: dict[str, Answer]) -> set[str]:
    """Those that answered."""
    return {target for target, answer in answers.items() if answer.open}


@pytest.mark.case("FW-08")
def test_the_user_is_kept_in_and_nobody_else(home: Home, host: Firewall) -> None:
    """The proxy's user reaches the internet only, not even loopback; others are left alone."""
    assert reached(home.host.probe(*ALL, user=USER)) == set(ALL)
    host.apply()
    answers = home.host.probe(*ALL, user=USER)
    assert reached(answers) == set(both(*INTERNET))
    for answer in answers.values():
        wanted = "refused" if answer.target.startswith("tcp") else "prohibited"
        assert answer.open or answer.outcome == wanted, answer
    for user in (None, USER + 1):
        assert reached(home.host.probe(*ALL, user=user)) == set(ALL)


def test_the_hosts_other_traffic_is_left_alone(home: Home, host: Firewall) -> None:
    """What is forwarded for containers, and what comes in, meets no rule of ours."""
    host.apply(mode="upstream-only")
    assert reached(home.container.probe(*both(*LAN, *INTERNET))) == set(both(*LAN, *INTERNET))
    ours = [line for saved in host.both() for line in saved.splitlines() if "BULWARK" in line]
    assert not any(line.startswith(("-A INPUT", "-A FORWARD")) for line in ours)
    assert sum(line.startswith("-A OUTPUT") for line in ours) == 2


def test_the_administrators_rules_are_still_asked(home: Home, host: Firewall) -> None:
    """What is open to the proxy's user by our rules may be closed by those of the host."""
    host.apply(allow=f"10.0.0.5:{CLOSED}")
    targets = both("203.0.113.10", "10.0.0.5", port=CLOSED)
    answers = home.host.probe(*targets, user=USER)
    assert reached(answers) == {f"udp:203.0.113.10:{CLOSED}"}
    host.reset()
    assert reached(home.host.probe(*targets, user=USER)) == set(targets)


def test_exceptions_of_the_user(home: Home, host: Firewall) -> None:
    """An engine on the host itself is reached by an exception for loopback, and nothing beside it."""
    host.apply(mode="upstream-only", allow="127.0.0.1:8000,[::1]:8000,10.0.0.5:80/udp")
    targets = [*ALL, *both("127.0.0.1", "::1", port=8000)]
    assert reached(home.host.probe(*targets, user=USER)) == {
        "tcp:127.0.0.1:8000",
        "tcp:[::1]:8000",
        "udp:10.0.0.5:80",
    }


@pytest.mark.case("FW-03")
def test_the_users_server_is_still_a_server(home: Home, host: Firewall) -> None:
    """Replies of the proxy to its clients go out, from loopback and from outside."""
    host.apply(mode="upstream-only")
    server = home.host.serve(8443, user=USER)
    for one, addresses in (
        (home.host, ("127.0.0.1", "::1")),
        (home.container, ("172.17.0.1", "fd12:17::1")),
        (home.networks.lan, ("192.168.7.10", "fd00:7::10")),
    ):
        targets = [target for target in both(*addresses, port=8443) if target.startswith("tcp")]
        assert reached(one.probe(*targets)) == set(targets)
    server.kill()
    server.wait()


def test_verify_as_the_user(home: Home, host: Firewall) -> None:
    """Everything as expected; a rule that is gone, or whose user is another, is not."""
    settings = {"mode": "upstream-only", "allow": "10.0.0.5:80"}
    host.apply(**settings)
    code, report = host.verify(**settings)
    assert report.surprises() == []
    assert code == 0
    code, report = host.verify(**settings, uid=str(USER + 1))
    assert (code, report.ok) == (1, False)
    host.rule(6, "-F", "BULWARK-OUT")
    code, report = host.verify(**settings)
    assert (code, report.ok) == (1, False)


def test_remove_leaves_the_engines_rules(host: Firewall) -> None:
    """After apply and remove the host's tables are byte for byte what they were."""
    before = host.both()
    host.apply()
    assert host.both() != before
    assert host.call("remove").returncode == 0
    assert host.both() == before


@pytest.mark.case("FW-05")
def test_auto_takes_the_backend_that_holds_the_engines_chains(home: Home, host: Firewall) -> None:
    """On a host, rules in the tables that nobody looks at first would be no rules."""
    other = Firewall(host.where, "legacy" if host.backend == "nft" else "nft")
    other.reset()
    done = host.call("apply", settings={"backend": "auto"})
    assert done.returncode == 0, done.stderr
    assert all("BULWARK-OUT" in saved for saved in host.both())
    assert not any("BULWARK-OUT" in saved for saved in other.both())
    assert reached(home.host.probe(*both(*LAN), user=USER)) == set()
    assert host.call("verify", settings={"backend": "auto"}).returncode == 0


def test_auto_takes_nft_in_a_container(firewall: Firewall) -> None:
    """Where nobody has rules yet: it needs one capability less, and no writable /run."""
    firewall.reset()
    done = firewall.call("apply", settings={"backend": "auto"})
    assert done.returncode == 0, done.stderr
    assert all("BULWARK-OUT" in firewall.saved(family, backend="nft") for family in (4, 6))
    assert firewall.call("remove", settings={"backend": "auto"}).returncode == 0
