"""What the firewall's settings may say: both sides of every bound, and a clear word for the rest.

Needs no root: ``print`` reads the same input as ``apply`` and changes nothing. Names are resolved
by a ``getent`` of the test's, so that no test asks a resolver.
"""

import os
import random
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import ip_network

import pytest

from tests.firewall.egress import BASH, SCRIPT

README = SCRIPT.parent / "README.md"

Run = Callable[..., subprocess.CompletedProcess[str]]

NAMES = {
    "vllm": ["172.18.0.4", "fd12:18::4"],
    "models.example.org": ["203.0.113.7"],
    "a-b_c.x0": ["10.1.2.3"],
    "n" * 230: ["10.9.9.9"],
    "loop": ["127.0.0.1"],
    "nowhere": ["0.0.0.0"],
    "everybody": ["224.0.0.1"],
    "mapped": ["::ffff:10.0.0.5"],
    "one-bad": ["10.0.0.5", "127.0.0.2"],
}
"""What the ``getent`` of these tests knows."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the script with these settings, and nothing else in its environment."""
    place = tmp_path_factory.mktemp("bin")
    program = place / "getent"
    answers = [f"{name}) printf '%s STREAM\\n' {' '.join(one)};;" for name, one in NAMES.items()]
    program.write_text("\n".join(["#!/bin/sh", "case $2 in", *answers, "*) exit 2;;", "esac", ""]))
    program.chmod(0o755)

    def call(
        *words: str, through: Sequence[str] = (), **settings: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - nothing of it comes from outside
            [*through, BASH, str(SCRIPT), *words],
            env={"PATH": f"{place}{os.pathsep}{os.environ['PATH']}", **settings},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd="/",
        )

    return call


def allowed(printed: str) -> set[str]:
    """Where the exceptions of the printed rules lead, as iptables writes it, and on which port."""
    words = [line.split() for line in printed.splitlines() if '--comment "allow ' in line]
    return {f"{one[3]} {one[5]} {one[9]}" for one in words}


GOOD = {
    "the first port": ("10.0.0.1:1", {"10.0.0.1/32 tcp 1"}),
    "the last port": ("10.0.0.1:65535", {"10.0.0.1/32 tcp 65535"}),
    "TCP said": ("10.0.0.1:80/tcp", {"10.0.0.1/32 tcp 80"}),
    "UDP": ("10.0.0.1:53/udp", {"10.0.0.1/32 udp 53"}),
    "the widest network": ("128.0.0.0/1:80", {"128.0.0.0/1 tcp 80"}),
    "the smallest network": ("10.0.0.1/32:80", {"10.0.0.1/32 tcp 80"}),
    "a network inside a byte": ("10.0.0.16/28:80", {"10.0.0.16/28 tcp 80"}),
    "the last address": ("255.255.255.254:80", {"255.255.255.254/32 tcp 80"}),
    "IPv6": ("[fd00::1]:80", {"fd00::1/128 tcp 80"}),
    "an IPv6 network": ("[fd00::/64]:8000/udp", {"fd00::/64 udp 8000"}),
    "IPv6 in capitals and in full": ("[FD00:0:0:0:0:0:0:0A]:80", {"fd00::a/128 tcp 80"}),
    "IPv6 that ends in IPv4": ("[64:ff9b::10.0.0.5]:80", {"64:ff9b::a00:5/128 tcp 80"}),
    "a name of both families": ("vllm:80", {"172.18.0.4/32 tcp 80", "fd12:18::4/128 tcp 80"}),
    "a name with dots": ("models.example.org:443", {"203.0.113.7/32 tcp 443"}),
    "a name with all that a name has": ("a-b_c.x0:80", {"10.1.2.3/32 tcp 80"}),
    "the longest name": (f"{'n' * 230}:65535/tcp", {"10.9.9.9/32 tcp 65535"}),
    "two": ("10.0.0.1:80,10.0.0.2:81/udp", {"10.0.0.1/32 tcp 80", "10.0.0.2/32 udp 81"}),
    "none": ("", set()),
}


@pytest.mark.parametrize(("value", "expected"), GOOD.values(), ids=GOOD.keys())
def test_an_exception_that_is_understood(run: Run, value: str, expected: set[str]) -> None:
    """It is the rule that it says, and no other."""
    done = run("print", EGRESS_ALLOW=value)
    assert (done.returncode, done.stderr) == (0, "")
    assert allowed(done.stdout) == expected


