"""The commands and the file of what keys have used: what ``check`` says of it, and what ``usage`` shows."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from proxy.admission.history import HistoryFile
from proxy.admission.history.file import Rows
from proxy.cli.usage import first
from proxy.cli.usage import usage as usage_command
from tests.harness.keycommands import id_of, made
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


TODAY = (datetime.now(UTC).date() - date(1970, 1, 1)).days
"""Or yesterday's, where a test runs over midnight: figures of both are in what is asked for."""
HEAD = ["requests", "prompt tokens", "output tokens", "charged"]


def used(path: Path, rows: Rows) -> Path:
    """A file that has this."""
    file = HistoryFile(path)
    file.begin(TODAY)
    file.add(rows)
    return path


def usage(*arguments: str, path: Path | str = "", keys: Path | None = None) -> Result:
    """One run of ``bulwark usage``, in this process."""
    commands = typer.Typer()
    commands.command()(usage_command)
    env = {"PROXY_USAGE_DB": str(path) or None, "PROXY_KEYS_FILE": str(keys) if keys else None}
    return CliRunner().invoke(commands, [*arguments], env={**env, "COLUMNS": "200"})


def table(run: Result) -> list[list[str]]:
    """Its rows; the first is what stands above them."""
    assert run.exit_code == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line[0] in "┃│"]
    return [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, str]:
    """A key file, and the id of its key, which is alice's."""
    path = tmp_path / "keys.toml"
    key = made(path)
    return path, id_of(key)


@pytest.fixture
def path(tmp_path: Path, keys: tuple[Path, str]) -> Path:
    """A file in which alice has used less than the key of the environment."""
    return used(
        tmp_path / "usage.db",
        {
            (TODAY, keys[1]): (7, 1, 1_000, 9),
            (TODAY - 3, "env-1"): (0, 2, 20_000, 3),
            (TODAY - 3, keys[1]): (8, 1, 5, 5),
            (TODAY - 200, "gone"): (1, 2, 3, 4),
        },
    )


def test_who_used_how_much(path: Path, keys: tuple[Path, str]) -> None:
    """Who used most first, with the names of the key file; of 30 days, if nothing else is said."""
    alice = [keys[1], "alice", "2", "1,005", "14", "15"]
    assert table(usage(path=path, keys=keys[0])) == [
        ["key", "name", *HEAD],
        ["env-1", "", "2", "20,000", "3", "0"],
        alice,
    ]
    assert table(usage("--days=300", path=path, keys=keys[0]))[3] == [
        "gone",
        "",
        "2",
        "3",
        "4",
        "1",
    ]


def test_when_it_was_used(path: Path) -> None:
    """By all keys together, day by day."""
    day = str(date(1970, 1, 1) + timedelta(days=TODAY - 3))
    rows = table(usage("--by", "day", path=path))
    assert rows[0] == ["day", *HEAD]
    assert rows[1] == [day, "3", "20,005", "8", "8"]
    assert len(rows) == 3


def test_figures_stand_below_each_other(path: Path) -> None:
    """By their last digits."""
    ends = [re.search(r"│ +(3|14) │", line) for line in usage(path=path).stdout.splitlines()]
    found = [end.end() for end in ends if end]
    assert len(found) == 2
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("days", "rows"),
    [
        pytest.param(3, 1, id="the first of them is not among them"),
        pytest.param(5, 2, id="it is, though midnight may just be over"),
        pytest.param(100_000, 3, id="the most that may be asked for"),
    ],
)
def test_of_how_many_days(path: Path, days: int, rows: int) -> None:
    """Today's is the last of them."""
    found = usage(f"--days={days}", "--by=day", "--json", path=path)
    assert len(json.loads(found.stdout)) == rows


@pytest.mark.parametrize(
    ("days", "day"),
    [
        pytest.param(1, 20_000, id="today alone"),
        pytest.param(2, 19_999, id="and yesterday"),
        pytest.param(100_000, -79_999, id="since before there were such days"),
    ],
)
def test_the_first_of_so_many_days(days: int, day: int) -> None:
    """To the last second of today."""
    for moment in (time.min, time.max):
        assert first(days, datetime.combine(date(2024, 10, 4), moment, UTC)) == day


def test_json(path: Path, keys: tuple[Path, str]) -> None:
    """For scripts, with the same figures."""
    found = json.loads(usage("--json", path=path, keys=keys[0]).stdout)
    numbers = {"requests": 2, "prompt_tokens": 1_005, "output_tokens": 14, "charged_tokens": 15}
    assert found[1] == {"key_id": keys[1], "name": "alice", **numbers}
    assert found[0]["name"] == ""
    by_day = json.loads(usage("--json", "--by=day", path=path).stdout)
    assert [*by_day[0]] == ["day", *numbers]


def test_nothing_was_used(path: Path, tmp_path: Path) -> None:
    """Is said, and in JSON no row."""
    empty = used(tmp_path / "empty.db", {})
    assert usage(path=empty).stdout == "No key has used anything in the last 30 days (UTC).\n"
    assert usage("--days=1", path=empty).stdout == "No key has used anything today (UTC).\n"
    assert usage("--json", path=empty).stdout == "[]\n"


@pytest.mark.parametrize("wrong", [["--days=0"], ["--days=100001"], ["--days=x"], ["--by=month"]])
def test_options_that_are_none(path: Path, wrong: list[str]) -> None:
    """Are refused."""
    run = usage(*wrong, path=path)
    assert (run.exit_code, run.stdout) == (2, "")
    assert wrong[0].partition("=")[0] in run.stderr


def test_no_setting(tmp_path: Path) -> None:
    """Exit status 2, and which one it is."""
    run = usage()
    assert (run.exit_code, run.stdout) == (2, "")
    assert run.stderr.splitlines() == [
        "bulwark: what was used cannot be shown:",
        "  no file: set PROXY_USAGE_DB to the one that the server has",
    ]


def test_no_such_file(tmp_path: Path) -> None:
    """Exit status 2; it is not made."""
    path = tmp_path / "usage.db"
    run = usage(path=path)
    assert (run.exit_code, run.stdout) == (2, "")
    assert run.stderr.splitlines()[1] == (
        f"  PROXY_USAGE_DB: {path} cannot be opened: No such file or directory"
    )
    assert [*tmp_path.iterdir()] == []


def test_a_key_file_that_does_not_tell(path: Path, tmp_path: Path) -> None:
    """Is no reason to say nothing: what is missing are names."""
    run = usage(path=path, keys=tmp_path / "none.toml")
    assert [row[1] for row in table(run)] == ["name", "", ""]
    assert run.stderr.startswith("bulwark: without names: PROXY_KEYS_FILE: ")
    assert "No such file" in run.stderr


def test_an_id_that_somebody_has_written_by_hand(tmp_path: Path) -> None:
    """Moves no cursor."""
    path = used(tmp_path / "usage.db", {(TODAY, "a\x1b[2J"): (1, 1, 1, 1)})
    assert table(usage(path=path))[1][0] == r"'a\x1b[2J'"


def test_the_command_as_people_run_it(path: Path) -> None:
    """It is listed, and reads nothing of the server."""
    assert " usage " in bulwark("--help").stdout
    assert bulwark("usage", usage_db=str(path)).stdout.count("env-1") == 1
    code = "import sys, proxy.cli, proxy.cli.usage; print(*sys.modules)"
    run = subprocess.run(  # noqa: S603 - this very Python and the text above
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"fastapi", "uvicorn", "httpx", "pydantic", "rich.console"} & set(run.stdout.split())
