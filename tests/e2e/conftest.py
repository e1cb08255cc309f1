"""The real image and the real compose files, in a network that nothing can leave.

The image is built by an engine in the system's own network, for it needs packages. Everything else is done by
an engine in the router of `tests/harness/networks.py`, with a LAN and an internet behind it. What was tried
from where, and what became of it, is printed at the end of a run, and kept in a file.

::

    def test_it(deployment: Stack, report: Report, networks: Networks) -> None:
        report.check("From vLLM's container", [Row("the NAS", "tcp:192.168.1.10:22", CLOSED)],
                     from_container(deployment, "vllm"))
"""

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import neighbours, servers
from tests.e2e.harness.engine import BUILDING, Engine, alone, missing, sweep
from tests.e2e.harness.image import build
from tests.e2e.harness.probes import Report
from tests.e2e.harness.stack import Stack
from tests.harness.networks import Networks

_REPORT = pytest.StashKey[Report]()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What every probe is written down in."""
    return pytestconfig.stash.setdefault(_REPORT, Report(tmp_path_factory.mktemp("probes")))


@pytest.fixture(scope="session")
def usable(report: Report) -> None:
    """Skips where there is no engine; where a whole check runs, that is a failure."""
    if (lack := missing()) is not None:
        report.not_tested("the containers", lack)
        message = f"no container engine: {lack}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="session")
def networks(usable: None) -> Iterator[Networks]:
    """The LAN and the internet, with something that listens wherever a test will knock."""
    with Networks() as made:
        servers.start(made)
        yield made


@pytest.fixture(scope="session")
def engine(usable: None, report: Report, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The engine in the router, which has the image."""
    polite = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with alone():
        sweep()
        with Engine(None, BUILDING) as builder:
            build(builder)
        # Only now: it has no business with the networks of a test.
        networks: Networks = request.getfixturevalue("networks")
        with Engine(networks.router.path, nameserver=servers.RESOLVER) as made:
            if not made.isolates:
                version = ".".join(map(str, made.version()))
                report.not_tested("a network that its host is not on", f"engine {version}, not 28")
            try:
                yield made
            finally:
                made.clear()
    signal.signal(signal.SIGTERM, polite)


@pytest.fixture(scope="session")
def deployment(engine: Engine) -> Iterator[Stack]:
    """The demo as it comes, all healthy, with neighbours on its networks.

    Whoever stops something of it starts it again.
    """
    with Stack(engine, overlay=neighbours.overlay()) as made:
        yield made.up()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Everything here has deadlines of its own, and a build takes longer than a test that hangs is given."""
    faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all that is in this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")
            item.add_marker(pytest.mark.within(900))  # as above


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints every probe with its verdict, and keeps them in a file."""
    made = config.stash.get(_REPORT, None)
    if made is None or not made.tables.tables:
        return
    terminalreporter.section("probes")
    lines = made.tables.lines()
    for line in lines:
        terminalreporter.write_line(line)
    path = made.folder / "probes.txt"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    terminalreporter.write_line(f"\nalso in {path}")
