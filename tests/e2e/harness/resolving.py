"""What names are inside the proxy's container."""

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
