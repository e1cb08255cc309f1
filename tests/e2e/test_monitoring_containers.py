"""compose.monitoring.yaml in the real engine: who reaches what, and that Prometheus gets its metrics.

The images are stand-ins, for neither is in a package: Debian's Prometheus in the place of the pinned one
(2.42 for 3.13, without its tool's check of readiness), and in Grafana's somebody who only listens.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.harness.engine import Engine
from tests.e2e.harness.image import BASE, IMAGE
from tests.e2e.harness.probes import (
    CLOSED,
    OPEN,
    REJECTED,
    Report,
    Row,
    from_container,
    from_namespace,
    from_network_of,
)
from tests.e2e.harness.stack import DEMO, Stack, until
from tests.harness import installed, monitoring
from tests.harness.networks import WIRE, Networks

STAND_IN = "bulwark-e2e-prometheus"

_DOCKERFILE = f"""\
FROM {BASE}
COPY prometheus promtool /bin/
RUN install --directory --owner=65534 --group=65534 /prometheus
USER 65534:65534
ENTRYPOINT ["/bin/prometheus"]
"""

_ASK = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"


def overlay() -> dict[str, Any]:
    """What the stand-ins need otherwise than the originals."""
    return {
        "services": {
            "prometheus": {
                "image": STAND_IN,
                "healthcheck": {"test": ["CMD", "promtool", "--version"], "interval": "1s"},
            },
            "grafana": {
                "image": IMAGE,
                "user": "472:472",
                # It ends with its input.
                "stdin_open": True,
                "entrypoint": [
                    "python3",
                    "-I",
                    "-S",
                    "/wire/echo.py",
                    json.dumps({"ports": [3000]}),
                ],
                "volumes": [f"{WIRE}:/wire:ro"],
                "healthcheck": {"test": ["CMD", "true"], "interval": "1s"},
            },
        }
    }


@pytest.fixture(scope="module")
def watched(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The demo with its monitoring."""
    context = tmp_path_factory.mktemp("prometheus")
    for name in ("prometheus", "promtool"):
        program = installed.folder("prometheus") / "bin" / name
        if not program.exists():
            pytest.fail("Prometheus is missing: tests/e2e/install-prometheus fetches it")
        shutil.copy(program, context)
    (context / "Dockerfile").write_text(_DOCKERFILE, "utf-8")
    engine.docker("build", "--network=none", "--tag", STAND_IN, str(context))
    env = {"BULWARK_GRAFANA_PASSWORD": "a password of the test"}
    with Stack(engine, (*DEMO, "compose.monitoring.yaml"), overlay(), env) as made:
        for name in ("prometheus", "grafana"):
            shutil.copytree(monitoring.DOCKER / name, made.folder / name)
        yield made.up()


def test_prometheus_has_the_metrics_of_the_proxy(watched: Stack, networks: Networks) -> None:
    """By its page on the loopback: the admin listener answers to the name that it is asked under."""

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:9091/api/v1/query?query={query}"
        done = networks.router.run([sys.executable, "-I", "-S", "-c", _ASK, url])
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout)["data"]["result"])

    until(lambda: bool(ask("bulwark_build_info")), "Prometheus got no metrics", more=watched.logs)
    (up,) = ask("up")
    assert (up["metric"]["instance"], up["value"][1]) == ("proxy:9090", "1")


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_what_they_reach(watched: Stack, report: Report, service: str) -> None:
    """The admin port and each other; neither the engine, nor what is for clients, nor anybody outside."""
    report.check(
        f"From the network of {service}",
        [
            Row("the admin port", f"tcp:{watched.admin}:9090", OPEN),
            Row("Prometheus", f"tcp:{watched.prometheus}:9090", OPEN),
            Row("the public port, where the admin port is", f"tcp:{watched.admin}:8080", CLOSED),
            Row("the public port", f"tcp:{watched.proxy}:8080", CLOSED),
            Row("vLLM", f"tcp:{watched.vllm}:8000", CLOSED),
            # What they send does get out; there is no way back for an answer.
            Row("the LAN", "tcp:192.168.1.10:80", CLOSED),
            Row("the metadata service", "tcp:169.254.169.254:80", CLOSED),
            Row("the internet", "tcp:203.0.113.10:443", CLOSED),
        ],
        from_network_of(watched, service),
    )


def test_the_proxy_does_not_reach_who_watches_it(watched: Stack, report: Report) -> None:
    """It is asked, and may not ask."""
    report.check(
        "From the proxy's container, monitored",
        [
            Row("Prometheus", f"tcp:{watched.prometheus}:9090", REJECTED),
            Row("Grafana", f"tcp:{watched.net}.36:3000", REJECTED),
        ],
        from_container(watched, "proxy"),
    )


def test_who_reaches_the_pages(watched: Stack, networks: Networks, report: Report) -> None:
    """This machine by its loopback; nobody from outside, by whichever address."""
    ports = {"Prometheus": 9091, "Grafana": 3000}
    report.check(
        "From the host",
        [Row(name, f"tcp:127.0.0.1:{port}", OPEN) for name, port in ports.items()],
        from_namespace(networks.router),
    )
    own = {"Prometheus": f"{watched.prometheus}:9090", "Grafana": f"{watched.net}.36:3000"}
    report.check(
        "From the LAN, monitored",
        [
            *(
                Row(f"{name} on the host", f"tcp:192.168.1.1:{port}", CLOSED)
                for name, port in ports.items()
            ),
            *(Row(f"{name} itself", f"tcp:{target}", CLOSED) for name, target in own.items()),
        ],
        from_namespace(networks.lan),
    )


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_they_hold_nothing(watched: Stack, service: str) -> None:
    """No user of rights, no capability, no writable root, whatever the image says."""
    status = watched.run(service, "cat", "/proc/1/status", user=65534).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    assert {fields[name] for name in fields if name.startswith("Cap")} == {"0" * 16}
    assert "0" not in fields["Uid"].split()
    written = watched.run(service, "touch", "/here", user=0, check=False)
    assert "Read-only file system" in written.stderr
