"""What becomes of a test that hangs."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = "from tests.harness.hanging import pytest_runtest_call\n"

TESTS = """
import asyncio
import pytest

async def waits_for_nobody():
    await asyncio.Event().wait()

@pytest.mark.within(0.1)
async def test_that_hangs():
    await waits_for_nobody()

async def test_in_the_loop_of_the_one_that_hung():
    await asyncio.sleep(0)

@pytest.mark.within(30)
@pytest.mark.parametrize("number", [1, 2])
async def test_that_is_in_time(number, tmp_path):
    await asyncio.sleep(0)

@pytest.mark.within(30)
async def test_whose_own_time_is_up():
    raise TimeoutError("its own")
"""


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    """With the line that it waited in, and a time-out of a test's own is not taken for one."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nasyncio_mode = auto\nasyncio_default_test_loop_scope = module\npythonpath = {ROOT}\n"
        "markers = within(seconds)\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {"PATH": os.environ["PATH"]}  # where CI is set, what failed is told twice
    done = subprocess.run(  # noqa: S603 - ours
        command, check=False, capture_output=True, text=True, timeout=50, env=environment
    )
    assert "2 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "await asyncio.Event().wait()" in done.stdout
    assert done.stdout.count("The test hung: it had not ended after 0.1 s.") == 1
