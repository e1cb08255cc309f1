"""How the rules change: wholly or not at all, twice as once, and back to what was there before."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.firewall.egress import BASH, CHAINS, SCRIPT, USER, Firewall, Hidden, works
from tests.harness.leftout import leave_out
from tests.harness.networks import Networks

pytestmark = pytest.mark.root

GOOD = {"mode": "upstream-only", "allow": "172.19.0.3:80,[fd12:19::3]:80"}


OPERATORS = """*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:MINE - [0:0]
-A INPUT -p tcp -m tcp --dport 25 -j DROP
-A OUTPUT -p tcp -m tcp --dport 25 -j MINE
COMMIT
"""
"""What somebody else has in the same tables."""


@pytest.fixture
def bare(firewall: Firewall) -> Firewall:
    """The proxy's namespace with an operator's own rules and none of ours."""
    firewall.reset(OPERATORS)
    return firewall


@pytest.fixture(scope="session")
def no_iptables(tmp_path_factory: pytest.TempPathFactory) -> Hidden:
    """No iptables of any kind."""
    return Hidden.programs(tmp_path_factory.mktemp("hidden"), "ip*tables*", "xtables*")


@pytest.fixture(scope="session")
def no_ip6tables(tmp_path_factory: pytest.TempPathFactory) -> Hidden:
    """No ip6tables, while iptables is there."""
    return Hidden.programs(tmp_path_factory.mktemp("hidden"), "ip6tables*")


def test_apply_twice_is_apply_once(bare: Firewall) -> None:
    """A second run leaves the very same rules, not two of each."""
    bare.apply(**GOOD)
    once = bare.both()
    bare.apply(**GOOD)
    assert bare.both() == once
    assert all(f":{chain} " in saved for saved in once for chain in CHAINS)


def test_other_settings_replace_the_rules(bare: Firewall) -> None:
    """From any settings to others, the result is that of the others alone."""
    bare.apply(**GOOD)
    alone = bare.both()
    bare.apply(ipv6="on", deny="203.0.113.0/24", dns="192.168.1.10")
    assert bare.both() != alone
    bare.apply(**GOOD)
    assert bare.both() == alone


def test_the_jumps_are_first_and_policies_stay(bare: Firewall) -> None:
    """Each own chain is jumped to before any other rule; others' rules and policies are left."""
    before = bare.both()
    bare.apply(**GOOD)
    for old, new in zip(before, bare.both(), strict=True):
        lines = new.splitlines()
        for chain, own in (("OUTPUT", CHAINS[0]), ("INPUT", CHAINS[1]), ("FORWARD", CHAINS[2])):
            first = next(line for line in lines if line.startswith(f"-A {chain} "))
            assert first.endswith(f"-j {own}"), first
        assert [line for line in lines if "BULWARK" not in line] == old.splitlines()


def test_an_operators_rules_before_ours_are_behind_them_again(bare: Firewall) -> None:
    """What was inserted before the jump is behind it after the next apply, and is not lost."""
    bare.apply(**GOOD)
    alone = bare.both()
    for family in (4, 6):
        bare.rule(family, "-I", "OUTPUT", "-p", "tcp", "--dport", "26", "-j", "ACCEPT")
    bare.apply(**GOOD)
    for saved, before in zip(bare.both(), alone, strict=True):
        lines = [line for line in saved.splitlines() if "--dport 26" not in line]
        assert len(lines) == len(saved.splitlines()) - 1
        assert lines == before.splitlines()
        output = [line for line in saved.splitlines() if line.startswith("-A OUTPUT ")]
        assert output[0].endswith("-j BULWARK-OUT")


def test_remove_restores(bare: Firewall) -> None:
    """Byte for byte what was there before, in both families, however often it was applied."""
    before = bare.both()
    bare.apply(**GOOD)
    bare.apply(ipv6="on")
    done = bare.call("remove")
    assert done.returncode == 0, done.stderr
    assert bare.both() == before
    again = bare.call("remove")
    assert again.returncode == 0, again.stderr
    assert bare.both() == before


def test_remove_needs_no_good_settings(bare: Firewall) -> None:
    """What was applied can be taken out, whatever has become of the settings meanwhile."""
    before = bare.both()
    bare.apply(**GOOD)
    bare.call("remove", settings={"allow": "gone.invalid:80", "mode": "upstream-only"})
    assert bare.both() == before