HOSTS = {
    "an octet over 255": ("256.0.0.1", "is not an IPv4 or IPv6 address"),
    "a leading zero": ("010.0.0.1", "is not an IPv4 or IPv6 address"),
    "three octets": ("10.0.1", "is not an IPv4 or IPv6 address"),
    "five octets": ("10.0.0.1.2", "is not an IPv4 or IPv6 address"),
    "one number": ("167772165", "is not an IPv4 or IPv6 address"),
    "one number in hexadecimal": ("0x0a000005", "is not an IPv4 or IPv6 address"),
    "a number at the end of a name": ("host.0x1", "is not an IPv4 or IPv6 address"),
    "a name that ends in 0x": ("a-b_c.0x", "is not an IPv4 or IPv6 address"),
    "a length over 32": ("10.0.0.0/33", "no prefix length from 1 to 32"),
    "no length": ("10.0.0.0/", "no prefix length from 1 to 32"),
    "a length with a leading zero": ("10.0.0.0/08", "no prefix length from 1 to 32"),
    "a mask": ("10.0.0.0/255.0.0.0", "no prefix length from 1 to 32"),
    "a bit behind the prefix": ("10.0.0.1/31", "did you mean 10.0.0.0/31?"),
    "a bit inside a byte": ("10.0.0.24/28", "did you mean 10.0.0.16/28?"),
    "everything": ("0.0.0.0/0", "is everything"),
    "the unspecified address": ("0.0.0.0", "is the unspecified address"),
    "multicast": ("224.0.0.1", "is a multicast address"),
    "the last of multicast": ("239.255.255.255", "is a multicast address"),
    "the broadcast address": ("255.255.255.255", "is the broadcast address"),
    "loopback": ("127.0.0.1", "is loopback, which is always open"),
    "the resolver's loopback": ("127.0.0.11", "is loopback, which is always open"),
    "a name that is loopback": ("loop", "is loopback, which is always open"),
    "a name that is nowhere": ("nowhere", "is the unspecified address"),
    "a name that is multicast": ("everybody", "is a multicast address"),
    "a name that is mapped": ("mapped", "is IPv4 inside IPv6"),
    "a name of which one address is bad": ("one-bad", "is loopback, which is always open"),
    "a name that does not resolve": ("nobody", "does not resolve"),
    "a name that is too long": ("n" * 231, "neither an address nor a name"),
    "no host": ("", "neither an address nor a name"),
    "a star": ("*", "neither an address nor a name"),
    "a command": ("$(id)", "neither an address nor a name"),
    "a quote": ('a"b', "neither an address nor a name"),
    "a dash before a name": ("-h", "neither an address nor a name"),
    "a dot behind a name": ("vllm.", "neither an address nor a name"),
    "two dots in a name": ("a..b", "neither an address nor a name"),
    "a name with a length": ("vllm/24", "is not an IPv4 or IPv6 address"),
}
"""Hosts that are none, for the settings that take a host: the offence."""

HOSTS6 = {
    "no colon run that could be": ("fd00:::1", "is not an IPv4 or IPv6 address"),
    "two runs of zeros": ("fd00::1::2", "is not an IPv4 or IPv6 address"),
    "nine groups": ("1:2:3:4:5:6:7:8:9", "is not an IPv4 or IPv6 address"),
    "seven groups": ("1:2:3:4:5:6:7", "is not an IPv4 or IPv6 address"),
    "eight groups and a run": ("1:2:3:4::5:6:7:8", "is not an IPv4 or IPv6 address"),
    "a colon before": (":1:2:3:4:5:6:7:8", "is not an IPv4 or IPv6 address"),
    "a colon behind": ("fd00::1:", "is not an IPv4 or IPv6 address"),
    "five digits": ("fd00::00001", "is not an IPv4 or IPv6 address"),
    "IPv4 in the middle": ("fd00::10.0.0.1:1", "is not an IPv4 or IPv6 address"),
    "a zone": ("fe80::1%eth0", "is not an IPv4 or IPv6 address"),
    "no hexadecimal": ("fd00::g", "is not an IPv4 or IPv6 address"),
    "a length over 128": ("fd00::/129", "no prefix length from 1 to 128"),
    "a bit behind the IPv6 prefix": ("fd00:0:0:1::/63", "did you mean fd00::/63?"),
    "all of IPv6": ("::/0", "is everything"),
    "the unspecified IPv6 address": ("::", "is the unspecified address"),
    "IPv6 multicast": ("ff02::1", "is a multicast address"),
    "IPv6 loopback": ("::1", "is loopback, which is always open"),
    "IPv4 in IPv6": ("::ffff:10.0.0.5", "is IPv4 inside IPv6"),
    "IPv4 in IPv6, in hexadecimal": ("::ffff:a00:5", "is IPv4 inside IPv6"),
}
"""The same, of IPv6."""

