"""Tests that cannot run here: skipped with a loud word at the end, failed where CI is set.

A test calls `leave_out` and says what was not tested; the hook, in tests/conftest.py, prints each
reason once, in red, with the number of its tests, so that nobody takes the skips for passes.
"""

import os
from collections import Counter
from typing import NoReturn

import pytest

PREFIX = "NOT TESTED: "
"""How every such reason begins; that of a ``skipif`` mark may, too."""


def leave_out(reason: str) -> NoReturn:
    """Skips a test that cannot run here; where CI is set, that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(PREFIX + reason, pytrace=False)
    pytest.skip(PREFIX + reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what was not tested."""
    # In the reports, for each may come from another process.
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    for reason, tests in counted.items():
        if reason.startswith(PREFIX):
            count = "1 test" if tests == 1 else f"{tests} tests"
            terminalreporter.write_line(f"{reason} ({count})", red=True, bold=True)