def test_remove_takes_both_backends_rules(bare: Firewall) -> None:
    """Rules that were applied with the other backend go too."""
    other = "legacy" if bare.backend == "nft" else "nft"
    done = bare.call("apply", settings={**GOOD, "backend": other})
    if done.returncode:
        pytest.skip(f"no {other} here: {done.stderr}")
    bare.apply(**GOOD)
    done = bare.call("remove")
    assert done.returncode == 0, done.stderr
    for backend in (bare.backend, other):
        for family in (4, 6):
            assert "BULWARK" not in bare.saved(family, backend=backend)


@pytest.mark.case("FW-07")
def test_the_resolvers_rules_are_left_alone(bare: Firewall) -> None:
    """The nat table, in which an engine keeps its resolver, is as it was: by every command."""
    nat = ("-t", "nat", "-A", "OUTPUT", "-d", "127.0.0.11/32", "-p", "udp", "--dport", "53")
    bare.rule(4, *nat, "-j", "DNAT", "--to-destination", "127.0.0.11:40053")
    before = bare.saved(4, table="nat")
    for command in ("apply", "verify", "remove"):
        bare.call(command)
        assert bare.saved(4, table="nat") == before
    bare.rule(4, "-t", "nat", "-F")


BAD = {
    "no port": {"allow": "172.19.0.3"},
    "a name that does not resolve": {"allow": "vllm.invalid:80"},
    "one bad item among good ones": {"allow": "172.19.0.3:80,10.0.0.1/8:80"},
    "an unknown mode": {"mode": "upstream"},
    "an unknown setting": {"alow": "172.19.0.3:80"},
    "an unknown value of a switch": {"ipv6": "yes"},
    "a range that is none": {"deny": "10.0.0.0/33"},
    "a resolver that is no address": {"dns": "one.one.one.one"},
    "a user that is none": {"scope": "uid", "uid": "-1"},
}


@pytest.mark.parametrize("settings", BAD.values(), ids=BAD.keys())
def test_bad_input_changes_nothing(firewall: Firewall, settings: dict[str, str]) -> None:
    """Exit 2, one clear line that names the setting, and the rules as they were."""
    firewall.hold(**GOOD)
    saved = firewall.both()
    done = firewall.call("apply", settings=settings)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("egress: ")
    assert any(f"EGRESS_{name.upper()}" in line for name in settings)
    assert firewall.both() == saved


def test_bad_input_makes_no_rules(bare: Firewall) -> None:
    """Where there were none of ours, there are none: what may be half of the input is not used."""
    saved = bare.both()
    done = bare.call("apply", settings={**GOOD, "dns": "nobody"})
    assert done.returncode == 2, done.stdout + done.stderr
    assert bare.both() == saved


def in_place_of(folder: Path, script: str, *names: str) -> str:
    """A PATH on which these programs are a script, which finds the real one in ``$real``."""
    for name in names:
        program = folder / name
        program.write_text(f"#!/bin/sh\nname={name} real={shutil.which(name)}\n{script}\n")
        program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def restores(backend: str, *names: str) -> list[str]:
    """What puts rules into the kernel, by either of its names."""
    return [f"{name}{kind}-restore" for name in names for kind in ("", f"-{backend}")]


@pytest.fixture
def broken(tmp_path: Path, backend: str) -> str:
    """A PATH on which the second family's rules pass the test and are then refused."""
    script = """
for word; do case $word in --test|-t|--version|-V) exec $real "$@" ;; esac; done
cat >/dev/null; echo 'refused by the test' >&2; exit 1"""
    return in_place_of(tmp_path, script, *restores(backend, "ip6tables"))


def test_both_families_are_tested_before_either_is_touched(bare: Firewall, tmp_path: Path) -> None:
    """Where the second family's rules do not pass, nothing was done for the first either."""
    calls = tmp_path / "calls"
    script = f"""
echo "$name $*" >>{calls}
case "$name $*" in ip6tables*--test*) cat >/dev/null; echo 'no such match' >&2; exit 1 ;; esac
exec $real "$@\""""
    path = in_place_of(tmp_path, script, *restores(bare.backend, "iptables", "ip6tables"))
    saved = bare.both()
    done = bare.call("apply", path=path, settings=GOOD)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no such match" in done.stderr
    tried = calls.read_text().splitlines()
    assert {line.partition("-")[0] for line in tried} == {"iptables", "ip6tables"}
    assert [line for line in tried if "--test" not in line] == []
    assert bare.both() == saved


