"""The unit for systemd: what it says of the server is so, and systemd understands it."""

import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from proxy.cli.failures import EXIT_USAGE
from proxy.config.describe import descriptions

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "docker" / "bulwark.service"
DEFAULTS = {row.name: row.default for row in descriptions()}


def service() -> dict[str, str]:
    """Its section on the process."""
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # the documented way
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


def test_what_it_knows_of_the_server() -> None:
    """How long it may take to end, what it needs open, and which end is no accident."""
    unit = service()
    assert float(unit["TimeoutStopSec"]) > float(DEFAULTS["PROXY_DRAIN_SECONDS"])
    assert int(unit["LimitNOFILE"]) > 2 * int(DEFAULTS["PROXY_MAX_CONNECTIONS"])
    assert int(unit["RestartPreventExitStatus"]) == EXIT_USAGE
    assert unit["ExecStart"].split()[1:] == ["serve"]
    assert "-HUP" in unit["ExecReload"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_understands_it(tmp_path: Path) -> None:
    """Each line, with a program and a user that there are."""
    text = UNIT.read_text().replace("/opt/bulwark/.venv/bin/bulwark", "/bin/true")
    unit = tmp_path / "bulwark.service"
    unit.write_text(text.replace("User=bulwark", "User=daemon"))
    done = subprocess.run(  # noqa: S603 - ours
        ["systemd-analyze", "verify", str(unit)],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    # What it says of other units is not about this one.
    told = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, told) == (0, [])
