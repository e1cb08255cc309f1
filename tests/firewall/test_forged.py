"""Flows that were forged: what looks like a reply is one only to what the rules have let in."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.firewall.egress import Firewall, Watch
from tests.harness.networks import Namespace, Networks

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).with_name("forge.py")

GOOD = {"mode": "upstream-only", "allow": "172.19.0.3:80,[fd12:19::3]:80"}
OPEN = {"ipv6": "on", "allow": "172.19.0.3:80,[fd12:19::3]:80"}
PORT = 7
"""The LAN answers on it, and nobody here sends anything else there."""


UNUSED = itertools.count(5100)
"""Ports for flows that no test before has made."""


def forge(*words: str) -> list[str]:
    """The command."""
    return [sys.executable, "-I", "-S", str(PROGRAM), *words]


def said(where: Namespace, *words: str) -> str:
    """What it got."""
    done = where.run(forge(*words))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(networks: Networks) -> Networks:
    """Everybody answers; the server's user may have any port, as in a container."""
    for one in (networks.lan, networks.internet, networks.router, networks.upstream):
        one.serve(PORT, 80)
    networks.proxy.serve(8080)
    for family in (4, 6):
        silence = ("-A", "INPUT", "-p", "udp", "-m", "udp", "--dport", "9", "-j", "DROP")
        Firewall(networks.internet, "nft").rule(family, *silence)
    for one in (networks.proxy, networks.tunnel):
        networks.sysctl(one, {"net/ipv4/ip_unprivileged_port_start": "0"})
    return networks


@pytest.fixture(scope="module")
def watch(place: Networks, firewall: Firewall) -> Watch:
    """Counts at the router what has left for that port."""
    watching = Watch(Firewall(place.router, firewall.backend), PORT)
    firewall.reset()
    targets = [
        f"{kind}:{host}:{PORT}" for kind in ("tcp", "udp") for host in ("10.0.0.5", "[fd00:1::10]")
    ]
    assert all(answer.open for answer in place.proxy.probe(*targets).values())
    assert watching.packets() > 0
    return watching


@pytest.fixture(autouse=True)
def nothing_held(firewall: Firewall) -> Iterator[None]:
    """What a test here has applied is not what the next one holds."""
    yield
    firewall.held.clear()


WAYS = [(kind, other) for kind in ("udp", "tcp") for other in ("fd00:1::10", "fd00:ec2::254")]


@pytest.mark.parametrize("settings", [GOOD, OPEN], ids=["upstream-only", "internet"])
@pytest.mark.parametrize("way", WAYS, ids=" to ".join)
def test_over_loopback(
    place: Networks,
    firewall: Firewall,
    watch: Watch,
    settings: dict[str, str],
    way: tuple[str, str],
) -> None:
    """A flow that the server's own user forged over loopback is no way to the LAN."""
    firewall.hold(**settings)
    kind, other = way
    port = str(next(UNUSED))
    before = watch.packets()
    assert said(place.proxy, "over_loopback", kind, "fd12:18::2", port, other, str(PORT)) == ""
    assert watch.packets() == before


def test_over_loopback_to_the_host(place: Networks, firewall: Firewall, watch: Watch) -> None:
    """Nor to the host by its link-local address, which is there without any IPv6 network."""
    own = place.link_local(place.proxy, "tunnel")
    host = place.link_local(place.router, "tunnel")
    firewall.hold(**GOOD)
    before = watch.packets()
    words = ("udp", f"{own}%tunnel", str(next(UNUSED)), f"{host}%tunnel", str(PORT))
    assert said(place.proxy, "over_loopback", *words) == ""
    assert watch.packets() == before


def test_over_loopback_one_way(place: Networks, firewall: Firewall, watch: Watch) -> None:
    """Nor may it pretend to be the LAN towards the internet, which is open, and be answered there."""
    firewall.hold(**OPEN)
    before = watch.packets()
    words = ("udp", "2001:db8:1::10", str(PORT), "fd00:1::10", str(PORT))
    place.proxy.run(forge("over_loopback", *words))
    assert watch.packets() == before


