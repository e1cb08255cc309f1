"""What an environment may have bash do beside the script's settings: nothing of it is done."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.firewall.egress import BASH, SCRIPT, Firewall
from tests.harness.networks import Networks

WAYS = {"as a program": [str(SCRIPT)], "by bash": [BASH, str(SCRIPT)]}


def run(way: list[str], *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs it with this environment only."""
    return subprocess.run(  # noqa: S603 - nothing of it comes from outside
        [*way, *words],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture(scope="module")
def plain() -> str:
    """What is printed with nothing in the environment."""
    return run(WAYS["by bash"], "print").stdout


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_function_is_not_called(way: list[str]) -> None:
    """A function with a tool's name does not take the tool's place."""
    env = {"BASH_FUNC_getent%%": "() { echo 10.0.0.5; }", "EGRESS_ALLOW": "vllm.invalid:80"}
    done = run(way, "print", **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "vllm.invalid" in done.stderr


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_file_is_not_read(way: list[str], tmp_path: Path, plain: str) -> None:
    """What is to be read before a script is not read, by no bash that the script starts either."""
    (tmp_path / "before").write_text(f"shopt -s nocasematch; echo read >>{tmp_path}/read\n")
    done = run(way, "print", BASH_ENV=f"{tmp_path}/before", ENV=f"{tmp_path}/before")
    assert (done.returncode, done.stdout) == (0, plain)
    # By bash, the one that is called reads it before the script can say no.
    read = tmp_path / "read"
    assert (read.read_text() if read.exists() else "") == ("" if way[0] != BASH else "read\n")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize(
    "options", ["noglob", "noglob:noclobber:nounset:posix", "physical:verbose"]
)
def test_options_are_not_taken(way: list[str], options: str, plain: str) -> None:
    """Neither those of the shell's..."""
    done = run(way, "print", SHELLOPTS=options)
    assert (done.returncode, done.stdout) == (0, plain)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_bash_options_are_not_taken(way: list[str]) -> None:
    """...nor bash's: a value is not taken in another spelling."""
    done = run(way, "print", BASHOPTS="nocasematch:nullglob", EGRESS_MODE="UPSTREAM-ONLY")
    assert (done.returncode, done.stdout) == (2, "")
    assert "EGRESS_MODE" in done.stderr


@pytest.mark.parametrize("options", ["noexec", "onecmd"])
@pytest.mark.parametrize("way", [[str(SCRIPT)], [BASH, "-p", str(SCRIPT)]], ids=["program", "-p"])
def test_nothing_is_not_all_that_is_done(way: list[str], options: str, plain: str) -> None:
    """With options by which bash would do nothing, and be content, the work is done."""
    done = run(way, "print", SHELLOPTS=options)
    assert (done.returncode, done.stdout) == (0, plain)


@pytest.mark.root
@pytest.mark.parametrize("env", [{"SHELLOPTS": "noglob"}, {"GLOBIGNORE": "*"}], ids=str)
def test_a_hosts_namespace_is_found(networks: Networks, backend: str, env: dict[str, str]) -> None:
    """No option hides the bridge by which a host's own network is known."""
    firewall = Firewall(networks.router, backend, env)
    done = firewall.call("apply")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "bridge" in done.stderr
    assert "BULWARK" not in "".join(Firewall(networks.router, backend).both())
