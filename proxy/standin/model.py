"""What the stand-in says: a pure function from a question to words. A word is a token."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_COUNT = re.compile(r"\bcount to (\d{1,6})\b", re.IGNORECASE)
_MAX_REPEATED_CHARS = 200

_SAMPLES: Mapping[str, object] = {
    "string": "Paris",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers: its name and the JSON schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request, whatever dialect it came in.

    Attributes:
        prompt: All of its text, for counting.
        said: The text of its last message, for answering.
        tool: The tool to call; None answers in words.
        max_tokens: Words to say at most; None is as many as there are.
    """

    model: str
    prompt: str
    said: str
    tool: Tool | None = None
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model says.

    Attributes:
        pieces: The words with the space after each, or the pieces of the tool's arguments.
        tool_name: The tool called; empty where it answers in words.
        cut: Whether ``max_tokens`` ended it.
        prompt_tokens: Words of the prompt; at least one.
    """

    pieces: tuple[str, ...]
    tool_name: str
    cut: bool
    prompt_tokens: int

    @property
    def text(self) -> str:
        """All pieces together."""
        return "".join(self.pieces)

    @property
    def completion_tokens(self) -> int:
        """How many pieces there are."""
        return len(self.pieces)


def answer(question: Question) -> Answer:
    """The answer to a question; the same each time."""
    if question.tool is not None:
        arguments = json.dumps(dict(_arguments(question.tool.schema)))
        pieces = tuple(re.findall(r"[^,:]+[,:]?\s*", arguments))
        name = question.tool.name
    else:
        pieces = tuple(re.findall(r"\S+\s*", _reply(question.said)))
        name = ""
    kept = pieces[: question.max_tokens]
    return Answer(
        pieces=kept,
        tool_name=name,
        cut=len(kept) < len(pieces),
        prompt_tokens=count(question.prompt),
    )


def count(text: str) -> int:
    """Tokens of a text: its words, and at least one."""
    return max(1, len(text.split()))


def _reply(said: str) -> str:
    if match := _COUNT.search(said):
        return " ".join(map(str, range(1, int(match[1]) + 1)))
    return (
        f"You said: {said[:_MAX_REPEATED_CHARS]!r}. I am only a stand-in, but every word of this "
        "came through the proxy by itself."
    )


def _arguments(schema: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """A value of the right type for each property that the tool requires."""
    properties = schema.get("properties") or {}
    for name in schema.get("required") or properties:
        wanted = properties.get(name) or {}
        choices = wanted.get("enum")
        yield name, choices[0] if choices else _SAMPLES.get(wanted.get("type", "string"))
