"""How much may be asked for: on both sides of the bound. Needs no root."""

import os
import subprocess

import pytest

from tests.firewall.egress import BASH, SCRIPT

MOST = 256

ITEMS = {"ALLOW": "10.9.{}.{}:80", "DENY": "10.9.{}.{}", "DNS": "10.9.{}.{}"}


@pytest.mark.parametrize("count", [MOST, MOST + 1])
@pytest.mark.parametrize("setting", ITEMS)
def test_a_list(setting: str, count: int) -> None:
    """As many as may be are rules; one more is exit 2, and told by number."""
    given = ",".join(ITEMS[setting].format(*divmod(number, 200)) for number in range(count))
    done = subprocess.run(  # noqa: S603 - nothing of it comes from outside
        [BASH, "-p", str(SCRIPT), "print", "--family", "4"],
        env={"PATH": os.environ["PATH"], f"EGRESS_{setting}": given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if count == MOST:
        assert (done.returncode, done.stderr) == (0, "")
        assert all(f" -d {item.partition(':')[0]}/32 " in done.stdout for item in given.split(","))
        return
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert f"EGRESS_{setting} has {count} items" in line
    assert str(MOST) in line
