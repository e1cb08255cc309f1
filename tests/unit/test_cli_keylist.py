"""The list of keys as a table, in terminals of any width."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from proxy.auth.keys import KeyRecord
from proxy.cli import keylist

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("width", "expires"),
    [
        pytest.param(80, "2027-01-31", id="narrow"),
        pytest.param(119, "2027-01-31", id="less than wide"),
        pytest.param(120, "2027-01-31T00:00:00Z", id="wide"),
    ],
)
def test_a_date_is_in_one_piece(width: int, expires: str) -> None:
    """Where it is narrow without its time; and who is in whose place."""
    expiry = datetime(2027, 1, 31, tzinfo=UTC)
    records = [
        KeyRecord("aaaaaaaa", bytes(32), "alice", expires=expiry, replaced_by="bbbbbbbb"),
        KeyRecord("bbbbbbbb", bytes(32), "alice"),
    ]
    console = Console(width=width, file=io.StringIO())
    with console.capture() as shown:
        console.print(keylist.table(records, NOW, width=width))
    lines = shown.get().splitlines()
    (line,) = [line for line in lines if " aaaaaaaa " in line]
    assert f" {expires} " in line
    assert "rotating, now bbbbbbbb" in line
    assert max(map(len, lines)) <= width
