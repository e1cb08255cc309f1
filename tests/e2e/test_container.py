"""The proxy's container from inside: what its processes may do, and what keeps it from starting."""

import json
import re
from dataclasses import dataclass

import pytest

from tests.e2e.harness.engine import Engine
from tests.e2e.harness.image import IMAGE
from tests.e2e.harness.probes import Report, Row
from tests.e2e.harness.stack import Stack, until
from tests.harness.networks import Networks

EGRESS = "/opt/bulwark/firewall/egress.sh"
CAPABILITIES = ("NET_ADMIN", "SETUID", "SETGID", "SETPCAP")
START_SECONDS = 20.0
WRONG = 2
"""The exit status of what was asked for and is wrong."""


def _without(*programs: str) -> tuple[str, ...]:
    """Puts something that cannot be run in the place of programs of the image."""
    return tuple(f"--volume=/dev/null:/usr/sbin/{name}" for name in programs)


def test_what_the_server_may_do(deployment: Stack) -> None:
    """The server is the only process, user 10001, without a capability or a way to get one."""
    status = deployment.run("proxy", "cat", "/proc/1/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == fields["Gid"].split() == ["10001"] * 4
    assert fields["Groups"].split() in ([], ["10001"])
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, f"{name} is {fields[name]}"
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"  # a filter
    command = deployment.run("proxy", "cat", "/proc/1/cmdline").stdout
    assert "bulwark\0serve" in command


def test_where_the_server_may_write(deployment: Stack) -> None:
    """Even root can write nothing but a small /tmp from which nothing can be run."""
    for path in ("/x", "/opt/bulwark/x", "/usr/local/bin/x", "/etc/x", "/run/x", "/srv/x"):
        tried = deployment.run("proxy", "touch", path, check=False)
        assert "Read-only file system" in tried.stderr, path
    script = "cp /bin/true /tmp/true && /tmp/true"
    ran = deployment.run("proxy", "sh", "-c", script, user=10001, check=False)
    assert "Permission denied" in ran.stderr


def test_what_the_server_knows(deployment: Stack) -> None:
    """What fences it in is not in the server's environment, and it sees no socket of the engine."""
    environment = deployment.run("proxy", "cat", "/proc/1/environ", user=10001).stdout
    names = {entry.partition("=")[0] for entry in environment.split("\0")}
    assert "PROXY_UPSTREAM_URL" in names
    assert not [name for name in names if name.startswith("EGRESS_")]
    mounts = deployment.inspect("proxy")["Mounts"]
    assert not [mount for mount in mounts if "docker.sock" in mount["Source"]]


def test_how_the_container_is_confined(deployment: Stack) -> None:
    """What compose.yaml promises is what the engine was told."""
    host = deployment.inspect("proxy")["HostConfig"]
    added = {name.removeprefix("CAP_") for name in host["CapAdd"]}
    assert added == set(CAPABILITIES)
    assert host["CapDrop"] == ["ALL"]
    assert host["ReadonlyRootfs"] is True
    assert host["Privileged"] is False
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert 0 < host["Memory"] <= 2**30
    assert 0 < host["PidsLimit"] <= 1024
    published = host["PortBindings"]
    assert {bind["HostIp"] for binds in published.values() for bind in binds} == {"127.0.0.1"}
    model = deployment.inspect("vllm")["HostConfig"]
    assert model["CapDrop"] == ["ALL"]
    assert not model["CapAdd"]
    assert not model["PortBindings"]


def test_the_firewall_proves_itself(deployment: Stack, report: Report) -> None:
    """An operator's ``egress.sh verify`` in the running container is as expected throughout."""
    verified = deployment.run("proxy", "bash", EGRESS, "verify", check=False)
    print(verified.stdout)  # noqa: T201 - shown where the test fails
    assert verified.returncode == 0, verified.stdout + verified.stderr
    found = json.loads(deployment.run("proxy", "bash", EGRESS, "verify", "--json").stdout)
    assert found["ok"] is True
    for check in found["checks"]:
        row = Row(f"{check['kind']} {check['name']}", "", str(check["expected"]))
        report.add("egress.sh verify", row, str(check["result"]), holds=check["ok"])
        assert check["ok"], check
    kinds = {check["kind"] for check in found["checks"]}
    assert len(kinds) >= 3, kinds


def test_the_firewalls_files_are_roots_alone(deployment: Stack) -> None:
    """Its script is also its lock: the server's user could hold it and make health checks fail."""
    theirs = deployment.run("proxy", "bash", "-c", f"exec <{EGRESS}", user=10001, check=False)
    assert theirs.returncode != 0
    assert "Permission denied" in theirs.stderr
    assert deployment.run("proxy", "bash", "-c", f"exec <{EGRESS}", user=0).returncode == 0


@pytest.mark.case("DK-02")
def test_health_without_curl(deployment: Stack) -> None:
    """The container becomes healthy, and by nothing that its image does not have."""
    assert deployment.health() == "healthy"
    for tool in ("curl", "wget", "pip", "pip3", "gcc", "cc"):
        found = deployment.run("proxy", "sh", "-c", f"command -v {tool}", check=False)
        assert not found.stdout, f"the image has {tool}"


def test_an_image_without_secrets(engine: Engine) -> None:
    """What the build was given to reach its registries is in no layer, nor in the image's words."""
    history = engine.docker("history", "--no-trunc", IMAGE).stdout
    listing = engine.docker(
        *("run", "--rm", "--network=none", "--entrypoint=find", IMAGE),
        *("/", "-xdev", "(", "-path", "*/run/secrets/*", "-o", "-name", "pip.conf", "-o"),
        *("-perm", "/6000", "-type", "f", ")"),
    ).stdout
    assert not listing
    assert "index-url" not in history


@dataclass(frozen=True, slots=True)
class Broken:
    """A container that cannot be fenced in.

    Attributes:
        what: What is wrong with it.
        options: Of ``docker run``, after the usual ones.
        named: What its one line has to name.
    """

    what: str
    options: tuple[str, ...]
    named: str


BROKEN = (
    Broken("without a capability", ("--cap-drop=ALL",), "NET_ADMIN"),
    Broken("without NET_ADMIN", ("--cap-drop=NET_ADMIN",), "NET_ADMIN"),
    Broken("without SETPCAP", ("--cap-drop=SETPCAP",), "SETPCAP"),
    Broken("an exception without a port", ("--env=EGRESS_ALLOW=vllm",), "EGRESS_ALLOW"),
    Broken("a host nobody knows", ("--env=EGRESS_ALLOW=nobody.invalid:80",), "EGRESS_ALLOW"),
    Broken("an unknown mode", ("--env=EGRESS_MODE=intranet",), "EGRESS_MODE"),
    Broken("a misspelled setting", ("--env=EGRESS_ALOW=10.0.0.5:80",), "EGRESS_ALOW"),
    Broken("neither on nor off", ("--env=EGRESS_FIREWALL=no",), "EGRESS_FIREWALL"),
    Broken("not root", ("--user=10001",), "root"),
    Broken("without iptables", _without("xtables-nft-multi", "xtables-legacy-multi"), "iptables"),
    Broken("without iptables-restore", _without("iptables-nft-restore"), "iptables"),
)


@pytest.mark.case("FW-15")
@pytest.mark.parametrize("broken", [pytest.param(each, id=each.what) for each in BROKEN])
def test_a_broken_firewall(
    engine: Engine, networks: Networks, report: Report, broken: Broken
) -> None:
    """What cannot be fenced in does not serve: it ends with a reason, and nothing listens."""
    name, where = "bulwark-broken", "tcp:127.0.0.1:8099"
    # Not --cap-drop=ALL: what is dropped by name is kept then, if it was added by name.
    capabilities = {f"--cap-add={each}" for each in CAPABILITIES}
    capabilities -= {option.replace("drop", "add") for option in broken.options}
    if "--cap-drop=ALL" in broken.options:
        capabilities.clear()
    try:
        ended = engine.docker(
            *("run", f"--name={name}", "--publish=127.0.0.1:8099:8080", "--read-only"),
            *("--tmpfs=/tmp", "--security-opt=no-new-privileges", "--cap-drop=ALL"),
            *(*sorted(capabilities), *broken.options),
            *("--env=PROXY_API_KEYS=key-of-a-test-which-is-long-enough-0000", IMAGE),
            check=False,
            timeout=START_SECONDS,
        )
        output = ended.stdout + ended.stderr
        assert ended.returncode == WRONG, output
        assert broken.named in output
        assert "listening" not in output
        assert not networks.router.probe(where)[where].open
    finally:
        engine.docker("rm", "--force", name)
    row = Row(broken.what, "", f"ends with {WRONG}")
    report.add("A broken firewall", row, f"ended with {ended.returncode}", holds=True)


@pytest.mark.case("FW-15")
def test_a_firewall_that_is_spelled_out_to_be_off(engine: Engine, report: Report) -> None:
    """Then it serves, with a warning, and the server still has no capability."""
    name = "bulwark-off"
    try:
        engine.docker(
            *("run", "--detach", f"--name={name}", "--cap-drop=ALL", "--cap-add=SETUID"),
            *("--cap-add=SETGID", "--cap-add=SETPCAP", "--env=EGRESS_FIREWALL=off"),
            *("--env=PROXY_API_KEYS=key-of-a-test-which-is-long-enough-0000", IMAGE),
        )

        def logs() -> str:
            logged = engine.docker("logs", name)
            return logged.stdout + logged.stderr

        until(lambda: "listening" in logs(), "it does not serve", more=logs)
        assert "WARNING" in logs()
        status = engine.docker("exec", name, "cat", "/proc/1/status").stdout
        assert re.findall(r"Cap(?:Inh|Prm|Eff|Bnd|Amb):\t(\S+)", status) == ["0" * 16] * 5
    finally:
        engine.docker("rm", "--force", name)
    report.add(
        "A broken firewall", Row("off, spelled out", "", "a warning"), "a warning", holds=True
    )
