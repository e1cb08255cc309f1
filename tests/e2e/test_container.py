"""The proxy's container from inside: what its processes may do, and what keeps it from starting."""

import json

import pytest

from tests.e2e.harness.engine import Engine
from tests.e2e.harness.image import IMAGE
from tests.e2e.harness.probes import Report, Row
from tests.e2e.harness.stack import Stack
from tests.harness.networks import Networks

EGRESS = "/opt/bulwark/firewall/egress.sh"
CAPABILITIES = ("NET_ADMIN", "SETUID", "SETGID", "SETPCAP")
START_SECONDS = 20.0


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


@pytest.mark.case("FW-05")
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


BROKEN = [
    pytest.param(["--cap-drop=ALL"], 2, "NET_ADMIN", id="without NET_ADMIN"),
    pytest.param(
        ["--cap-drop=ALL", "--cap-add=NET_ADMIN"], 2, "SETUID", id="without what gives up root"
    ),
    pytest.param(["--env=EGRESS_ALLOW=vllm"], 2, "EGRESS_ALLOW", id="an exception without a port"),
    pytest.param(
        ["--env=EGRESS_ALLOW=nobody.invalid:80"], 2, "EGRESS_ALLOW", id="a host nobody knows"
    ),
    pytest.param(["--env=EGRESS_MODE=intranet"], 2, "EGRESS_MODE", id="an unknown mode"),
    pytest.param(["--env=EGRESS_ALOW=10.0.0.5:80"], 2, "EGRESS_ALOW", id="a misspelled setting"),
    pytest.param(["--env=EGRESS_FIREWALL=no"], 2, "EGRESS_FIREWALL", id="neither on nor off"),
    pytest.param(["--user=10001"], 2, "root", id="not root"),
    pytest.param(
        [
            "--volume=/dev/null:/usr/sbin/xtables-nft-multi",
            "--volume=/dev/null:/usr/sbin/xtables-legacy-multi",
        ],
        2,
        "iptables",
        id="without iptables",
    ),
]


@pytest.mark.case("FW-15")
@pytest.mark.parametrize(("options", "status", "named"), BROKEN)
def test_a_broken_firewall(
    engine: Engine,
    networks: Networks,
    report: Report,
    options: list[str],
    status: int,
    named: str,
    request: pytest.FixtureRequest,
) -> None:
    """What cannot be fenced in does not serve: it ends with one clear reason, and nothing listens."""
    usual = () if options[0] == "--cap-drop=ALL" else ("--cap-drop=ALL", *_capabilities())
    name = "bulwark-broken"
    try:
        ended = engine.docker(
            *("run", f"--name={name}", "--publish=127.0.0.1:8099:8080", "--read-only"),
            *("--tmpfs=/tmp", "--security-opt=no-new-privileges", *usual, *options),
            *("--env=PROXY_API_KEYS=key-of-a-test-which-is-long-enough-0000", IMAGE),
            check=False,
            timeout=START_SECONDS,
        )
        output = ended.stdout + ended.stderr
        assert ended.returncode == status, output
        assert named in output
        assert "listening" not in output
        published = networks.router.probe("tcp:127.0.0.1:8099")["tcp:127.0.0.1:8099"]
        assert not published.open
    finally:
        engine.docker("rm", "--force", name)
    row = Row(request.node.callspec.id, "", f"ends with {status}")
    report.add("A broken firewall", row, f"ended with {ended.returncode}", holds=True)


def _capabilities() -> list[str]:
    return [f"--cap-add={name}" for name in CAPABILITIES]
