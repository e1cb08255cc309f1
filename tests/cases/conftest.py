"""The case bank: the proxy as in the contract, and ids that are the names of the cases."""

import pytest

from tests.harness.figures import figures
from tests.harness.fixtures import ending, proxy

__all__ = ["ending", "figures", "proxy"]


@pytest.hookimpl(tryfirst=True)  # before the rows of the test, so that the name comes first
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``@pytest.mark.case("PT-01")`` is the first part of the id: ``pytest -k PT-01`` runs it."""
    marker = metafunc.definition.get_closest_marker("case")
    assert marker is not None, f"{metafunc.definition.nodeid}: which case is this?"
    metafunc.fixturenames.append("case")
    metafunc.parametrize("case", marker.args, ids=marker.args)
