"""The project's compose files, as they are, with an overlay of the test's."""

import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.e2e.harness.engine import Engine, EngineError
from tests.e2e.harness.image import IMAGE, ROOT

COMPOSE = ROOT / "docker"

DEMO = ("compose.yaml", "compose.demo.yaml")

UP_SECONDS = 90.0

_NUMBERS = itertools.count(71)

Overlay = Mapping[str, Any]


def proxy_with(**environment: str) -> dict[str, Any]:
    """An overlay that sets these variables of the proxy's."""
    return {"services": {"proxy": {"environment": environment}}}


class Stack:
    """A deployment. A context: at the end of the block nothing of it is left.

    The compose files lie in a copy of their folder, so that nothing an operator has beside them counts.

    Attributes:
        folder: That copy.
        net: The three numbers that its addresses begin with, unlike those of other stacks.
        port: Where the proxy is published on the loopback.
    """

    def __init__(
        self,
        engine: Engine,
        files: Sequence[str] = DEMO,
        overlay: Overlay | None = None,
        env: Mapping[str, str] = {},
    ) -> None:
        number = next(_NUMBERS)
        self.net, self.port = f"172.30.{number}", 8000 + number
        # The proxy has three addresses, each on a network of its own.
        self.proxy, self.tunnel, self.neighbour, self.inner, self.vllm = (
            f"{self.net}.{last}" for last in (2, 3, 4, 18, 19)
        )
        self.admin, self.prometheus = f"{self.net}.34", f"{self.net}.35"
        self.engine = engine
        self.folder = Path(tempfile.mkdtemp(prefix="stack-", dir=engine.folder))
        self._files = [*files, "overlay.json"]
        self._env = {
            "COMPOSE_PROJECT_NAME": f"bulwark-{number}",
            "BULWARK_IMAGE": IMAGE,
            "BULWARK_NET": self.net,
            "BULWARK_PORT": str(self.port),
            "BULWARK_GATEWAY_MODE": "isolated" if engine.isolates else "nat",
            **env,
        }
        for file in COMPOSE.glob("compose*.yaml"):
            shutil.copy(file, self.folder)
        self.overlay(overlay or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        shutil.rmtree(self.folder)

    def overlay(self, overlay: Overlay) -> None:
        """Lays this over the files, from the next command on; JSON is YAML."""
        self.file("overlay.json", json.dumps(overlay))

    def model_alone(self) -> None:
        """Makes ``model.yaml``: of compose.demo.yaml the stand-in, and not what it does to the proxy."""
        text = (COMPOSE / "compose.demo.yaml").read_text(encoding="utf-8")
        vllm = text[text.index("  vllm:\n") :]
        self.file("model.yaml", f"services:\n{vllm}")

    def file(self, name: str, text: str) -> None:
        """Lays a file beside the compose files, as an operator does."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def compose(
        self, *argv: str, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``docker compose`` with these arguments.

        Raises:
            EngineError: It failed, unless ``check`` is off.
        """
        files = [option for file in self._files for option in ("--file", file)]
        return self.engine.docker(
            *("compose", "--progress=quiet", *files, *argv),
            env=self._env,
            check=check,
            timeout=timeout,
            cwd=self.folder,
        )

    def up(self, *services: str, within: float = UP_SECONDS) -> Self:
        """Starts it; returns when all of it is healthy.

        Raises:
            EngineError: It did not become healthy; has what its containers wrote.
        """
        waiting = ("--wait", "--wait-timeout", str(int(within)))
        try:
            self.compose(
                *("up", "--detach", "--no-build", "--pull=never", *waiting, *services),
                timeout=within + 30,
            )
        except EngineError as exc:
            raise EngineError(f"{exc}\n{self.logs()}") from exc
        return self

    def down(self) -> None:
        """Removes its containers, networks and volumes."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout=1")

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return f"{self._env['COMPOSE_PROJECT_NAME']}-{service}-1"

    def inspect(self, service: str) -> Any:
        """All that the engine knows about a service's container."""
        return json.loads(self.engine.docker("inspect", self.container(service)).stdout)[0]

    def health(self, service: str = "proxy") -> str:
        """``starting``, ``healthy`` or ``unhealthy``."""
        template = "{{.State.Health.Status}}"
        return self.engine.docker("inspect", "-f", template, self.container(service)).stdout.strip()

    def until_health(
        self, wanted: str, service: str = "proxy", within: float = UP_SECONDS
    ) -> float:
        """The seconds until a service has this health."""
        return until(
            lambda: self.health(service) == wanted,
            f"the {service} did not become {wanted}",
            within,
            more=self.logs,
        )

    def run(
        self,
        service: str,
        *argv: str,
        user: int = 0,
        input: str | None = None,  # noqa: A002 - as subprocess calls it
        check: bool = True,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a service's container, as somebody who broke into it would.

        Raises:
            EngineError: It failed, unless ``check`` is off.
        """
        return self.engine.docker(
            *("exec", "--interactive", "--user", str(user), self.container(service), *argv),
            input=input,
            check=check,
            timeout=timeout,
        )

    def in_network(self, service: str, *argv: str) -> list[str]:
        """The command that runs this one of the machine's in a service's network, with all of root's power."""
        number = str(self.inspect(service)["State"]["Pid"])
        # The engine's numbers of processes are those of its own /proc.
        return self.engine.inside(["nsenter", f"--net=/proc/{number}/ns/net", "--", *argv])

    def logs(self, *services: str) -> str:
        """What its containers wrote."""
        done = self.compose("logs", "--no-color", *services, check=False)
        return done.stdout + done.stderr


def until(
    condition: Callable[[], bool],
    otherwise: str,
    within: float = 30.0,
    more: Callable[[], str] = str,
) -> float:
    """The seconds until a condition holds; another program's state has no event to wait for.

    Args:
        condition: Asked again and again.
        otherwise: What is said when it does not hold in time.
        within: Seconds.
        more: Gives what is said then, too.

    Raises:
        TimeoutError: It did not hold in time.
    """
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > within:
            raise TimeoutError(f"{otherwise} within {within} s\n{more()}")
        time.sleep(0.1)
    return time.monotonic() - start