def test_a_backend_that_cannot_is_not_taken(bare: Firewall, tmp_path: Path) -> None:
    """Some kernels show a backend's tables and cannot fill them: then it is the other one."""
    if problem := works("legacy"):
        leave_out(f"the firewall; no iptables-legacy here: {problem}")
    script = "cat >/dev/null; echo 'no such table' >&2; exit 1"
    names = ("iptables-nft-restore", "ip6tables-nft-restore")
    path = in_place_of(tmp_path, script, *names)
    done = bare.call("apply", path=path, settings={**GOOD, "backend": "auto"})
    assert done.returncode == 0, done.stderr
    assert "iptables-legacy" in done.stdout
    assert "BULWARK-OUT" in bare.saved(4, backend="legacy")
    assert "BULWARK-OUT" not in bare.saved(4, backend="nft")
    assert bare.call("remove").returncode == 0


def test_the_other_backends_rules_go(bare: Firewall) -> None:
    """Those of an earlier run would still reject what is allowed now."""
    other = "legacy" if bare.backend == "nft" else "nft"
    if problem := works(other):
        leave_out(f"the firewall; no iptables-{other} here: {problem}")
    bare.apply(**GOOD, backend=other)
    assert "BULWARK-OUT" in bare.saved(4, backend=other)
    bare.apply(**GOOD)
    for family in (4, 6):
        assert "BULWARK-OUT" in bare.saved(family)
        assert "BULWARK" not in bare.saved(family, backend=other)


@pytest.mark.parametrize("before", ["no rules", "rules"])
def test_the_second_familys_failure_takes_back_the_first(
    bare: Firewall, broken: str, before: str
) -> None:
    """Where IPv6's rules are refused, IPv4's are again what they were: never half of it."""
    if before == "rules":
        bare.apply(mode="internet")
    saved = bare.both()
    done = bare.call("apply", path=broken, settings=GOOD)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "refused by the test" in done.stderr
    assert bare.both() == saved


@pytest.mark.case("FW-15")
@pytest.mark.parametrize("command", ["apply", "verify", "remove"])
def test_without_iptables(bare: Firewall, no_iptables: Hidden, command: str) -> None:
    """A missing iptables is exit 2 and one line that names it, not a run without rules."""
    done = bare.call(command, around=no_iptables.around())
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("egress: ")
    assert "iptables" in line


@pytest.mark.case("FW-02")
@pytest.mark.case("FW-15")
def test_without_ip6tables_where_there_is_ipv6(bare: Firewall, no_ip6tables: Hidden) -> None:
    """IPv4's rules alone are no firewall where IPv6 is there: exit 2, and neither is applied."""
    saved = bare.both()
    done = bare.call("apply", around=no_ip6tables.around())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "ip6tables" in done.stderr
    assert bare.both() == saved


@pytest.mark.case("FW-02")
def test_without_ip6tables_where_there_is_no_ipv6(backend: str, no_ip6tables: Hidden) -> None:
    """Without IPv6 its rules are not missed: applied, verified and removed."""
    with Networks(containers=True, ipv6=False) as made:
        firewall = Firewall(made.proxy, backend)
        for command in ("apply", "verify", "remove"):
            done = firewall.call(command, around=no_ip6tables.around())
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_rules_for_a_network_that_comes_later(backend: str) -> None:
    """Where ip6tables is there, its rules go in without IPv6 too: it may come with a network."""
    with Networks(containers=True, ipv6=False) as made:
        firewall = Firewall(made.proxy, backend)
        firewall.apply()
        assert "BULWARK-OUT" in firewall.saved(6)


@pytest.mark.case("FW-15")
@pytest.mark.parametrize(
    "privilege",
    [
        pytest.param((f"--reuid={USER}", "--clear-groups"), id="the server's user"),
        pytest.param(("--bounding-set=-net_admin",), id="root without NET_ADMIN"),
    ],
)
def test_without_the_privilege(bare: Firewall, privilege: tuple[str, ...]) -> None:
    """It is exit 2 and one line that names it: what was asked for is not skipped."""
    saved = bare.both()
    for command in ("apply", "verify", "remove"):
        done = bare.call(command, around=["setpriv", *privilege, "--"])
        assert done.returncode == 2, done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("egress: ")
        assert "NET_ADMIN" in line
    assert bare.both() == saved


CONTAINERS = "--bounding-set=-all,+net_admin,+setuid,+setgid,+setpcap"
"""What a container of ours has: never NET_RAW."""

READ_ONLY = """
mount -t tmpfs -o ro none /run
for each in /tmp /var/tmp /dev/shm; do
    mount --bind $each $each
    mount -o remount,bind,ro $each
done
"$@"
exit
"""
"""As PID 1 it starts the command, and is not judged by it."""


def in_a_container(*capabilities: str) -> list[str]:
    """What goes before a command that is to see its own processes only, and can write nothing."""
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    bounding = ",".join((CONTAINERS, *capabilities))
    return [*own, "sh", "-ec", READ_ONLY, "sh", "setpriv", bounding, "--"]


