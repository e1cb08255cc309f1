"""Names: the engine's resolver works behind the firewall, and can be closed."""

import pytest

from tests.e2e.harness.probes import Report
from tests.e2e.harness.resolving import assert_names
from tests.e2e.harness.stack import Stack


@pytest.mark.case("FW-07")
def test_names_behind_the_firewall(deployment: Stack, report: Report) -> None:
    """Services and public names resolve, also after a restart of the container."""
    names = {"vllm": deployment.vllm, "example.com": "203.0.113.10", "nobody.example": ""}
    assert_names(deployment, report, "Names in the proxy's container", names)
    deployment.compose("restart", "proxy")
    deployment.until_health("healthy")
    assert_names(deployment, report, "Names in the proxy's container, restarted", names)
