"""The tables that live tests and clients print at the end."""

import json

from tests.harness.figures import Figures


def test_tables_have_the_columns_of_their_rows() -> None:
    """In order of appearance, aligned, with a gap where a row has no such column."""
    figures = Figures()
    figures.add("Hang-ups", "stub", runs=20, median_ms=1.25)
    figures.add("Hang-ups", "a longer name", runs=10_000)
    figures.add("Hang-ups", "a longer name", ended="yes")
    figures.add("Excess", "chat", worst=0)
    assert figures.lines() == [
        "",
        "Hang-ups         runs  median ms  ended",
        "---------------------------------------",
        "stub               20        1.2",
        "a longer name  10,000               yes",
        "",
        "Excess  worst",
        "-------------",
        "chat        0",
    ]
    assert json.loads(figures.json()) == {
        "Hang-ups": [
            {"name": "stub", "runs": 20, "median_ms": 1.25},
            {"name": "a longer name", "runs": 10_000, "ended": "yes"},
        ],
        "Excess": [{"name": "chat", "worst": 0}],
    }
