"""What ``verify`` proves, and what it does not let pass."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from tests.firewall.egress import BASH, SCRIPT, USER, Firewall, Report, Watch, ranges
from tests.harness.figures import Figures
from tests.harness.networks import Networks

pytestmark = pytest.mark.root

GOOD = {"mode": "upstream-only", "allow": "172.19.0.3:80,[fd12:19::3]:80"}


@pytest.fixture(scope="module")
def place(networks: Networks) -> Networks:
    """The LAN and the internet serve the very port that is probed: what leaves is answered."""
    for one in (networks.lan, networks.internet, networks.upstream):
        one.serve(9, 80)
    networks.router.ip(f"address add {LONE_GATEWAY}/32 dev tunnel")
    networks.proxy.ip(f"route add default via {LONE_GATEWAY} dev tunnel onlink metric 5000")
    return networks


@pytest.fixture(scope="module")
def watch(place: Networks, firewall: Firewall) -> Watch:
    """Counts at the router what has left for the port that is probed."""
    watching = Watch(Firewall(place.router, firewall.backend), port=9)
    # Not from the proxy: a connection of its own would be ended by packets that are sent again and
    # again, and leave as soon as a test takes the rules away.
    place.internet.probe("tcp:10.0.0.5:9", "udp:10.0.0.5:9", "tcp:[fd00:1::10]:9")
    assert watching.packets() > 0
    return watching


@pytest.fixture(scope="module")
def rules(place: Networks, firewall: Firewall) -> tuple[str, str]:
    """The whole tables with our rules in them."""
    firewall.apply(**GOOD)
    return firewall.both()


@pytest.fixture
def good(firewall: Firewall, rules: tuple[str, str]) -> Firewall:
    """Our rules in place, whatever the test before has done to them."""
    firewall.restore(*rules)
    return firewall


LONE_GATEWAY = "192.0.2.254"
"""In no prefix on the link, as with some hosters."""

ALWAYS = {
    # the neighbours and the host, whatever range they are in
    *("172.18.0.1 tcp/9", "172.18.0.1 udp/9", "172.19.0.1 tcp/9", "172.19.0.1 udp/9"),
    *("fd12:18::1 tcp/9", "fd12:18::1 udp/9", "fd12:19::1 tcp/9", "fd12:19::1 udp/9"),
    *(f"{LONE_GATEWAY} tcp/9", f"{LONE_GATEWAY} udp/9"),
    # where clouds hand out credentials
    *("169.254.169.254 tcp/9", "169.254.169.254 udp/9"),
    *("100.100.100.200 tcp/9", "100.100.100.200 udp/9"),
    *("fd00:ec2::254 tcp/9", "fd00:ec2::254 udp/9"),
    # IPv4 by an IPv6 socket, and what becomes of everything else
    *("::ffff:10.0.0.1 tcp/9", "192.0.2.1 udp/9", "2001:db8::1 udp/9"),
}
"""Probes that there are with any settings, beside those of the ranges."""

RIGHT: dict[str, tuple[dict[str, str], set[str]]] = {
    "by default": ({}, set()),
    "with IPv6 open and more to reject": (
        {"ipv6": "on", "deny": "203.0.113.0/24,2001:db8:1::/64,google"},
        {
            *("203.0.113.1 tcp/9", "203.0.113.1 udp/9", "8.8.8.8 tcp/9", "8.8.8.8 udp/9"),
            *("2001:db8:1::1 tcp/9", "2001:db8:1::1 udp/9"),
        },
    ),
    "with exceptions of every kind and resolvers": (
        {
            "mode": "upstream-only",
            "allow": "172.19.0.3:80,[fd12:19::3]:80,192.168.1.0/24:443,10.0.0.5:53/udp,vllm:8000",
            "dns": "192.168.1.10,8.8.8.8,fd00:1::10",
        },
        {
            *("172.19.0.3 tcp/80", "fd12:19::3 tcp/80", "192.168.1.1 tcp/443", "10.0.0.5 udp/53"),
            *("172.19.0.3 tcp/8000", "fd12:19::3 tcp/8000"),
            *("192.168.1.10 udp/53", "192.168.1.10 tcp/53", "8.8.8.8 udp/53", "8.8.8.8 tcp/53"),
            *("fd00:1::10 udp/53", "fd00:1::10 tcp/53"),
        },
    ),
    "with an upstream that is not there yet, and no resolver": (
        {
            "mode": "upstream-only",
            "allow": "172.19.0.99:80,[fd12:19::99]:80",
            "dns": "none",
        },
        {
            *("172.19.0.99 tcp/80", "fd12:19::99 tcp/80"),
            *("127.0.0.11 tcp/9", "127.0.0.11 udp/9"),
        },
    ),
}


@pytest.mark.parametrize(("settings", "named"), RIGHT.values(), ids=RIGHT.keys())
def test_what_is_right(
    place: Networks,
    firewall: Firewall,
    settings: dict[str, str],
    named: set[str],
    figures: Figures,
) -> None:
    """Exit 0, every check as expected; a probe of every range and of all that is named or near."""
    place.proxy.file("hosts", "172.19.0.3 vllm\nfd12:19::3 vllm\n8.8.8.8 google\n")
    firewall.reset()
    firewall.apply(**settings)
    start = time.monotonic()
    code, report = firewall.verify(**settings)
    seconds = time.monotonic() - start
    assert report.surprises() == []
    assert (code, report.ok) == (0, True)
    assert {check.kind for check in report.checks} >= {"rules", "probe", "process"}
    probed = {check.name for check in report.checks if check.kind == "probe"}
    assert (named | ALWAYS) - probed == set()
    for cidr in ranges(4) + ranges(6):
        net = ip_network(cidr)
        places = [name.split() for name in probed]
        within = {how for where, how in places if ip_address(where) in net}
        protocols = {how.partition("/")[0] for how in within}
        mapped = cidr.startswith("::ffff:0.0.0.0")  # the kernel makes IPv4 of these
        assert protocols == ({"tcp"} if mapped else {"tcp", "udp"}), cidr
    figures.add("Egress", f"verify, {firewall.backend}", ms=seconds * 1000)


def test_the_table_is_for_people(good: Firewall) -> None:
    """Without ``--json``: a line a check with its verdict, and a closing line."""
    done = good.call("verify", settings=GOOD)
    assert done.returncode == 0, done.stdout
    heading, *lines, closing = done.stdout.splitlines()
    assert heading.split() == ["PROBE", "EXPECTED", "RESULT", "VERDICT"]
    assert all(line.rstrip().endswith("ok") for line in lines)
    assert closing.startswith("egress: verified")


def flush(firewall: Firewall, family: int) -> None:
    """Everything goes, as with a reload of somebody else's firewall."""
    firewall.rule(family, "-F")


