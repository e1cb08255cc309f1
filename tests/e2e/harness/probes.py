"""What can be reached from where: tables of targets, each with what is expected, tried and printed."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.harness.stack import Stack
from tests.harness.figures import Figures
from tests.harness.networks import WIRE, Answer, Namespace

Prober = Callable[[Iterable[str]], Mapping[str, Answer]]
"""Tries targets, spelled as `wire/probe.py` wants them, from one place."""

AT_ONCE_MS = 500.0
"""A rejected client is told so: in 1 ms here, but this machine may be busy. A dropped packet costs the second."""

OPEN: Final = "open"
REJECTED: Final = "rejected at once"
CLOSED: Final = "closed"
MEASURED: Final = "not promised"


@dataclass(frozen=True, slots=True)
class Row:
    """One target of a table.

    Attributes:
        what: What it is, in words.
        target: As `wire/probe.py` spells it.
        expected: One of the four above. CLOSED is any way of not being reached; MEASURED is for what an
            engine before 28 cannot do.
    """

    what: str
    target: str
    expected: str

    def holds(self, answer: Answer) -> bool:
        """Whether this is what was expected."""
        match self.expected:
            case "open":
                return answer.open
            case "closed":
                return not answer.open
            case "not promised":
                return True
            case _:
                return answer.outcome in ("refused", "prohibited") and answer.ms < AT_ONCE_MS


class Report:
    """Every probe of a session with its verdict.

    Attributes:
        folder: Where it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = Figures()

    def check(self, place: str, rows: Iterable[Row], probe: Prober) -> None:
        """Tries the rows from a place, and fails with those that are not as expected."""
        rows = list(rows)
        answers = probe([row.target for row in rows])
        wrong = []
        for row in rows:
            answer = answers[row.target]
            holds = row.holds(answer)
            self.add(place, row, answer.outcome, holds=holds, ms=answer.ms)
            if not holds:
                wrong.append(f"{row.what} ({row.target}): {row.expected} expected, was {answer}")
        assert not wrong, f"{place}:\n" + "\n".join(wrong)

    def not_tested(self, what: str, because: str) -> None:
        """Says so among the tables, so that nobody takes a skip for a pass."""
        self.tables.add("NOT TESTED", what, because=because)

    def add(self, place: str, row: Row, result: str, *, holds: bool, ms: float = 0.0) -> None:
        """One line of a table."""
        name = f"{row.what}, {row.target}" if row.target else row.what
        verdict = "as expected" if holds else "WRONG"
        if row.expected == MEASURED:
            verdict = "measured"
        self.tables.add(place, name, expected=row.expected, result=result, ms=ms, verdict=verdict)


def from_namespace(namespace: Namespace) -> Prober:
    """From a machine of the networks."""
    return lambda targets: namespace.probe(*targets)


def from_container(stack: Stack, service: str, user: int = 10001) -> Prober:
    """From inside a service's container, with the Python that is in its image."""

    def probe(targets: Iterable[str]) -> Mapping[str, Answer]:
        program = (WIRE / "probe.py").read_text(encoding="utf-8")
        argv = ("python3", "-I", "-S", "-", _asked(targets))
        return _answers(stack.run(service, *argv, user=user, input=program).stdout)

    return probe


def from_network_of(stack: Stack, service: str) -> Prober:
    """From a service's network, by somebody with all of root's power, whom no container holds."""

    def probe(targets: Iterable[str]) -> Mapping[str, Answer]:
        argv = (sys.executable, "-I", "-S", str(WIRE / "probe.py"), _asked(targets))
        return _answers(run(stack.in_network(service, *argv)))

    return probe


def run(argv: list[str], input: str = "") -> str:  # noqa: A002 - as subprocess calls it
    """What a command of the machine's prints; fails where it does."""
    done = subprocess.run(  # noqa: S603 - nothing of it comes from outside
        argv, input=input, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


def _asked(targets: Iterable[str]) -> str:
    return json.dumps({"targets": list(targets), "seconds": 1.0})


def _answers(printed: str) -> dict[str, Answer]:
    return {given["target"]: Answer(**given) for given in json.loads(printed)}
