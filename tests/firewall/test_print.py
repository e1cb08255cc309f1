"""The rules that would be applied: what stands before what, and why nothing else is there.

Needs no root. What the machine's own network adds (prefixes on the link, gateways) differs from
machine to machine: where it stands is tested, not what it is.
"""

import itertools
import os
import subprocess
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.firewall.egress import BASH, CHAINS, RANGES, SCRIPT, ranges

NEAR = ("on-link", "gateway")


def call(script: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with these settings, and nothing else in its environment."""
    return subprocess.run(  # noqa: S603 - nothing of it comes from outside
        [BASH, str(script), *words],
        env={
            "PATH": os.environ["PATH"],
            **{f"EGRESS_{name.upper()}": value for name, value in settings.items()},
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd="/",
    )


def run(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs the script by its own path."""
    return call(SCRIPT, *words, **settings)


def lines(family: int, **settings: str) -> list[str]:
    """The printed input for ``-restore`` of one family, without its comment lines."""
    done = run("print", "--family", str(family), **settings)
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if not line.startswith("#")]


def rules(family: int, chain: str, **settings: str) -> list[str]:
    """The rules of one chain."""
    return [line for line in lines(family, **settings) if line.startswith(f"-A {chain} ")]


def name(rule: str) -> str:
    """What a rule's comment calls it."""
    _, _, comment = rule.partition("--comment ")
    return comment.partition(" -j ")[0].strip('"')


def steps(family: int, chain: str, **settings: str) -> list[str]:
    """The names in a chain, in order: once where one is on several rules in a row, ranges as one."""
    names = [name(rule) for rule in rules(family, chain, **settings)]
    near = [one for one in names if not one.startswith(NEAR)]
    return [
        one for one, _ in itertools.groupby("range" if n.startswith("range") else n for n in near)
    ]


FIRST4 = ["resets", "not an own address", "loopback", "replies", "replies to pings"]
FIRST6 = ["neighbour discovery", *FIRST4]
OUT4 = [*FIRST4, "range", "internet"]
OUT6 = [*FIRST6, "range", "no IPv6 internet"]
ALL = {
    "allow": "10.9.9.9:80,[fd99::9]:80/udp",
    "dns": "10.9.9.53,fd99::53",
    "deny": "1.2.3.0/24,2a00::/16",
}

ORDERS: dict[str, tuple[int, dict[str, str], list[str]]] = {
    "IPv4 by default": (4, {}, OUT4),
    "IPv6 by default": (6, {}, OUT6),
    "IPv6 where it is open": (6, {"ipv6": "on"}, [*OUT6[:-1], "internet"]),
    "IPv4 in upstream-only mode": (4, {"mode": "upstream-only"}, [*OUT4[:-1], "everything else"]),
    "IPv6 in upstream-only mode": (
        6,
        {"mode": "upstream-only", "ipv6": "on"},
        [*OUT6[:-1], "everything else"],
    ),
    "IPv4 with all that can be named": (
        4,
        ALL,
        [
            *(*FIRST4, "allow 10.9.9.9:80/tcp", "resolver 10.9.9.53"),
            *("deny 1.2.3.0/24", "range", "internet"),
        ],
    ),
    "IPv6 with all that can be named": (
        6,
        ALL,
        [
            *(*FIRST6, "allow [fd99::9]:80/udp"),
            *("resolver fd99::53", "deny 2a00::/16", "range", "no IPv6 internet"),
        ],
    ),
    "no resolver at all": (4, {"dns": "none"}, [*OUT4[:2], "no resolver", *OUT4[2:]]),
    "IPv6 has no resolver to reject": (6, {"dns": "none"}, OUT6),
    "one user of a host, IPv4": (
        4,
        {"scope": "uid"},
        ["not an own address", "replies", "replies to pings", "own addresses", "range", "internet"],
    ),
    "one user of a host, upstream only": (
        4,
        {"scope": "uid", "mode": "upstream-only"},
        ["not an own address", "replies", "replies to pings", "range", "everything else"],
    ),
}


@pytest.mark.parametrize(("family", "settings", "expected"), ORDERS.values(), ids=ORDERS.keys())
def test_the_order_on_the_way_out(
    family: int, settings: dict[str, str], expected: list[str]
) -> None:
    """First match wins, so the order is the policy."""
    assert steps(family, "BULWARK-OUT", **settings) == expected


