"""What hides from verify, or speaks through it: dead leaders, names of processes, names in rules."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.firewall.egress import USER, Firewall
from tests.harness.networks import Networks

pytestmark = pytest.mark.root

GOOD = {"mode": "upstream-only", "allow": "172.19.0.3:80,[fd12:19::3]:80"}

AS_SERVER = f"import os; os.setgroups([]); os.setresgid(*[{USER}] * 3); os.setresuid(*[{USER}] * 3)"
READY = "sys.stdout.write('ready\\n'); sys.stdout.flush()"

LEADER_GONE = f"""
import ctypes, sys, threading
threading.Thread(target=sys.stdin.readline).start()
{AS_SERVER}
libc = ctypes.CDLL(None)
{READY}
libc.syscall({60 if os.uname().machine == "x86_64" else 93}, 0)
"""
"""The first thread ends (the number is that of exit), another goes on."""

NAMED = f"""
import sys
open("/proc/self/comm", "wb").write(b'a\\t"b\\\\\\x1b[2J\\xff')
{AS_SERVER}
{READY}
sys.stdin.readline()
"""
"""A process that has named itself to be seen."""


@pytest.fixture
def run(firewall: Firewall) -> Iterator[Callable[[Firewall, str], subprocess.Popen[str]]]:
    """Starts a program in a network, with all that the server must not have, and ends it."""
    started: list[subprocess.Popen[str]] = []

    def start(where: Firewall, program: str) -> subprocess.Popen[str]:
        process = where.where.popen([sys.executable, "-I", "-S", "-c", program])
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    firewall.hold(**GOOD)
    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_whose_leader_is_dead(
    firewall: Firewall, run: Callable[[Firewall, str], subprocess.Popen[str]]
) -> None:
    """Its other threads live, and have what they have."""
    process = run(firewall, LEADER_GONE)
    code, report = firewall.verify(**GOOD)
    assert code == 1
    (surprise,) = report.surprises()
    assert surprise.name.startswith(f"PID {process.pid} ")
    assert "CapBnd" in surprise.result


def test_one_in_another_network(
    networks: Networks, firewall: Firewall, run: Callable[[Firewall, str], subprocess.Popen[str]]
) -> None:
    """Such a process in another network is not this one's."""
    run(Firewall(networks.tunnel, firewall.backend), LEADER_GONE)
    assert firewall.verify(**GOOD)[0] == 0


def test_the_name_of_a_process(
    firewall: Firewall, run: Callable[[Firewall, str], subprocess.Popen[str]]
) -> None:
    """It is told as plain characters, and makes no column and no JSON of its own."""
    process = run(firewall, NAMED)
    code, report = firewall.verify(**GOOD)
    assert code == 1
    (surprise,) = report.surprises()
    assert (surprise.kind, surprise.expected) == ("process", "powerless")
    assert surprise.name.startswith(f"PID {process.pid} (a")
    table = firewall.call("verify", settings=GOOD).stdout
    assert all(character.isprintable() or character == "\n" for character in table)


def test_an_address_under_another_name(networks: Networks, firewall: Firewall) -> None:
    """A rule that has a name's comment, and an address that the name has not, is a surprise."""
    settings = {"mode": "upstream-only", "allow": "vllm:80"}
    networks.proxy.file("hosts", "172.19.0.3 vllm\n172.19.0.4 vllm\n")
    firewall.held.clear()
    firewall.apply(**settings)
    assert firewall.verify(**settings)[0] == 0
    for chain, words in (
        ("BULWARK-OUT", "-d 192.168.1.10/32 -p tcp -m tcp --dport 80 -j ACCEPT"),
        ("BULWARK-IN", "-s 192.168.1.10/32 -j REJECT --reject-with icmp-admin-prohibited"),
        ("BULWARK-IN", "-s 192.168.1.10/32 -p tcp -j REJECT --reject-with tcp-reset"),
    ):
        own = [line for line in firewall.saved(4).splitlines() if line.startswith(f"-A {chain} ")]
        place = max(at for at, line in enumerate(own, 2) if "172.19.0.4/32" in line)
        comment = {"BULWARK-OUT": "allow", "BULWARK-IN": "from"}[chain] + " vllm:80/tcp"
        matches, _, target = words.partition(" -j ")
        rule = (*matches.split(), "-m", "comment", "--comment", comment, "-j", *target.split())
        firewall.rule(4, "-I", chain, str(place), *rule)
    code, report = firewall.verify(**settings)
    assert code == 1
    (surprise,) = report.surprises()
    assert (surprise.kind, surprise.name) == ("name", "vllm")
    assert "192.168.1.10" in surprise.result
