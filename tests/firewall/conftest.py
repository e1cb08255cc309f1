"""The firewall on networks of its own: what the tests need, and a loud word where it is missing."""

import os
from collections.abc import Iterator

import pytest

from tests.firewall.egress import Firewall, tools_missing, works
from tests.harness.figures import figures
from tests.harness.leftout import leave_out
from tests.harness.networks import Networks, missing

__all__ = ["figures"]

BACKENDS = ("nft", "legacy")

_LACKS = pytest.StashKey[list[str]]()


def pytest_configure() -> None:
    """No setting of whoever runs the tests reaches the script."""
    for name in [name for name in os.environ if name.startswith("EGRESS_")]:
        del os.environ[name]


@pytest.hookimpl(tryfirst=True)  # before the rows of the test, so that the names come first
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``@pytest.mark.case("FW-03")`` is the first part of the id: ``pytest -k FW-03`` runs it."""
    names = [mark.args[0] for mark in metafunc.definition.iter_markers("case")]
    if names:
        metafunc.fixturenames.append("case")
        metafunc.parametrize("case", [names], ids=[",".join(sorted(names))])


@pytest.hookimpl(tryfirst=True)  # before any fixture asks for a namespace
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what needs root and has it not; where CI is set, that is a failure."""
    if item.get_closest_marker("root") is None:
        return
    if _LACKS not in item.config.stash:
        item.config.stash[_LACKS] = missing() or tools_missing()
    lacks: list[str] = item.config.stash[_LACKS]
    if lacks:
        leave_out(f"the firewall; no network namespaces here, missing: {', '.join(lacks)}")


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Either way that iptables talks to the kernel, where this one has it."""
    name: str = request.param
    if problem := works(name):
        leave_out(f"the firewall; no iptables-{name} here: {problem}")
    return name


@pytest.fixture(scope="module")
def networks(backend: str) -> Iterator[Networks]:
    """The proxy, a tunnel, an upstream, a LAN and an internet; new for each backend."""
    with Networks(containers=True) as made:
        yield made


@pytest.fixture(scope="module")
def firewall(networks: Networks, backend: str) -> Firewall:
    """The script in the proxy's namespace."""
    return Firewall(networks.proxy, backend)
