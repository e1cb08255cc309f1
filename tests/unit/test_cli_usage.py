"""The commands and the file of what keys have used: what ``check`` says of it, and what ``usage`` shows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_cli import KEY, bulwark


def a_text(path: Path) -> None:
    """The key file, perhaps."""
    path.write_text("[[key]]\n" * 1000)
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        pytest.param("none/usage.db", lambda _path: None, id="a folder that is not there"),
        pytest.param("usage.db", Path.mkdir, id="a folder"),
        pytest.param("usage.db", a_text, id="a text"),
    ],
)
def test_check_says_of_the_usage_database_what_serve_says(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """Exit status 2, in the same words; and nothing is made."""
    path = tmp_path / name
    make(path)
    before = sorted(tmp_path.rglob("*"))
    wrong = {"api_keys": KEY, "usage_db": str(path)}
    told = bulwark("check", **wrong)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(
        f"bulwark: the configuration is wrong:\n  PROXY_USAGE_DB: {path} "
    )
    assert sorted(tmp_path.rglob("*")) == before
    served = bulwark("serve", port="0", admin_port="0", **wrong)
    assert (served.returncode, served.stderr.splitlines()[1:]) == (2, told.stderr.splitlines()[1:])


def test_check_makes_no_usage_database(tmp_path: Path) -> None:
    """It is right that there is none yet."""
    run = bulwark("check", api_keys=KEY, usage_db=str(tmp_path / "usage.db"))
    assert (run.returncode, [*tmp_path.iterdir()]) == (0, [])