def test_over_loopback_of_a_host(place: Networks, firewall: Firewall, watch: Watch) -> None:
    """In uid scope an exception at an address of the host's own is no such way either."""
    firewall.apply(scope="uid", mode="upstream-only", allow="[fd12:18::2]:5000/udp")
    before = watch.packets()
    assert (
        said(place.proxy, "over_loopback", "udp", "fd12:18::2", "5000", "fd00:1::10", str(PORT))
        == ""
    )
    assert watch.packets() == before
    assert firewall.call("remove").returncode == 0


def test_own_addresses_are_no_forgeries(place: Networks, firewall: Firewall) -> None:
    """By loopback, its own addresses and its link-local ones the server talks to itself."""
    firewall.hold(**GOOD)
    own = place.link_local(place.proxy, "tunnel")
    hosts = ("127.0.0.1", "172.18.0.2", "[::1]", "[fd12:18::2]", f"[{own}%tunnel]")
    targets = [f"{kind}:{host}:8080" for kind in ("tcp", "udp") for host in hosts]
    answers = place.proxy.probe(*targets, user=10001)
    assert [answer for answer in answers.values() if not answer.open] == []


FORGED = {
    "IPv4": ("192.168.1.10", "172.18.0.2"),
    "IPv6": ("fd00:1::10", "fd12:18::2"),
}


@pytest.mark.parametrize("settings", [GOOD, OPEN], ids=["upstream-only", "internet"])
@pytest.mark.parametrize("flow", FORGED.values(), ids=FORGED.keys())
def test_before_the_rules(
    place: Networks,
    firewall: Firewall,
    watch: Watch,
    settings: dict[str, str],
    flow: tuple[str, str],
) -> None:
    """What the upstream forged before there were rules opens nothing afterwards.

    An engine's rules of nat have connections tracked before the entrypoint runs.
    """
    firewall.call("remove")
    firewall.reset("*filter\n-A INPUT -m conntrack --ctstate INVALID -j DROP\nCOMMIT")
    other, own = flow
    mac = place.proxy.run(["cat", "/sys/class/net/upstream/address"]).stdout.strip()
    port = str(next(UNUSED))
    words = ("from_the_link", "upstream", mac, other, str(PORT), own, port)
    said(place.upstream, *words)
    firewall.apply(**settings)
    said(place.upstream, *words)  # which keeps it alive
    before = watch.packets()
    assert said(place.proxy, "ask", own, port, other, str(PORT)) == ""
    assert watch.packets() == before


def test_a_neighbour_that_lies(place: Networks, firewall: Firewall, watch: Watch) -> None:
    """Who is on the clients' network needs no privilege to forge by IPv6; no datagram is answered."""
    firewall.hold(**GOOD)
    port = str(next(UNUSED))
    said(place.tunnel, "claim", "fd00:1::10", str(PORT), "fd12:18::2", port)
    before = watch.packets()
    assert said(place.proxy, "ask", "fd12:18::2", port, "fd00:1::10", str(PORT)) == ""
    assert watch.packets() == before


NEAR = {"IPv4": ("172.18.0.2", "8.8.8.8"), "IPv6": ("fd12:18::2", "2600::10")}


@pytest.mark.parametrize("rules", [True, False], ids=["with the rules", "without"])
@pytest.mark.parametrize(("own", "other"), NEAR.values(), ids=NEAR.keys())
def test_a_reply_by_the_upstreams_link(
    place: Networks, firewall: Firewall, own: str, other: str, *, rules: bool
) -> None:
    """Who is on the upstream's network cannot answer in the place of the internet."""
    loose = {f"net/ipv4/conf/{one}/rp_filter": "2" for one in ("all", "upstream")}
    place.sysctl(place.proxy, loose)
    firewall.reset()
    if rules:
        firewall.apply(**OPEN)
    mac = place.proxy.run(["cat", "/sys/class/net/upstream/address"]).stdout.strip()
    port, silent = str(next(UNUSED)), "9"
    heard = place.proxy.popen(forge("hear", own, port, other, silent))
    assert heard.stdout is not None
    assert heard.stdout.readline() == "asked\n"
    said(place.upstream, "from_the_link", "upstream", mac, other, silent, own, port)
    text, _ = heard.communicate("go on\n")
    assert text == ("" if rules else "forged\n")


