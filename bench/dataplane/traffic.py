"""What is sent: the mock upstream, the load, and the bodies of the requests."""

import contextlib
import http.client
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dataplane.programs import Programs

KEY = "sk-bw-b3nchm4k-" + "k" * 43
CHAT = "/v1/chat/completions"
_LEAVER = "bench-leaver-00000000"


def body(*, stream: bool, leaves: bool = False) -> bytes:
    """An agent's request of 2.8 KB: a system prompt, a few turns, four tools."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Looks {name.replace('_', ' ')} up in the project at hand and gives what it finds.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": "Relative to the root."},
                        "limit": {"type": "integer", "description": "At most so many."},
                    },
                    "required": ["path"],
                },
            },
        }
        for name in ("list_files", "read_file", "search_text", "run_tests")
    ]
    text = "The tests of the parser fail since the last change; find out why, and say what is to be done. "
    asked: dict[str, Any] = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are a careful engineer. " * 6},
            {"role": "user", "content": text * 6},
            {"role": "assistant", "content": "I look at the parser's own tests first."},
            {"role": "user", "content": text * 3},
        ],
        "tools": tools,
        "tool_choice": "auto",
        "temperature": 0.7,
        "max_tokens": 512,
    }
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    if leaves:
        asked["user"] = _LEAVER
    return json.dumps(asked).encode()


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies as files, for the load to read."""

    plain: Path
    stream: Path
    leaver: Path

    @classmethod
    def written(cls, folder: Path) -> "Bodies":
        """Writes them there."""
        files = cls(folder / "plain.json", folder / "stream.json", folder / "leaver.json")
        files.plain.write_bytes(body(stream=False))
        files.stream.write_bytes(body(stream=True))
        files.leaver.write_bytes(body(stream=True, leaves=True))
        return files


@dataclass(frozen=True, slots=True)
class Upstream:
    """The mock that runs."""

    port: int

    def plan(self, *, events: int, interval_ms: float, in_step: bool = True) -> None:
        """What its streams are from now on; those that run are dropped."""
        plan = f"events={events}&interval_us={round(interval_ms * 1000)}&in_step={int(in_step)}"
        self._get(f"/bench/plan?{plan}")

    def _get(self, target: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", target)
            return connection.getresponse().read()


@contextlib.contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Whatever is started in the block runs on these cores only; empty is all."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def upstream(programs: Programs, cores: Sequence[int]) -> Iterator[Upstream]:
    """A mock upstream for the block."""
    with pinned(cores):
        process = subprocess.Popen(  # noqa: S603
            [programs.upstream, "0"], stdout=subprocess.PIPE, text=True
        )
    with process:
        assert process.stdout is not None  # noqa: S101 - for mypy
        try:
            yield Upstream(json.loads(process.stdout.readline())["port"])
        finally:
            process.kill()


class LoadError(Exception):
    """The load did not run to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clients of one server.

    Attributes:
        path: What they ask for.
        headers: What they send besides the usual, as lines.
    """

    program: Path
    cores: Sequence[int]
    port: int
    headers: Sequence[str]
    path: str = CHAT

    def run(
        self,
        mode: str,
        body_file: Path,
        *,
        on_start: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
        **options: float,
    ) -> dict[str, Any]:
        """Runs one mode of ``wire/load.c``; gives what it measured.

        Args:
            mode: Its name.
            body_file: What is sent.
            on_start: Called when the window begins in which everything counts.
            on_end: Called when it ends, with all connections still open.
            options: Of the program, with underscores.

        Raises:
            LoadError: It ended early.
        """
        command = [str(self.program), mode, "--port", str(self.port), "--path", self.path]
        command += ["--body", str(body_file)]
        for line in self.headers:
            command += ["--header", line]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", f"{value:g}"]
        with pinned(self.cores):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
        with process:
            assert process.stdout is not None  # noqa: S101 - for mypy
            try:
                for line in process.stdout:
                    if line == "start\n":
                        on_start()
                    elif line == "end\n":
                        on_end()
                    else:
                        measured: dict[str, Any] = json.loads(line)
                        return measured
            finally:
                process.kill()
        raise LoadError(f"load {mode} ended with status {process.returncode}")