def flush_ours(firewall: Firewall, family: int) -> None:
    """Only what is in our chain goes: the jump leads nowhere."""
    firewall.rule(family, "-F", "BULWARK-OUT")


def flush_theirs(firewall: Firewall, family: int) -> None:
    """Only the jump goes: our chain is there, and nobody comes by."""
    firewall.rule(family, "-F", "OUTPUT")


def flush_and_drop(firewall: Firewall, family: int) -> None:
    """A policy in place of the rules: all is refused today, by something that is not ours."""
    firewall.rule(family, "-F")
    for chain in ("INPUT", "FORWARD", "OUTPUT"):
        firewall.rule(family, "-P", chain, "DROP")


def before_the_jump(firewall: Firewall, family: int) -> None:
    """A rule before the jump decides before us."""
    firewall.rule(family, "-I", "OUTPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")


def before_the_jump_in(firewall: Firewall, family: int) -> None:
    """Likewise on the way in."""
    firewall.rule(family, "-I", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")


def before_the_jump_through(firewall: Firewall, family: int) -> None:
    """Likewise on the way through."""
    firewall.rule(family, "-I", "FORWARD", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")


def harmless_before_the_jump(firewall: Firewall, family: int) -> None:
    """Even one that only counts: who was there first may be back with more."""
    firewall.rule(family, "-I", "OUTPUT", "-p", "tcp", "--dport", "22")


def inside(firewall: Firewall, family: int) -> None:
    """A rule in our chain, before the ranges."""
    firewall.rule(family, "-I", "BULWARK-OUT", "3", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")


def inside_in(firewall: Firewall, family: int) -> None:
    """A rule that lets the upstream in."""
    firewall.rule(family, "-I", "BULWARK-IN", "1", "-p", "tcp", "-j", "ACCEPT")


def at_the_end(firewall: Firewall, family: int) -> None:
    """A rule after our last, which nothing reaches."""
    firewall.rule(family, "-A", "BULWARK-OUT", "-p", "tcp", "-j", "ACCEPT")


def removed(firewall: Firewall, family: int) -> None:
    """One range's rules are gone, whose packets meet the end rule instead."""
    lines = firewall.saved(family).splitlines()
    own = [line for line in lines if line.startswith("-A BULWARK-OUT ")]
    place = next(place for place, line in enumerate(own, 1) if '"range ' in line)
    firewall.rule(family, "-D", "BULWARK-OUT", str(place))
    firewall.rule(family, "-D", "BULWARK-OUT", str(place))


def replaced(firewall: Firewall, family: int) -> None:
    """A verdict of ours is another's, under the same comment."""
    lines = firewall.saved(family).splitlines()
    own = [line for line in lines if line.startswith("-A BULWARK-OUT ")]
    place = next(place for place, line in enumerate(own, 1) if " loopback " in line)
    comment = ("-m", "comment", "--comment", "loopback")
    firewall.rule(family, "-R", "BULWARK-OUT", str(place), "-o", "lo+", *comment, "-j", "ACCEPT")


def narrowed(firewall: Firewall, family: int) -> None:
    """The jump is taken by one user only."""
    comment = ("-m", "comment", "--comment", "bulwark")
    owner = ("-m", "owner", "--uid-owner", "10001")
    firewall.rule(family, "-R", "OUTPUT", "1", *owner, *comment, "-j", "BULWARK-OUT")


def swapped(firewall: Firewall, family: int) -> None:
    """Two rules of ours have changed places: the end rule comes before a range."""
    lines = firewall.saved(family).splitlines()
    last = max(place for place, line in enumerate(lines) if line.startswith("-A BULWARK-OUT "))
    first = min(place for place, line in enumerate(lines) if '"range ' in line)
    lines[first], lines[last] = lines[last], lines[first]
    both = {4: firewall.saved(4), 6: firewall.saved(6), family: "\n".join(lines)}
    firewall.restore(both[4], both[6])


CHANGES: list[Callable[[Firewall, int], None]] = [
    flush,
    flush_ours,
    flush_theirs,
    flush_and_drop,
    before_the_jump,
    before_the_jump_in,
    before_the_jump_through,
    harmless_before_the_jump,
    inside,
    inside_in,
    at_the_end,
    removed,
    replaced,
    narrowed,
    swapped,
]


@pytest.mark.case("FW-04")
@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_no_change_passes(
    watch: Watch, good: Firewall, change: Callable[[Firewall, int], None]
) -> None:
    """Exit 1, and a surprise about the rules of each family; no probe is sent then."""
    for family in (4, 6):
        change(good, family)
    before = watch.packets()
    code, report = good.verify(**GOOD)
    assert (code, report.ok) == (1, False)
    about = {(check.kind, check.name.split()[0]) for check in report.surprises()}
    assert about == {("rules", "IPv4"), ("rules", "IPv6")}
    assert not any(check.kind == "probe" for check in report.checks)
    assert watch.packets() == before


@pytest.mark.parametrize("family", [4, 6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("change", [flush, inside], ids=["flush", "inside"])
def test_a_change_in_one_family(
    good: Firewall, change: Callable[[Firewall, int], None], family: int
) -> None:
    """One family's rules being right does not make up for the other's, for the health check either."""
    change(good, family)
    code, report = good.verify("--rules-only", **GOOD)
    assert (code, report.ok) == (1, False)
    assert {check.name.split()[0] for check in report.surprises()} == {f"IPv{family}"}


def test_other_settings_are_a_surprise(good: Firewall) -> None:
    """Rules of other settings than those that are in force now are not the right ones."""
    code, report = good.verify(**{**GOOD, "mode": "internet"})
    assert (code, report.ok) == (1, False)
    code, report = good.verify(mode="upstream-only")
    assert (code, report.ok) == (1, False)


def test_a_name_that_has_moved(place: Networks, firewall: Firewall) -> None:
    """An exception by name that is somebody else's address by now is a surprise."""
    settings = {"mode": "upstream-only", "allow": "vllm:80"}
    place.proxy.file("hosts", "172.19.0.3 vllm\n")
    firewall.apply(**settings)
    assert firewall.verify("--rules-only", **settings)[0] == 0
    place.proxy.file("hosts", "172.19.0.4 vllm\n")
    code, report = firewall.verify(**settings)
    assert code == 1
    assert "vllm" in {check.name for check in report.surprises()}


@pytest.mark.case("FW-05")
def test_rules_of_the_other_backend(good: Firewall) -> None:
    """Rules that are in the other backend's tables are not taken for the right ones."""
    other = "legacy" if good.backend == "nft" else "nft"
    code, report = good.verify(backend=other, **GOOD)
    assert (code, report.ok) == (1, False)


def test_rules_only_sends_nothing(good: Firewall) -> None:
    """The health check's command is about the rules: no packet that leaves, no process."""
    counters = probes_counters(good)
    code, report = good.verify("--rules-only", **GOOD)
    assert (code, report.ok) == (0, True)
    assert {check.kind for check in report.checks} == {"rules"}
    assert probes_counters(good) == counters


def probes_counters(firewall: Firewall) -> list[str]:
    """Of the rules that probes meet, and not what the kernel sends by itself: to groups."""
    own = [line for line in firewall.counters() if "-A BULWARK-OUT " in line]
    decide = [line for line in own if " -j REJECT " in line or "allow " in line]
    return [line for line in decide if "range ff00::/8" not in line and "range 224." not in line]


def test_rules_that_iptables_cannot_show(good: Firewall, tmp_path: Path) -> None:
    """Where nft has rules of its own, nothing can be vouched for: ``-save`` says so in a comment."""
    for name in ("iptables", "ip6tables"):
        save = f"{name}-{good.backend}-save"
        program = tmp_path / save
        program.write_text(
            f'#!/bin/sh\n{shutil.which(save)} "$@"\n'
            "echo \"# Table \\`filter' contains incompatible rules, use 'nft' tool.\"\n"
        )
        program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = good.call("verify", "--rules-only", "--json", settings=GOOD, path=path)
    assert done.returncode == 1, done.stdout
    about = {check.name.split()[0] for check in Report.read(done.stdout).surprises()}
    assert about == {"IPv4", "IPv6"}


def running(firewall: Firewall, *setpriv: str) -> subprocess.Popen[str]:
    """A process in the proxy's namespace that has these privileges and waits."""
    return waiting(firewall, "sh", "-c", 'echo ready; exec "$@"', "sh", "setpriv", *setpriv, "cat")


def waiting(firewall: Firewall, *command: str) -> subprocess.Popen[str]:
    """A process that has said that it is as it should be."""
    started = firewall.where.popen(command)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


AS_SERVER = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
POWERLESS = ("--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs")


@pytest.fixture
def process(good: Firewall) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts such processes and ends them."""
    started: list[subprocess.Popen[str]] = []

    def start(*setpriv: str) -> subprocess.Popen[str]:
        started.append(running(good, *setpriv))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_processes_without_power(
    place: Networks, good: Firewall, process: Callable[..., subprocess.Popen[str]]
) -> None:
    """What the entrypoint starts is as it should be; what is in another network is not looked at."""
    process(*AS_SERVER, *POWERLESS)
    elsewhere = running(Firewall(place.tunnel, good.backend), *AS_SERVER)
    code, report = good.verify(**GOOD)
    elsewhere.kill()
    assert report.surprises() == []
    assert code == 0


POWERS = [
    # a bounding set
    (*AS_SERVER, "--no-new-privs"),
    # a capability that stays with what it starts
    (*AS_SERVER, "--inh-caps=+net_admin", "--ambient-caps=+net_admin", "--no-new-privs"),
    # privileges to be had from a file
    (*AS_SERVER, *POWERLESS[:3]),
]


def test_processes_with_power(
    good: Firewall, process: Callable[..., subprocess.Popen[str]]
) -> None:
    """Each process of the server's user that could change the rules is a surprise, by its number."""
    started = [process(*power).pid for power in POWERS]
    code, report = good.verify(**GOOD)
    assert (code, report.ok) == (1, False)
    surprises = report.surprises()
    assert {check.kind for check in surprises} == {"process"}
    assert sorted(check.name.split()[1] for check in surprises) == sorted(map(str, started))


def test_each_power_is_named(good: Firewall, process: Callable[..., subprocess.Popen[str]]) -> None:
    """Every set of capabilities that is not empty, and the chance to get more."""
    process(*AS_SERVER, "--inh-caps=+net_admin", "--ambient-caps=+net_admin")
    _, report = good.verify(**GOOD)
    (check,) = report.surprises()
    for word in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "may gain privileges"):
        assert word in check.result


BECOME = f"""
import ctypes, os, sys, threading
prctl = ctypes.CDLL(None).prctl
def become_the_server():
    for capability in range(64):
        prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    os.setgroups([])
    os.setresgid({USER}, {USER}, {USER})
    os.setresuid({USER}, {USER}, {USER})
def never_gain_privileges():
    prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
"""
"""The parts of what ``setpriv`` does, for those who leave one out."""

HIDDEN = {
    "by another thread than the first": """
become_the_server()
threading.Thread(target=sys.stdin.read).start()
never_gain_privileges()  # of this thread alone
""",
    "by a set that is not in effect": """
prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS: those that are permitted stay so
become_the_server()
never_gain_privileges()
""",
    "by what it would leave to others": """
import subprocess
inherit = ["setpriv", "--inh-caps=+net_admin", "--", sys.executable, "-I", "-S", "-c"]
rest = sys.argv[1] + "become_the_server(); never_gain_privileges()" + sys.argv[2]
os.execvp(inherit[0], [*inherit, rest])
""",
}


@pytest.mark.parametrize("program", HIDDEN.values(), ids=HIDDEN.keys())
def test_a_power_that_does_not_show(good: Firewall, program: str) -> None:
    """Whatever one thread has in one set is the process's."""
    wait = "\nprint('ready', flush=True); sys.stdin.read()"
    python = [sys.executable, "-I", "-S", "-c", BECOME + program + wait, BECOME, wait]
    started = waiting(good, *python)
    code, report = good.verify(**GOOD)
    started.kill()
    assert [check.name.split()[1] for check in report.surprises()] == [str(started.pid)]
    assert code == 1


FIRST = {
    "root": ([], True),
    "root without capabilities": ([*POWERLESS], True),
    "the server": ([*AS_SERVER, *POWERLESS], False),
}


@pytest.mark.parametrize(("setpriv", "surprising"), FIRST.values(), ids=FIRST.keys())
def test_the_first_process(good: Firewall, setpriv: list[str], surprising: bool) -> None:
    """PID 1 of the container is judged, whoever it is: by an exec from outside, as here."""
    inner = ["setpriv", *setpriv, "--", "cat"] if setpriv else ["cat"]
    ready = ["sh", "-c", 'echo ready; exec "$@"', "sh", *inner]
    first = good.where.popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *ready])
    assert first.stdout is not None
    first.stdout.readline()
    (child,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    argv = ["nsenter", "--pid", "--mount", "--target", child, BASH, str(SCRIPT)]
    done = good.where.run([*argv, "verify", "--json"], env=good.environment(GOOD))
    first.kill()
    report = Report.read(done.stdout)
    assert done.returncode == (1 if surprising else 0), done.stdout
    surprises = [check.name for check in report.surprises()]
    assert surprises == (["PID 1 (cat)"] if surprising else [])