ITEMS = {
    "no port": ("10.0.0.1", "is not host:port"),
    "an empty port": ("10.0.0.1:", "the port is not a whole number from 1 to 65535"),
    "port 0": ("10.0.0.1:0", "the port is not a whole number from 1 to 65535"),
    "port 65536": ("10.0.0.1:65536", "the port is not a whole number from 1 to 65535"),
    "a port with a leading zero": ("10.0.0.1:080", "the port is not a whole number"),
    "a negative port": ("10.0.0.1:-1", "the port is not a whole number from 1 to 65535"),
    "a range of ports": ("10.0.0.1:80-81", "the port is not a whole number from 1 to 65535"),
    "a name for a port": ("10.0.0.1:http", "the port is not a whole number from 1 to 65535"),
    "a port beyond all numbers": (f"10.0.0.1:{2**64 + 80}", "the port is not a whole number"),
    "another protocol": ("10.0.0.1:80/sctp", "is neither tcp nor udp"),
    "a protocol in capitals": ("10.0.0.1:80/TCP", "is neither tcp nor udp"),
    "two protocols": ("10.0.0.1:80/tcp/udp", "is neither tcp nor udp"),
    "IPv6 without brackets": ("fd00::1:80", "is not host:port, or [IPv6 address]:port"),
    "brackets without a port": ("[fd00::1]", "is not host:port, or [IPv6 address]:port"),
    "IPv4 in brackets": ("[10.0.0.1]:80", "brackets are for IPv6 addresses"),
    "a bracket that stays open": ("[fd00::1:80", "is not host:port"),
    "a URL": ("http://10.0.0.1:80", "is not host:port"),
    "an empty item": ("10.0.0.1:80,,10.0.0.2:80", "has an empty item"),
    "a comma before": (",10.0.0.1:80", "has an empty item"),
    "a comma behind": ("10.0.0.1:80,", "has an empty item"),
    "a space behind a comma": ("10.0.0.1:80, 10.0.0.2:80", "has white space in it"),
    "a space behind": ("10.0.0.1:80 ", "has white space in it"),
    "a tab": ("10.0.0.1:80,\t10.0.0.2:80", "has white space in it"),
    "a new line": ("10.0.0.1:80\n10.0.0.2:80", "has white space in it"),
}
"""Exceptions that are wrong in another part than the host."""

BAD = (
    [("EGRESS_ALLOW", f"{host}:80", word, name) for name, (host, word) in HOSTS.items()]
    + [("EGRESS_ALLOW", f"[{host}]:80", word, name) for name, (host, word) in HOSTS6.items()]
    + [("EGRESS_ALLOW", item, word, name) for name, (item, word) in ITEMS.items()]
    + [
        ("EGRESS_DENY", "10.0.0.0/33", "no prefix length from 1 to 32", "a length over 32"),
        ("EGRESS_DENY", "10.0.0.1/8", "did you mean 10.0.0.0/8?", "a bit behind the prefix"),
        ("EGRESS_DENY", "0.0.0.0/0", "is everything", "everything"),
        ("EGRESS_DENY", "127.0.0.0/8", "is loopback", "loopback"),
        ("EGRESS_DENY", "::ffff:8.8.8.8", "is IPv4 inside IPv6", "IPv4 in IPv6"),
        ("EGRESS_DENY", "8.8.8.8:53", "is not an IPv4 or IPv6 address", "a port"),
        ("EGRESS_DENY", "nobody", "does not resolve", "a name that does not resolve"),
        ("EGRESS_DENY", "8.8.8.8,", "has an empty item", "a comma behind"),
        ("EGRESS_DENY", "8.8.8.8, 8.8.4.4", "has white space in it", "a space"),
        ("EGRESS_DNS", "", "is empty: leave it out, or say none", "empty"),
        ("EGRESS_DNS", "10.0.0.0/8", "is not one address", "a network"),
        ("EGRESS_DNS", "vllm", "is not an IPv4 or IPv6 address", "a name"),
        ("EGRESS_DNS", "none,8.8.8.8", '"none" is not an IPv4', "none and another"),
        ("EGRESS_DNS", "NONE", "is not an IPv4 or IPv6 address", "capitals"),
        ("EGRESS_DNS", "8.8.8.8:53", "is not an IPv4 or IPv6 address", "a port"),
        ("EGRESS_DNS", "224.0.0.251", "is a multicast address", "multicast"),
        ("EGRESS_MODE", "", "is not one of internet, upstream-only", "empty"),
        ("EGRESS_MODE", "Internet", "is not one of internet, upstream-only", "capitals"),
        ("EGRESS_MODE", "internet upstream-only", "is not one of", "both"),
        ("EGRESS_IPV6", "true", "is not one of off, on", "another word"),
        ("EGRESS_SCOPE", "host", "is not one of container, uid", "another word"),
        ("EGRESS_BACKEND", "nftables", "is not one of auto, nft, legacy", "another word"),
        ("EGRESS_FIREWALL", "no", "is not one of on, off", "another word"),
        ("EGRESS_UID", "0", "is not a whole number from 1 to 4294967294", "root"),
        ("EGRESS_UID", "4294967295", "is not a whole number from 1 to 4294967294", "one more"),
        ("EGRESS_UID", "010001", "is not a whole number", "a leading zero"),
        ("EGRESS_UID", "app", "is not a whole number", "a name"),
        ("PROXY_PORT", "0", "is not a whole number from 1 to 65535", "none"),
        ("PROXY_PORT", "65536", "is not a whole number from 1 to 65535", "one more"),
        ("PROXY_PORT", "tcp://10.0.0.1:8080", "is not a whole number", "what Kubernetes injects"),
        ("EGRESS_ALOW", "10.0.0.1:80", "is not a setting of this firewall", "a typo"),
        ("EGRESS_", "1", "is not a setting of this firewall", "no name"),
    ]
)


