"""What else lives on the networks of a deployment: listeners that must not be reached."""

import json
import subprocess
from typing import Any

from tests.e2e.harness.image import IMAGE
from tests.e2e.harness.stack import Stack
from tests.harness.networks import WIRE

PORTS = (22, 80, 9999)

_WHERE = {"cloudflared": ("tunnel", 3), "sidecar": ("upstream", 20), "grafana": ("monitoring", 36)}
"""Each on one network, at this last number of an address."""


def overlay() -> dict[str, Any]:
    """A neighbour on every network of compose.yaml, and a health that is looked at each second."""
    listeners = json.dumps({"ports": PORTS})
    services: dict[str, Any] = {
        name: {
            "image": IMAGE,
            "entrypoint": ["python3", "-I", "-S", "/wire/echo.py", listeners],
            "volumes": [f"{WIRE}:/wire:ro"],
            # It ends with its input.
            "stdin_open": True,
            "healthcheck": {"test": ["CMD", "true"], "interval": "1s"},
            "networks": {network: {"ipv4_address": f"${{BULWARK_NET}}.{last}"}},
        }
        for name, (network, last) in _WHERE.items()
    }
    services["proxy"] = {"healthcheck": {"interval": "1s"}}
    services["vllm"] = {"volumes": [f"{WIRE}:/wire:ro"]}
    return {"services": services}


def listen_in(stack: Stack, service: str) -> None:
    """Has the model's container listen where no model does: what is closed is the firewall's work then."""
    process = stack.engine.popen(
        *("exec", "--interactive", stack.container(service)),
        *("python3", "-I", "-S", "/wire/echo.py", json.dumps({"ports": PORTS})),
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    stack.when_down(process)
