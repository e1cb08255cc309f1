"""Other releases' iptables, which spell some rules otherwise: applied, verified and removed alike."""

import os
from pathlib import Path

import pytest

from tests.firewall.egress import Firewall
from tests.harness.installed import folder
from tests.harness.networks import Networks

pytestmark = pytest.mark.root

SETTINGS = {
    "allow": "172.19.0.3:80,[fd12:19::3]:80,192.168.1.0/24:443,10.0.0.5:53/udp",
    "deny": "203.0.113.0/24,2001:db8:1::/64",
    "dns": "192.168.1.10,fd00:1::10",
    "ipv6": "on",
}
"""With these every kind of rule is there."""

ROOTS = sorted(folder("iptables").glob("*/usr/sbin/xtables-nft-multi"))
VERSIONS = {path.parents[2].name: path.parents[2] for path in ROOTS}


@pytest.fixture(scope="module", params=sorted(VERSIONS) or ["none installed"])
def version(request: pytest.FixtureRequest) -> Path:
    """Where one of the others is unpacked."""
    if request.param not in VERSIONS:
        # Also where CI is set: the installer is not a part of `make test`.
        pytest.skip("NOT TESTED: no other iptables to try; tests/firewall/install fetches some")
    return VERSIONS[request.param]


@pytest.fixture
def other(networks: Networks, firewall: Firewall, version: Path) -> Firewall:
    """The script with that one, in a namespace without rules."""
    firewall.reset()
    (libraries,) = version.glob("usr/lib/*-linux-gnu*")
    path = f"{version}/usr/sbin{os.pathsep}{os.environ['PATH']}"
    env = {"LD_LIBRARY_PATH": str(libraries), "XTABLES_LIBDIR": f"{libraries}/xtables"}
    made = Firewall(networks.proxy, firewall.backend, {"PATH": path, **env})
    shown = networks.proxy.run([f"iptables-{firewall.backend}", "--version"], env=made.env)
    assert version.name in shown.stdout, shown.stderr
    return made


def test_another_version(other: Firewall, firewall: Firewall) -> None:
    """It is applied twice, verified, replaced by the system's version, and removed again."""
    before = other.both()
    other.apply(**SETTINGS)
    once = other.both()
    other.apply(**SETTINGS)
    assert other.both() == once
    code, report = other.verify(**SETTINGS)
    assert report.surprises() == []
    assert code == 0
    firewall.apply(**SETTINGS)
    assert firewall.verify("--rules-only", **SETTINGS)[0] == 0
    assert other.call("remove").returncode == 0
    assert other.both() == before