@pytest.mark.parametrize("family", [4, 6])
def test_where_the_neighbourhood_stands(family: int) -> None:
    """What is on the link comes after what the operator named and before the ranges."""
    names = [name(rule) for rule in rules(family, "BULWARK-OUT", **ALL)]
    first_range = next(at for at, one in enumerate(names) if one.startswith("range"))
    last_denied = max(at for at, one in enumerate(names) if one.startswith("deny"))
    near = [at for at, one in enumerate(names) if one.startswith(NEAR)]
    assert near == list(range(last_denied + 1, first_range))
    upstream_only = rules(family, "BULWARK-OUT", mode="upstream-only")
    assert not [rule for rule in upstream_only if name(rule).startswith(NEAR)]


MARK = "may be answered"


@pytest.mark.parametrize("family", [4, 6])
def test_the_order_on_the_way_in(family: int) -> None:
    """What is meant for another network's address; the exceptions' hosts; who is left is marked."""
    found = steps(family, "BULWARK-IN", **ALL)
    text = {4: "10.9.9.9:80/tcp", 6: "[fd99::9]:80/udp"}[family]
    wanted = ["loopback", "unreachable", "replies", "own address only", f"from {text}", MARK]
    assert [one for one in found if one in wanted] == wanted
    extra = {"neighbour discovery", "packet too big"} if family == 6 else set[str]()
    assert set(found) - set(wanted) == extra


@pytest.mark.parametrize("family", [4, 6])
def test_each_range_is_rejected(family: int) -> None:
    """Every line of ranges.txt is two rules: TCP gets a reset, the rest is prohibited."""
    printed = [rule for rule in rules(family, "BULWARK-OUT") if name(rule).startswith("range ")]
    word = {4: "icmp-admin-prohibited", 6: "icmp6-adm-prohibited"}[family]
    expected = []
    for cidr in ranges(family):
        comment = f'-m comment --comment "range {cidr}" -j REJECT --reject-with'
        expected.append(f"-A BULWARK-OUT -d {cidr} -p tcp {comment} tcp-reset")
        expected.append(f"-A BULWARK-OUT -d {cidr} {comment} {word}")
    assert printed == expected


MUST_BE_THERE = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "0.0.0.0/8",
    "127.0.0.0/8",
    "192.0.0.0/24",
    "198.18.0.0/15",
    "192.88.99.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "169.254.169.254/32",
    "169.254.170.2/32",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    "::ffff:0:0/96",
    "::/96",
    "::1/128",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2002::/16",
    "2001::/32",
    "2001:1::1/128",
    "2001:20::/28",
    "100::/64",
    "3fff::/20",
    "5f00::/16",
    "fd00:ec2::254/128",
]
"""What nobody may reach, and the addresses at which clouds hand out a machine's credentials."""

MUST_NOT_BE_THERE = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.0.2.1",
    "192.88.98.255",
    "192.88.100.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "203.0.113.10",
    "223.255.255.255",
    "168.63.129.15",
    "168.63.129.17",
    "2001:db8::1",
    "2001:4860:4860::8888",
    "2606:4700::1111",
    "2003::",
    "2a00::1",
    "2001:200::1",
    "64:ff9b:2::1",
    "3fff:1000::",
    "5eff:ffff::",
    "5f01::",
    "fbff:ffff::",
    "::1:0:0:0:0",
]
"""The public neighbours of each range: a range that is too wide cuts off somebody's upstream."""


@pytest.mark.parametrize("cidr", MUST_BE_THERE)
def test_a_range_that_must_be_there(cidr: str) -> None:
    """It lies within one of ours."""
    wanted = ip_network(cidr)
    ours = [ip_network(one) for one in ranges(wanted.version)]
    assert any(wanted.subnet_of(one) for one in ours)  # type: ignore[arg-type]  # of one version


@pytest.mark.parametrize("address", MUST_NOT_BE_THERE)
def test_a_neighbour_that_must_not_be_there(address: str) -> None:
    """It lies within none of ours."""
    wanted = ip_network(address)
    ours = [ip_network(one) for one in ranges(wanted.version)]
    assert [str(one) for one in ours if wanted.subnet_of(one)] == []  # type: ignore[arg-type]


