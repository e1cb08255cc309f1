"""Names: the engine's resolver works behind the firewall, and can be closed."""

import pytest

from tests.e2e.harness.probes import Report, Row
from tests.e2e.harness.stack import Stack


def resolve(stack: Stack, name: str) -> str:
    """What a name is inside the proxy's container; empty where nobody says."""
    found = stack.run("proxy", "getent", "ahostsv4", name, user=10001, check=False).stdout
    return found.split(maxsplit=1)[0] if found else ""


def assert_names(stack: Stack, report: Report, place: str, names: dict[str, str]) -> None:
    """Fails unless these names are these addresses."""
    found = {name: resolve(stack, name) for name in names}
    for name, address in names.items():
        row = Row(name, "", address or "unknown")
        report.add(place, row, found[name] or "unknown", holds=found[name] == address)
    assert found == names


@pytest.mark.case("FW-07")
def test_names_behind_the_firewall(deployment: Stack, report: Report) -> None:
    """Services and public names resolve, also after a restart of the container."""
    names = {"vllm": deployment.vllm, "example.com": "203.0.113.10", "nobody.example": ""}
    assert_names(deployment, report, "Names in the proxy's container", names)
    deployment.compose("restart", "proxy")
    deployment.until_health("healthy")
    assert_names(deployment, report, "Names in the proxy's container, restarted", names)
