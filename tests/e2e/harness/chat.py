"""A streamed chat from some machine of the networks."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.networks import Namespace

PROGRAM = Path(__file__).parents[1] / "programs/chat.py"

KEY = "demo-key-which-everybody-knows-0000"
"""Of compose.demo.yaml."""


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a chat.

    Attributes:
        ms: When each piece arrived, since the request was sent.
        whole: Whether the answer ended as it should.
    """

    status: int
    ms: list[float]
    text: str
    whole: bool

    @property
    def words(self) -> str:
        """What the model said."""
        events = (line[6:] for line in self.text.split("\n") if line.startswith("data: {"))
        choices = (choice for event in events for choice in json.loads(event)["choices"])
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    def assert_counted_live(self, to: int) -> None:
        """Fails unless it is the whole of "count to N", and came word by word, as it was said."""
        assert self.status == 200, self
        assert self.whole, self
        assert self.words.split() == [str(number) for number in range(1, to + 1)]
        assert self.text.rstrip().endswith("data: [DONE]")
        assert len(self.ms) > to / 2, f"{to} words came in {len(self.ms)} pieces"
        # The stand-in takes 20 ms over each word: they cannot have been collected on the way.
        assert self.ms[-1] - self.ms[0] > to * 20 / 2, self.ms


class Chat:
    """A chat that is going on.

    Args:
        where: The machine that asks.
        port: Whom, on its loopback unless ``host`` says otherwise.
        message: The question.
    """

    def __init__(
        self,
        where: Namespace,
        port: int,
        message: str,
        *,
        host: str = "127.0.0.1",
        key: str = KEY,
        model: str = "any",
    ) -> None:
        asked = {"host": host, "port": port, "key": key, "message": message, "model": model}
        self._process = where.popen(
            [sys.executable, "-I", "-S", str(PROGRAM), json.dumps(asked)], stderr=subprocess.PIPE
        )
        self._lines: list[dict[str, Any]] = []

    def until_it_streams(self) -> None:
        """Returns once the first piece has come."""
        while not any("ms" in line for line in self._lines):
            assert self._read(), f"the chat ended before it began: {self._lines}"

    def end(self) -> Said:
        """Waits until it has ended."""
        while self._read():
            pass
        assert self._process.stderr is not None
        errors = self._process.stderr.read()
        assert self._process.wait(30) == 0, errors
        pieces = [line for line in self._lines if "ms" in line]
        return Said(
            self._lines[0]["status"],
            [piece["ms"] for piece in pieces],
            "".join(piece["text"] for piece in pieces),
            self._lines[-1]["whole"],
        )

    def _read(self) -> bool:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            self._lines.append(json.loads(line))
        return bool(line)
