"""What else lives on the networks of a deployment: listeners that must not be reached."""

import json
from typing import Any

from tests.e2e.harness.image import IMAGE
from tests.harness.networks import WIRE

PORTS = (22, 80, 9999)

_WHERE: dict[str, dict[str, Any]] = {
    "cloudflared": {"networks": {"tunnel": {"ipv4_address": "${BULWARK_NET}.3"}}},
    "sidecar": {"networks": {"upstream": {"ipv4_address": "${BULWARK_NET}.20"}}},
    "grafana": {"networks": {"monitoring": {"ipv4_address": "${BULWARK_NET}.36"}}},
    # In the model's own network: a port of vLLM's that is no exception.
    "inmate": {"network_mode": "service:vllm"},
}


def overlay() -> dict[str, Any]:
    """A neighbour on every network of compose.yaml, and a health that is looked at each second.

    What compose.yaml has takes up to a minute; `test_life` holds it to that.
    """
    listeners = json.dumps({"ports": PORTS})
    services: dict[str, Any] = {
        name: {
            "image": IMAGE,
            "entrypoint": ["python3", "-I", "-S", "/wire/echo.py", listeners],
            "volumes": [f"{WIRE}:/wire:ro"],
            # It ends with its input.
            "stdin_open": True,
            "stop_signal": "SIGKILL",
            "healthcheck": {"test": ["CMD", "true"], "interval": "1s"},
            **where,
        }
        for name, where in _WHERE.items()
    }
    services["proxy"] = {"healthcheck": {"interval": "1s", "retries": 1}}
    return {"services": services}
