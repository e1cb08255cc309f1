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
    "nas.example": ["192.168.1.10"],
}


def start(networks: Networks) -> None:
    """Has somebody listen wherever a test will knock."""
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
