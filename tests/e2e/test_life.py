"""Stops, restarts and lost rules: what the deployment does without anybody watching."""

import json
import os
from collections.abc import Iterator

import pytest

from tests.e2e.harness.chat import Chat
from tests.e2e.harness.engine import Engine
from tests.e2e.harness.image import IMAGE
from tests.e2e.harness.probes import OPEN, REJECTED, Report, Row, from_container
from tests.e2e.harness.stack import Stack, proxy_with, until
from tests.harness import compose
from tests.harness.networks import Networks

EGRESS = "/opt/bulwark/firewall/egress.sh"
WORDS = 150
GRACE_SECONDS = 30.0
SERVER = 10001
"""The server's user and group."""


@pytest.fixture
def running(deployment: Stack) -> Iterator[Stack]:
    """The deployment, which is there again after a test that has stopped something of it."""
    yield deployment
    deployment.up()


def assert_fenced_in(stack: Stack, report: Report, when: str) -> None:
    """Fails unless the firewall is there and lets out what it should, and nothing else."""
    stack.run("proxy", "bash", EGRESS, "verify", "--rules-only")
    rows = [
        Row("a machine of the LAN", "tcp:192.168.1.10:22", REJECTED),
        Row("the host on the LAN", "tcp:192.168.1.1:22", REJECTED),
        Row("the metadata service", "tcp:169.254.169.254:80", REJECTED),
        Row("the gateway of the tunnel", f"tcp:{stack.net}.1:22", REJECTED),
        Row("the upstream", f"tcp:{stack.vllm}:8000", OPEN),
        Row("the internet", "tcp:203.0.113.10:443", OPEN),
    ]
    report.check(f"From the proxy's container, {when}", rows, from_container(stack, "proxy"))


def test_a_stop_lets_a_stream_end(running: Stack, networks: Networks, report: Report) -> None:
    """``docker stop`` in the middle of a stream waits for its end, and the server leaves with status 0."""
    container = running.container("proxy")
    chat = Chat(networks.router, running.port, f"count to {WORDS}")
    chat.until_it_streams()
    stopping = running.engine.popen("stop", container)
    said = chat.end()
    assert stopping.wait(GRACE_SECONDS) == 0, stopping.communicate()
    stopping.communicate()
    said.assert_counted_live(WORDS)
    state = running.inspect("proxy")["State"]
    assert (state["Status"], state["ExitCode"], state["OOMKilled"]) == ("exited", 0, False)
    report.add(
        "docker stop in mid-stream",
        Row(f"a chat of {WORDS} words", "", "whole, status 0"),
        f"whole, status {state['ExitCode']}",
        holds=True,
    )


def test_a_day_outlives_its_container(engine: Engine, networks: Networks, report: Report) -> None:
    """With what compose.yaml offers for it: the next container knows what the last one's key has used."""
    with Stack(engine) as stack:
        text = (stack.folder / "compose.yaml").read_text("utf-8")
        text, path = compose.with_usage_database(text)
        stack.file("compose.yaml", text)
        usage = stack.folder / "usage"
        usage.mkdir(mode=0o700)
        os.chown(usage, SERVER, SERVER)
        stack.overlay(proxy_with(PROXY_USAGE_DB=path, PROXY_KEY_TOKENS_PER_DAY="100"))
        stack.up()
        counted = [Chat(networks.router, stack.port, "count to 30").end() for _ in range(3)]
        first = stack.inspect("proxy")["Id"]
        stack.compose("rm", "--stop", "--force", "proxy")
        stack.up()
        assert stack.inspect("proxy")["Id"] != first
        counted.append(Chat(networks.router, stack.port, "count to 30").end())
        assert [said.status for said in counted] == [200, 200, 429, 429], stack.logs("proxy")
        assert (usage / "usage.db").stat().st_mode & 0o777 == 0o600
        report.add(
            "PROXY_USAGE_DB, another container",
            Row("a key that has used its tokens of the day", "", "429"),
            str(counted[-1].status),
            holds=True,
        )


@pytest.mark.case("FW-04")
def test_a_restart_puts_the_firewall_back(running: Stack, report: Report) -> None:
    """A container that crashed, and one that was restarted, are fenced in before they serve."""
    number = running.inspect("proxy")["State"]["Pid"]
    running.engine.signal("KILL", str(number))
    until(lambda: running.inspect("proxy")["RestartCount"] > 0, "it was not started again")
    running.until_health("healthy")
    assert_fenced_in(running, report, "after a crash")


@pytest.mark.case("FW-04")
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param("iptables --flush BULWARK-OUT", id="flushed"),
        pytest.param("iptables --flush OUTPUT", id="the jump gone"),
        pytest.param("iptables --insert OUTPUT --jump ACCEPT", id="another rule before it"),
        pytest.param("ip6tables --flush BULWARK-OUT", id="flushed for IPv6"),
    ],
)
def test_lost_rules_are_noticed(
    running: Stack, report: Report, loss: str, request: pytest.FixtureRequest
) -> None:
    """Rules that are changed behind its back make the container unhealthy."""
    assert running.health() == "healthy"
    running.run("proxy", "sh", "-c", loss)
    seconds = running.until_health("unhealthy", within=20)
    log = json.dumps(running.inspect("proxy")["State"]["Health"]["Log"][-1])
    assert "firewall" in log, log
    row = Row(request.node.callspec.id, loss, "unhealthy")
    report.add("Lost rules", row, "unhealthy", holds=True, ms=seconds * 1000)
    running.run("proxy", "sh", "-c", f"iptables --delete OUTPUT --jump ACCEPT; bash {EGRESS} apply")
    running.until_health("healthy")


@pytest.mark.case("FW-04")
def test_how_soon_lost_rules_are_noticed(engine: Engine) -> None:
    """With the image's own healthcheck that is within a minute."""
    check = json.loads(engine.docker("inspect", IMAGE).stdout)[0]["Config"]["Healthcheck"]
    assert (check["Interval"] + check["Timeout"]) * check["Retries"] <= 60e9


@pytest.mark.case("FW-04")
def test_a_restart_of_the_engine(running: Stack, engine: Engine, report: Report) -> None:
    """When the engine comes back, so does the deployment, fenced in as before."""
    before = running.inspect("proxy")["State"]["StartedAt"]
    engine.stop()
    engine.start()
    until(lambda: running.inspect("proxy")["State"]["StartedAt"] != before, "it did not come back")
    running.until_health("healthy")
    assert_fenced_in(running, report, "after a restart of the engine")