def test_in_a_container_of_ours(bare: Firewall) -> None:
    """With the capabilities that it has, and nothing to write to, all commands do their work."""
    around = in_a_container()
    if bare.backend == "legacy":
        done = bare.call("apply", around=around, settings=GOOD)
        # It asks the kernel by a raw socket, which needs NET_RAW: one line, and no half of it.
        assert done.returncode in (1, 2), done.stdout
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "BULWARK" not in "".join(bare.both())
        around = in_a_container("+net_raw")
    before = bare.both()
    for command in ("apply", "apply", "verify", "remove"):
        done = bare.call(command, around=around, settings=GOOD)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert bare.both() == before


def test_two_runs_at_once(bare: Firewall) -> None:
    """Runs at the same time wait for each other; the rules are whole, and those of one of them."""
    bare.apply(**GOOD)
    good = bare.both()
    bare.apply()
    other = bare.both()
    assert good != other
    started = [
        bare.where.popen([BASH, str(SCRIPT), "apply"], env=bare.environment(settings))
        for settings in (GOOD, {}, GOOD, {})
    ]
    assert [process.wait(timeout=30) for process in started] == [0] * 4
    assert bare.both() in (good, other)


def test_print_is_what_is_applied(bare: Firewall) -> None:
    """What ``print`` shows, given to the kernel by hand, is what ``apply`` puts there."""
    bare.apply(**GOOD)
    applied = bare.both()
    bare.call("remove")
    for family in (4, 6):
        shown = bare.call("print", "--family", str(family), user=10001, settings=GOOD)
        assert shown.returncode == 0, shown.stderr
        name = "iptables" if family == 4 else "ip6tables"
        restore = [f"{name}-{bare.backend}-restore", "--noflush"]
        done = bare.where.run(restore, input=shown.stdout)
        assert done.returncode == 0, done.stderr
    assert bare.both() == applied


@pytest.mark.case("FW-04")
def test_rules_that_vanish_are_noticed_and_put_back(bare: Firewall) -> None:
    """After a flush the health check's command fails, and the next apply restores all of it."""
    bare.apply(**GOOD)
    whole = bare.both()
    assert bare.call("verify", "--rules-only", settings=GOOD).returncode == 0
    for family in (4, 6):
        bare.rule(family, "-F")
    done = bare.call("verify", "--rules-only", "--json", settings=GOOD)
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False
    bare.apply(**GOOD)
    assert bare.call("verify", "--rules-only", settings=GOOD).returncode == 0
    assert [_own(saved) for saved in bare.both()] == [_own(saved) for saved in whole]


def _own(saved: str) -> list[str]:
    return [line for line in saved.splitlines() if "BULWARK" in line]


def test_a_network_that_comes_later(backend: str) -> None:
    """A network that is connected after apply is a surprise where it would be open, and is closed next."""
    with Networks(containers=True) as made:
        firewall = Firewall(made.proxy, backend)
        firewall.apply()
        # As wide as a network can be; what is wider is taken for a way out.
        made.bridge("late", "51.0.0.1/8", "2001:db8:51::1/64")
        neighbour = made.namespace("neighbour")
        made.connect(neighbour, "late", "51.0.0.3/8", "2001:db8:51::3/64", default=True)
        made.connect(made.proxy, "late", "51.0.0.2/8", "2001:db8:51::2/64")
        neighbour.serve(80)
        target = "tcp:51.0.0.3:80"
        assert made.proxy.probe(target)[target].open
        code, report = firewall.verify("--rules-only")
        assert (code, report.ok) == (1, False)
        firewall.apply()
        assert made.proxy.probe(target)[target].outcome == "refused"
        assert firewall.verify("--rules-only")[0] == 0


def test_half_of_everything_is_a_way_out(backend: str) -> None:
    """A VPN's two routes are not two neighbourhoods: behind them is the internet."""
    with Networks(containers=True) as made:
        made.internet.serve(80)
        made.proxy.ip("route del default")
        made.proxy.ip(*(f"route add {half}/1 via 172.18.0.1" for half in ("0.0.0.0", "128.0.0.0")))
        # One without a gateway, as on a link from point to point.
        made.proxy.ip("route add 48.0.0.0/7 dev tunnel")
        firewall = Firewall(made.proxy, backend)
        firewall.apply()
        target = "tcp:8.8.8.8:80"
        assert made.proxy.probe(target)[target].open
        assert "48.0.0.0" not in firewall.saved(4)
