"""The list of keys as a table, in terminals of any width."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

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
    lines = list(keylist.table(records, NOW, width=width))
    (line,) = [line for line in lines if " aaaaaaaa " in line]
    assert f" {expires} " in line
    assert "rotating, now bbbbbbbb" in line
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("form", ["", "--json"])
@pytest.mark.parametrize(
    ("reader", "keys", "told"),
    [
        pytest.param(">/dev/full", 1, "bulwark: standard output was not written: No", id="full"),
        pytest.param(">/dev/full", 2_000, "bulwark: standard output was", id="and more than waits"),
        pytest.param("| true", 2_000, "", id="whoever was to read it is gone"),
    ],
)
def test_a_list_that_cannot_be_written(
    tmp_path: Path, form: str, reader: str, keys: int, told: str
) -> None:
    """No traceback, and not a word where nobody is at fault."""
    path = tmp_path / "keys.toml"
    path.write_text(
        "".join(f'[[key]]\nid="a{n:07}"\nsha256="{n:064}"\n' for n in range(keys)), "ascii"
    )
    path.chmod(0o600)
    shell = f'set -o pipefail; "$1" -m proxy keys list {form} --file "$2" {reader}'
    run = subprocess.run(  # noqa: S603 - our own command
        ["/bin/bash", "-c", shell, "bash", sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith(told)
    assert run.stderr.count("\n") == bool(told)
