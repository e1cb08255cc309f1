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
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import neighbours
from tests.e2e.harness.engine import BUILDING, Engine, alone, missing, sweep
from tests.e2e.harness.image import build
from tests.e2e.harness.probes import Report, Row
from tests.e2e.harness.stack import Stack
from tests.harness.networks import Namespace, Networks

PROGRAMS = Path(__file__).parent / "programs"

RESOLVER = "8.8.8.8"
"""What the machine with the engine asks for names: a public one, as on a rented server."""

HOME_RESOLVER = "192.168.1.10"
"""What a machine at home would ask."""

NAMES = {
    "example.com": ["203.0.113.10"],
    "rebinding.example": ["203.0.113.10", "10.0.0.5"],
    "nas.example": ["192.168.1.10"],
}

_REPORT = pytest.StashKey[Report]()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What every probe is written down in."""
    return pytestconfig.stash.setdefault(_REPORT, Report(tmp_path_factory.mktemp("probes")))


@pytest.fixture(scope="session")
def usable(report: Report) -> None:
    """Skips where there is no engine; where a whole check runs, that is a failure."""
    if (lack := missing()) is not None:
        report.add("NOT TESTED", Row("the containers", "", "an engine"), lack, holds=False)
        message = f"no container engine: {lack}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="session")
def networks(usable: None) -> Iterator[Networks]:
    """The LAN and the internet, with something that listens wherever a test will knock."""
    with Networks() as made:
        made.router.serve(22, 9999)
        made.lan.serve(22, 80, 8000)
        made.internet.serve(80, 443)
        name_server(made.internet, RESOLVER)
        name_server(made.lan, HOME_RESOLVER)
        yield made


def name_server(where: Namespace, host: str) -> None:
    """Has NAMES answered there."""
    asked = json.dumps({"host": host, "names": NAMES})
    server = where.popen([sys.executable, "-I", "-S", str(PROGRAMS / "dns.py"), asked])
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"


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
        with Engine(networks.router.path, nameserver=RESOLVER) as made:
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
        neighbours.listen_in(made.up(), "vllm")
        yield made


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