@pytest.mark.parametrize(
    ("setting", "value", "offence"),
    [pytest.param(*row[:3], id=f"{row[0]}: {row[3]}") for row in BAD],
)
def test_a_bad_setting(run: Run, setting: str, value: str, offence: str) -> None:
    """Exit 2, no rules, and one line that names the setting and what is wrong with the value."""
    done = run("print", **{setting: value})
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"egress: {setting}")
    assert offence in line


def test_all_problems_at_once(run: Run) -> None:
    """A line for each, also for two in one setting: nobody mends one to be told the next."""
    done = run(
        "print",
        EGRESS_MODE="none",
        EGRESS_ALLOW="10.0.0.1:0,nobody:80,fd00::1",
        EGRESS_DENY="10.0.0.1/8",
        EGRESS_DNS="",
        EGRESS_UID="-1",
        EGRESS_ALOW="x",
        PROXY_PORT="x",
    )
    assert (done.returncode, done.stdout) == (2, "")
    told = Counter(line.split()[1].rstrip(":") for line in done.stderr.splitlines())
    once = ["MODE", "DENY", "DNS", "UID", "ALOW"]
    assert told == {"EGRESS_ALLOW": 3, "PROXY_PORT": 1, **{f"EGRESS_{name}": 1 for name in once}}


@pytest.mark.parametrize("command", ["apply", "verify", "print"])
def test_every_command_reads_all_of_the_input(run: Run, command: str) -> None:
    """A command without the privilege to do anything still says what is wrong with the input."""
    done = run(command, EGRESS_ALLOW="10.0.0.1:0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        'egress: EGRESS_ALLOW: "10.0.0.1:0": the port is not a whole number from 1 to 65535'
    ]


@pytest.mark.parametrize("uid", ["1", "4294967294"])
def test_the_bounds_of_a_user(run: Run, uid: str) -> None:
    """Every user but root may be limited."""
    done = run("print", EGRESS_SCOPE="uid", EGRESS_UID=uid)
    assert done.returncode == 0, done.stderr
    assert f"-I OUTPUT 1 -m owner --uid-owner {uid} " in done.stdout


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_loopback_is_an_exception_where_it_is_not_open(run: Run, host: str) -> None:
    """In uid scope the host's loopback is closed, and an upstream on it is named like another."""
    done = run("print", EGRESS_SCOPE="uid", EGRESS_ALLOW=f"{host}:8000")
    assert done.returncode == 0, done.stderr
    assert len(allowed(done.stdout)) == 1


def test_control_characters_are_not_echoed(run: Run) -> None:
    """What a value would do to a terminal or a log is not done by the line that refuses it."""
    done = run("print", EGRESS_MODE="\x1b[2J")
    assert done.stderr.isprintable() or done.stderr.rstrip("\n").isprintable()
    assert done.returncode == 2


SEED = 4

TRICKY = ["::5", "::a00:5", "::1:a00:5", "::ffff:0:a00:5", "0:0:0:0:fffe:0:a00:5", "1::", "1:0::"]
"""Where the run of zeros is at an end, or is followed by what looks like IPv4."""


