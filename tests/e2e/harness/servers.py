"""What listens on the LAN, the internet and the machine with the containers."""

import json
import sys
from pathlib import Path

from tests.harness.networks import Namespace, Networks

PROGRAMS = Path(__file__).parents[1] / "programs"

RESOLVER = "8.8.8.8"
"""What the machine with the engine asks for names: a public one, as on a rented server."""

HOME_RESOLVER = "192.168.1.10"
"""What a machine at home would ask."""

NAMES = {
    "example.com": ["203.0.113.10"],
    "rebinding.example": ["203.0.113.10", "10.0.0.5"],
    "metadata.google.internal": ["169.254.169.254"],
}


# Where other clouds have their metadata services: AWS for containers, Alibaba, Azure.
_METADATA = ("169.254.170.2/32", "100.100.100.200/32", "168.63.129.16/32")


def start(networks: Networks) -> None:
    """Has somebody listen wherever a test will knock."""
    # As on most machines, where the module for it is not loaded: what stays on a bridge is not seen by the
    # engine's rules, which would hide whether ours hold.
    for name in ("iptables", "ip6tables"):
        key = f"net/bridge/bridge-nf-call-{name}"
        if Path("/proc/sys", key).exists():
            networks.sysctl(networks.router, {key: "0"})
    networks.address(networks.lan, "lan", _METADATA)
    networks.router.serve(22, 9999)
    networks.lan.serve(22, 80, 8000)
    networks.internet.serve(80, 443)
    name_server(networks.internet, RESOLVER)
    name_server(networks.lan, HOME_RESOLVER)


def name_server(where: Namespace, host: str) -> None:
    """Has NAMES answered there."""
    asked = json.dumps({"host": host, "names": NAMES})
    server = where.popen([sys.executable, "-I", "-S", str(PROGRAMS / "dns.py"), asked])
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
