"""What holds for every test."""

import os

import hypothesis
import pytest

from tests.harness import figures, leftout
from tests.harness.figures import pytest_sessionfinish, pytest_testnodedown
from tests.harness.hanging import pytest_runtest_call
from tests.harness.running import WAY

__all__ = ["pytest_runtest_call", "pytest_sessionfinish", "pytest_testnodedown"]

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def pytest_configure() -> None:
    """Every server of a test is on this machine, whatever proxy the environment names.

    Clients would ask that one for 127.0.0.1: nine kinds of tests failed where HTTP_PROXY was set. What
    tests are about proxies sets its own.
    """
    for name in _PROXIES:
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    # What an example takes is a matter of what else the machine does.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("unhurried", deadline=None, suppress_health_check=slow)
    if not os.environ.get("CI"):  # where it is set, hypothesis has a profile of its own
        hypothesis.settings.load_profile("unhurried")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints what was measured, and what was not tested."""
    figures.pytest_terminal_summary(terminalreporter, config)
    leftout.pytest_terminal_summary(terminalreporter)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that is ``both_ways`` runs with streams pushed from socket to socket, and pulled."""
    if metafunc.definition.get_closest_marker("both_ways") is not None:
        metafunc.parametrize("way", ["pushed", "pulled"], indirect=True)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which way the streams of the test's proxies take, where the test has one."""
    if (name := getattr(request, "param", None)) is not None:
        monkeypatch.setenv(WAY, name)