def test_addresses_as_glibc_writes_them(run: Run) -> None:
    """Whatever way an address is written, the rule has the spelling of iptables-save."""
    chance = random.Random(SEED)  # noqa: S311 - the same rows each time
    groups = ["0", "0", "0", "1", "a", "ffff", "fd00", "0db8"]
    rows = [[chance.choice(["0", "1", "2001"]), *chance.choices(groups, k=7)] for _ in range(1000)]
    packed = [
        socket.inet_pton(socket.AF_INET6, one) for one in TRICKY + [":".join(r) for r in rows]
    ]
    packed = [
        one for one in packed if one[:15] != bytes(15) and one[:12] != bytes(10) + b"\xff\xff"
    ]
    written = [
        ":".join(f"{one[at]:02X}{one[at + 1]:02x}" for at in range(0, 16, 2)) for one in packed
    ]
    printed: list[str] = []
    for at in range(0, len(written), 256):  # which is as many as a list may have
        done = run("print", EGRESS_DENY=",".join(written[at : at + 256]))
        assert done.returncode == 0, done.stderr
        printed += [line.split()[3] for line in done.stdout.splitlines() if '"deny ' in line]
    assert len(printed) > 1900
    assert printed[::2] == [f"{socket.inet_ntop(socket.AF_INET6, one)}/128" for one in packed]


def test_host_bits_as_the_standard_library_sees_them(run: Run) -> None:
    """A network is taken exactly where its last bits are zero, at every length of both families."""
    chance = random.Random(SEED)  # noqa: S311 - the same rows each time
    right: list[str] = []
    wrong: list[str] = []
    for size, family in ((32, socket.AF_INET), (128, socket.AF_INET6)):
        for length in range(1, size):
            number = (9 << size - 8 | chance.getrandbits(size - 8)) >> size - length
            number = number << size - length
            for bits, rows in ((number, right), (number | 1, wrong)):
                text = socket.inet_ntop(family, bits.to_bytes(size // 8))
                rows.append(f"{text}/{length}")
    right = [one for one in right if not one.startswith(("0.0.0.0/", "::/"))]
    wrong = [one for one in wrong if not one.startswith(("0.0.0.1/", "::1/"))]
    assert all(ip_network(one) for one in right)
    done = run("print", EGRESS_DENY=",".join(right))
    assert done.returncode == 0, done.stderr
    printed = [line.split()[3] for line in done.stdout.splitlines() if '"deny ' in line]
    assert printed[::2] == right
    done = run("print", EGRESS_DENY=",".join(wrong))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == len(wrong)


ARGUMENTS = {
    "no command": ((), "which command"),
    "an unknown command": (("aply",), '"aply" is neither a command nor an option'),
    "two commands": (("print", "apply"), "two commands: print and apply"),
    "an unknown option": (("print", "--jsn"), '"--jsn" is neither'),
    "an option of another command": (("print", "--json"), "print has no --json"),
    "apply of one family": (("apply", "--family", "4"), "a family that is left out is a way out"),
    "remove of one family": (("remove", "--family=6"), "a family that is left out is a way out"),
    "apply of the rules only": (("apply", "--rules-only"), "apply has no --rules-only"),
    "a family that is none": (("print", "--family", "5"), '"5" is neither 4 nor 6'),
    "a family without its number": (("print", "--family"), '"" is neither 4 nor 6'),
}


@pytest.mark.parametrize(("words", "offence"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_bad_arguments(run: Run, words: tuple[str, ...], offence: str) -> None:
    """Exit 2 and one line: an option that would do nothing is not ignored."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("egress: ")
    assert offence in line


def test_help(run: Run) -> None:
    """It names every command and the three ways to end."""
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("apply", "verify", "print", "remove", "Exit: 0"))


POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")


@pytest.mark.parametrize("command", ["apply", "verify", "remove"])
def test_without_the_privilege(run: Run, command: str) -> None:
    """Exit 2 and one line that says which capability, and how a container gets it."""
    done = run(command, through=POWERLESS if os.geteuid() == 0 else ())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("egress: the capability NET_ADMIN is missing")
    assert "cap_add" in line


def test_the_table_of_settings_is_complete(run: Run) -> None:
    """The README names every setting that is known, with the default that is in force."""
    table = re.findall(
        r"^\| `([A-Z_0-9]+)` \| (?:`([^`]+)`|none|unset) \|", README.read_text(), re.MULTILINE
    )
    for name, default in table:
        known = run("print", **{name: default}) if default else run("print")
        assert known.stdout == run("print").stdout, name
    source = (SCRIPT.parent / "lib" / "input.sh").read_text()
    assert {name for name, _ in table} == set(
        re.findall(r"\b(?:EGRESS_[A-Z0-9]+|PROXY_PORT)\b", source)
    )
