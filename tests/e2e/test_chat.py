"""Chats through the deployment: from this machine, and from the internet through a tunnel."""

import pytest

from tests.e2e.harness.chat import Chat
from tests.e2e.harness.probes import REJECTED, Report, Row, from_container
from tests.e2e.harness.stack import Stack
from tests.e2e.harness.tunnel import REMOTE_PORT, Tunnel
from tests.harness.networks import Networks

WORDS = 60


@pytest.mark.case("FW-03")
def test_a_chat_from_this_machine(deployment: Stack, networks: Networks, report: Report) -> None:
    """Who connects from a private address gets the answer live, and cannot be connected to from inside."""
    said = Chat(networks.router, deployment.port, f"count to {WORDS}").end()
    said.assert_counted_live(WORDS)
    rows = [Row("who has just been answered", f"tcp:{deployment.net}.1:22", REJECTED)]
    report.check("From the proxy's container, back", rows, from_container(deployment, "proxy"))


def test_a_chat_through_a_tunnel(deployment: Stack, networks: Networks, report: Report) -> None:
    """A client on the internet streams a chat through a real ``ssh -R``."""
    with Tunnel(networks, local_port=deployment.port):
        said = Chat(networks.internet, REMOTE_PORT, f"count to {WORDS}").end()
    said.assert_counted_live(WORDS)
    spread = f"{said.ms[0]:.0f} … {said.ms[-1]:.0f} ms in {len(said.ms)} pieces"
    report.add("Through ssh -R", Row("a chat of 60 words", "", "live"), spread, holds=True)
