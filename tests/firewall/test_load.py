"""The rules are replaced while thousands of connections are tried: none may slip through."""

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.firewall.egress import USER, Firewall, Watch
from tests.harness.figures import Figures
from tests.harness.networks import WIRE, Namespace, Networks

pytestmark = pytest.mark.root

PORT = 7
TARGETS = [
    f"{kind}:{host}:{PORT}" for kind in ("tcp", "udp") for host in ("10.0.0.5", "[fd00:1::10]")
]

IN_TURN = [
    {"mode": "upstream-only", "allow": "172.19.0.3:80,[fd12:19::3]:80"},
    {"ipv6": "on", "deny": "203.0.113.0/24"},
]
"""Settings that have next to nothing in common, but that the LAN is closed."""


@pytest.fixture(scope="module")
def place(networks: Networks) -> Networks:
    """The LAN answers on a port of its own, the upstream and the proxy on theirs."""
    networks.lan.serve(PORT)
    networks.upstream.serve(80)
    networks.proxy.serve(8080)
    return networks


@pytest.fixture(scope="module")
def watch(place: Networks, firewall: Firewall) -> Watch:
    """Counts at the router what has left for that port."""
    return Watch(Firewall(place.router, firewall.backend), PORT)


@dataclass(slots=True)
class Hammering:
    """What was tried, once it has ended."""

    attempts: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def hammering(where: Namespace) -> Iterator[Hammering]:
    """Tries all targets without a pause while the block runs."""
    asked = json.dumps({"targets": TARGETS})
    program = where.popen([sys.executable, "-I", "-S", str(WIRE / "hammer.py"), asked])
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    seen = Hammering()
    yield seen
    output, _ = program.communicate(timeout=30)
    for target, count in json.loads(output).items():
        seen.attempts[target] = count["attempts"]
        seen.answered[target] = count["answered"]


LINE_BY_LINE = """
exec 3<>"/dev/tcp/$1/$2"
read -r -u 3 banner && echo "$banner"
while read -r line; do
    { echo "$line" >&3 && read -r -u 3 back; } 2>/dev/null || exit
    echo "$back"
done
"""


SILENCE_SECONDS = 1.0
"""After so long without an answer, on one machine, none will come."""


class Conversation:
    """A connection on which each line is answered with the same line, as long as it holds."""

    def __init__(self, where: Namespace, host: str, port: int, *, user: int | None = None) -> None:
        argv = ["bash", "-c", LINE_BY_LINE, "bash", host, str(port)]
        self._process = where.popen(argv, user=user, stderr=subprocess.STDOUT)
        self.banner = self._read()

    def say(self, line: str) -> str:
        """What comes back, if anything does."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], SILENCE_SECONDS)
        return output.readline().strip() if ready else ""


def test_applying_again_leaks_nothing(
    place: Networks, firewall: Firewall, watch: Watch, figures: Figures
) -> None:
    """Of thousands of attempts none is answered, and not one packet has left: from rules to rules."""
    firewall.apply(**IN_TURN[0])
    with hammering(place.proxy) as seen:
        before = watch.packets()
        for turn in range(4):
            firewall.apply(**IN_TURN[(turn + 1) % 2])
        left = watch.packets() - before
    figures.add(
        "Applied again under load",
        firewall.backend,
        attempts=sum(seen.attempts.values()),
        answered=sum(seen.answered.values()),
        packets_that_left=left,
    )
    assert min(seen.attempts.values()) > 500
    assert sum(seen.attempts.values()) > 4000
    assert set(seen.answered.values()) == {0}
    assert left == 0


def test_a_gap_is_seen(place: Networks, firewall: Firewall, watch: Watch, figures: Figures) -> None:
    """The control: where rules are taken out and put back, the same hammer gets through."""
    firewall.apply(**IN_TURN[0])
    with hammering(place.proxy) as seen:
        before = watch.packets()
        firewall.call("remove")
        firewall.apply(**IN_TURN[0])
        left = watch.packets() - before
    figures.add(
        "Applied again under load",
        f"{firewall.backend}, removed and applied",
        attempts=sum(seen.attempts.values()),
        answered=sum(seen.answered.values()),
        packets_that_left=left,
    )
    assert min(seen.answered.values()) > 0
    assert left > 0


@pytest.mark.case("FW-03")
def test_connections_outlive_a_change(place: Networks, firewall: Firewall) -> None:
    """Who is connected, in either direction and family, stays so while the rules are replaced."""
    firewall.apply(**IN_TURN[0])
    conversations = [
        Conversation(place.tunnel, "172.18.0.2", 8080),
        Conversation(place.tunnel, "fd12:18::2", 8080),
        Conversation(place.proxy, "172.19.0.3", 80),
        Conversation(place.proxy, "fd12:19::3", 80),
    ]
    assert [one.banner.partition(" ")[0] for one in conversations] == [
        "172.18.0.3",
        "fd12:18::3",
        "172.19.0.2",
        "fd12:19::2",
    ]
    for turn in range(3):
        firewall.apply(**IN_TURN[0], dns=("none", "8.8.8.8", "1.1.1.1")[turn])
        assert [one.say(f"line {turn}") for one in conversations] == [f"line {turn}"] * 4


def test_flows_that_are_no_longer_allowed_end(place: Networks, firewall: Firewall) -> None:
    """What was opened under other rules, in either direction, ends with them: it is no reply."""
    firewall.apply(mode="upstream-only", allow=f"10.0.0.5:{PORT},[fd00:1::10]:{PORT}")
    forbidden = [
        Conversation(place.proxy, "10.0.0.5", PORT),
        Conversation(place.proxy, "fd00:1::10", PORT),
        Conversation(place.upstream, "172.19.0.2", 8080),
        Conversation(place.upstream, "fd12:19::2", 8080),
    ]
    allowed = [
        Conversation(place.tunnel, "172.18.0.2", 8080),
        Conversation(place.tunnel, "fd12:18::2", 8080),
    ]
    assert [one.say("before") for one in (*forbidden, *allowed)] == ["before"] * 6
    firewall.apply(**IN_TURN[0])
    assert [one.say("after") for one in forbidden] == [""] * 4
    assert [one.say("after") for one in allowed] == ["after"] * 2


def test_a_users_flows_that_are_no_longer_allowed_end(place: Networks, firewall: Firewall) -> None:
    """Likewise where one user is limited, whose answers to clients still go out."""
    firewall.call("remove")
    alone = {"scope": "uid", "mode": "upstream-only"}
    firewall.apply(**alone, allow=f"10.0.0.5:{PORT}")
    place.proxy.serve(8081, user=USER)
    opened = Conversation(place.proxy, "10.0.0.5", PORT, user=USER)
    client = Conversation(place.tunnel, "172.18.0.2", 8081)
    assert [one.say("before") for one in (opened, client)] == ["before"] * 2
    firewall.apply(**alone)
    assert [one.say("after") for one in (opened, client)] == ["", "after"]
    firewall.call("remove")
