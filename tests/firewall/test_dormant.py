"""Rules that are in place and do nothing: every line is as it should be, and no packet meets it."""

from collections.abc import Iterator

import pytest

from tests.firewall.egress import Firewall, Watch, works
from tests.harness.leftout import leave_out
from tests.harness.networks import Networks

pytestmark = pytest.mark.root

GOOD = {"mode": "upstream-only", "allow": "172.19.0.3:80,[fd12:19::3]:80"}
TABLES = {4: "ip", 6: "ip6"}


@pytest.fixture(scope="module")
def place() -> Iterator[Networks]:
    """The LAN serves the port that is probed; a table of the legacy backend cannot sleep."""
    if problem := works("nft"):
        leave_out(f"the firewall; no iptables-nft here: {problem}")
    with Networks(containers=True) as made:
        if made.proxy.run(["nft", "list", "tables"]).returncode:
            leave_out("the firewall; no nft here, which puts tables to sleep")
        made.lan.serve(9)
        yield made


@pytest.fixture(scope="module")
def firewall(place: Networks) -> Firewall:
    """The script, by the backend that can sleep."""
    return Firewall(place.proxy, "nft")


@pytest.mark.parametrize("family", TABLES)
@pytest.mark.parametrize("scope", ["container", "uid"])
@pytest.mark.parametrize("flags", [("--rules-only",), ()], ids=["rules only", "all of it"])
def test_a_table_that_sleeps(
    place: Networks, firewall: Firewall, family: int, scope: str, flags: tuple[str, ...]
) -> None:
    """It is a surprise, for the health check as well, and no probe is let out by it."""
    settings = {**GOOD, "scope": scope}
    firewall.reset()
    firewall.apply(**settings)
    assert firewall.verify("--rules-only", **settings)[0] == 0
    watch = Watch(Firewall(place.router, firewall.backend), port=9)
    asleep = f"table {TABLES[family]} filter {{ flags dormant; }}"
    done = place.proxy.run(["nft", "-f", "-"], input=f"add {asleep}\n")
    assert done.returncode == 0, done.stderr
    before = watch.packets()
    code, report = firewall.verify(*flags, **settings)
    assert (code, [check.name for check in report.surprises()]) == (1, [f"IPv{family} packets"])
    assert watch.packets() == before
    place.proxy.run(["nft", "delete", "table", TABLES[family], "filter"])
    Firewall(place.router, firewall.backend).rule(4, "-t", "raw", "-F")
    Firewall(place.router, firewall.backend).rule(6, "-t", "raw", "-F")
