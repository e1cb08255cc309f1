"""What a run of tests says at its end, in one process and in several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
from tests.conftest import *
from tests.conftest import pytest_terminal_summary
from tests.harness.figures import figures
"""

TEST = """
from tests.harness.leftout import leave_out

def test_figures(figures):
    figures.add("Hang-ups", "of {name}", runs=20)

def test_that_cannot_run():
    leave_out("the {name}; there is none here")

def test_that_cannot_run_either():
    leave_out("the moon")
"""

PROCESSES = pytest.mark.parametrize("processes", [0, 2], ids=["one process", "two"])


def run(folder: Path, processes: int, **environment: str) -> str:
    """What pytest prints of two files."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    for name in ("sun", "stars"):
        (folder / f"test_{name}.py").write_text(TEST.format(name=name))
    environment = {"PATH": os.environ["PATH"], **environment}
    many = ["-p", "no:cacheprovider", "-n", str(processes), "--dist", "loadfile"]
    done = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-m", "pytest", *many, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        env=environment,
        cwd=folder,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


@PROCESSES
def test_the_tables_of_all_processes_are_printed(tmp_path: Path, processes: int) -> None:
    """As one, once; and are one in the file."""
    kept = tmp_path / "figures.json"
    lines = run(tmp_path, processes, BULWARK_FIGURES=str(kept)).splitlines()
    assert lines.count("Hang-ups  runs") == 1
    assert {"of sun      20", "of stars    20"} <= set(lines)
    assert kept.read_text().count('"runs": 20') == 2


@PROCESSES
def test_what_cannot_run_is_told(tmp_path: Path, processes: int) -> None:
    """Each reason once, with the number of its tests."""
    told = run(tmp_path, processes)
    assert "2 passed, 4 skipped" in told
    assert told.count("NOT TESTED: the moon (2 tests)") == 1
    assert told.count("NOT TESTED: the sun; there is none here (1 test)") == 1


def test_what_cannot_run_has_failed_where_ci_is_set(tmp_path: Path) -> None:
    """With the same words."""
    failed = run(tmp_path, 0, CI="true")
    assert "4 failed, 2 passed" in failed
    assert "Failed: NOT TESTED: the moon" in failed