def test_replies_by_the_upstreams_link(place: Networks, firewall: Firewall) -> None:
    """The upstream itself is heard, and so is a network behind a router on its link."""
    place.proxy.ip("route add 10.9.0.0/16 via 172.19.0.3", "route add fd09::/64 via fd12:19::3")
    place.upstream.ip("address add 10.9.0.9/32 dev lo", "address add fd09::9/128 dev lo")
    allow = f"{GOOD['allow']},10.9.0.9:80,[fd09::9]:80"
    firewall.apply(mode="upstream-only", allow=allow)
    hosts = ("172.19.0.3", "[fd12:19::3]", "10.9.0.9", "[fd09::9]")
    answers = place.proxy.probe(*(f"tcp:{host}:80" for host in hosts))
    assert [answer for answer in answers.values() if not answer.open] == []
    place.proxy.ip("route del 10.9.0.0/16", "route del fd09::/64")


@pytest.mark.parametrize("own", ["172.18.0.2", "fd12:18::2"])
def test_clients_stay_while_the_server_speaks_first(
    place: Networks, firewall: Firewall, own: str
) -> None:
    """A stream goes on after a re-apply though no packet of the client's comes first."""
    firewall.apply(**GOOD)
    server = place.proxy.popen(forge("speak", own, "8090"))
    assert server.stdout is not None
    assert server.stdin is not None
    assert server.stdout.readline() == "listening\n"
    client = place.tunnel.popen(["bash", "-c", f"exec cat <>/dev/tcp/{own}/8090"])
    assert client.stdout is not None
    for settings in (GOOD, OPEN, GOOD):
        firewall.apply(**settings)
        server.stdin.write("one more\n")
        server.stdin.flush()
        assert client.stdout.readline() == "one more\n"


def test_a_kernel_without_connmark(firewall: Firewall, tmp_path: Path, backend: str) -> None:
    """Without it a reply cannot be told from a forgery: exit 1, its own words, no rules."""
    firewall.reset()
    before = firewall.both()
    for name in ("iptables", "ip6tables"):
        real = shutil.which(f"{name}-{backend}-restore")
        program = tmp_path / f"{name}-{backend}-restore"
        program.write_text(
            "#!/bin/sh\ntext=$(cat)\n"
            'case $text in *connmark*) echo "Extension connmark is not supported" >&2; exit 2 ;; esac\n'
            f'echo "$text" | {real} "$@"\n'
        )
        program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done: subprocess.CompletedProcess[str] = firewall.call("apply", path=path, settings=GOOD)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Extension connmark is not supported" in done.stderr
    assert firewall.both() == before


ADVERTISE = """
import socket, struct, sys
sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
index = socket.if_nametoindex(sys.argv[1])
prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 3600, 0)
prefix += socket.inet_pton(socket.AF_INET6, sys.argv[2])
packet = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + prefix
sock.sendto(packet, ("ff02::1", 0, 0, index))
"""
"""A router that it is not, with a prefix and a default route."""


@pytest.mark.parametrize("neighbour", ["tunnel", "upstream"])
def test_a_router_that_announces_itself(backend: str, neighbour: str) -> None:
    """Where IPv6 is closed it changes no rule, before them or after: nobody is a way out by it."""
    with Networks(containers=True) as made:
        firewall = Firewall(made.proxy, backend)
        firewall.apply(allow=GOOD["allow"])
        quiet = firewall.both()
        firewall.call("remove")
        machine: Namespace = getattr(made, neighbour)
        # An address is its own as soon as the packet has been read.
        machine.run([sys.executable, "-c", ADVERTISE, neighbour, "2600:77::"])
        wait_for(made.proxy, "2600007700000000")
        assert firewall.where.run(["cat", "/proc/net/ipv6_route"]).stdout.count("26000077") > 0
        firewall.apply(allow=GOOD["allow"])
        assert firewall.both() == quiet
        assert firewall.verify("--rules-only", allow=GOOD["allow"])[0] == 0


def wait_for(where: Namespace, address: str) -> None:
    """Until the kernel has an address that begins so."""
    end = time.monotonic() + 10
    while address not in where.run(["cat", "/proc/net/if_inet6"]).stdout:
        assert time.monotonic() < end, "no router was believed"