def test_every_range_has_its_reason_beside_it() -> None:
    """Data without a reason is not there, and no range is inside another."""
    rows = [line.split(maxsplit=1) for line in RANGES.read_text().splitlines()]
    rows = [row for row in rows if row and not row[0].startswith("#")]
    assert all(len(row) == 2 and len(row[1]) > 15 for row in rows), rows
    for one, other in itertools.permutations((ip_network(row[0]) for row in rows), 2):
        assert one.version != other.version or not one.subnet_of(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("scope", ["container", "uid"])
def test_what_is_touched(family: int, scope: str) -> None:
    """Our own chains in the filter table, each called by the first rule of its hook; no policy."""
    printed = lines(family, scope=scope, **ALL)
    chains = CHAINS if scope == "container" else ("BULWARK-OUT",)
    who = "" if scope == "container" else "-m owner --uid-owner 10001 "
    hooks = {"BULWARK-OUT": "OUTPUT", "BULWARK-IN": "INPUT", "BULWARK-FWD": "FORWARD"}
    assert (printed[0], printed[-1]) == ("*filter", "COMMIT")
    assert printed.count("COMMIT") == 1
    assert sorted(line for line in printed if line.startswith(":")) == sorted(
        f":{chain} - [0:0]" for chain in chains
    )
    assert sorted(line for line in printed if line.startswith("-I ")) == sorted(
        f"-I {hooks[chain]} 1 {who}-m comment --comment bulwark -j {chain}" for chain in chains
    )
    others = [line for line in printed[1:-1] if not line.startswith((":", "-I "))]
    assert {line.split()[1] for line in others} == set(chains)
    assert all(line.startswith("-A ") for line in others)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("scope", ["container", "uid"])
def test_what_a_rule_does(family: int, scope: str) -> None:
    """Each has a name; none lets a helper open a flow; beside others' rules nothing is accepted."""
    printed = [line for line in lines(family, scope=scope, **ALL) if line.startswith("-A ")]
    assert all(name(rule) for rule in printed)
    assert not [rule for rule in printed if "RELATED" in rule or "NEW" in rule]
    targets = {rule.partition(" -j ")[2].split()[0] for rule in printed}
    assert targets == (
        {"ACCEPT", "REJECT", "DROP", "CONNMARK"}
        if scope == "container"
        else {"RETURN", "REJECT", "DROP"}
    )


def test_the_last_word(subtests: pytest.Subtests) -> None:
    """Nothing leaves a chain of ours undecided on the way out, and nothing is forwarded."""
    for family, mode in itertools.product((4, 6), ("internet", "upstream-only")):
        with subtests.test(family=family, mode=mode):
            *_, last = rules(family, "BULWARK-OUT", mode=mode)
            assert last.startswith("-A BULWARK-OUT -m comment ")
            passed = rules(family, "BULWARK-FWD", mode=mode)
            assert len(passed) == 2
            assert all(" -j REJECT " in rule for rule in passed)


EXCEPTIONS = {
    "one": ("10.9.9.9:80", ["-s 10.9.9.9/32"]),
    "a network": ("10.9.0.0/16:80", ["-s 10.9.0.0/16"]),
    "two ports of one host": ("10.9.9.9:80,10.9.9.9:81", ["-s 10.9.9.9/32"]),
    "two hosts": ("10.9.9.9:80,10.9.9.8:80", ["-s 10.9.9.9/32", "-s 10.9.9.8/32"]),
    "none": ("", []),
}


@pytest.mark.parametrize(("allow", "sources"), EXCEPTIONS.values(), ids=EXCEPTIONS.keys())
def test_an_exception_opens_nothing(allow: str, sources: list[str]) -> None:
    """Whoever is an exception is rejected on the way in, once, whatever the port was."""
    found = [rule for rule in rules(4, "BULWARK-IN", allow=allow) if name(rule).startswith("from ")]
    assert [" ".join(rule.split()[2:4]) for rule in found] == [s for s in sources for _ in range(2)]
    assert all(" -j REJECT " in rule for rule in found)


def test_both_families_by_default() -> None:
    """Without ``--family`` both are printed, each under a line that says which it is."""
    whole = run("print").stdout
    each = [run("print", "--family", family).stdout for family in ("4", "6")]
    assert whole == "".join(each)
    assert [line for line in whole.splitlines() if line.startswith("#")] == [
        "# IPv4: iptables-restore --noflush",
        "# IPv6: ip6tables-restore --noflush",
    ]


def test_names_are_printed_with_their_addresses() -> None:
    """What a name meant is said above the rules, as a comment."""
    done = run("print", scope="uid", allow="localhost:8000")
    assert done.returncode == 0, done.stderr
    (line, *_) = done.stdout.splitlines()
    assert line.startswith("# localhost is ")
    assert "127.0.0.1/32" in line or "::1/128" in line


LINKS: dict[str, Callable[[Path], Path]] = {
    "to the script": lambda place: _link(place / "egress", SCRIPT),
    "to its folder": lambda place: _link(place / "firewall", SCRIPT.parent) / SCRIPT.name,
    "to a link": lambda place: _link(place / "second", _link(place / "first", SCRIPT)),
}


def _link(place: Path, target: Path) -> Path:
    place.symlink_to(target)
    return place


@pytest.mark.parametrize("make", LINKS.values(), ids=LINKS.keys())
def test_through_a_link(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """The script finds what belongs to it wherever it is called from."""
    done = call(make(tmp_path), "print")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("print").stdout
