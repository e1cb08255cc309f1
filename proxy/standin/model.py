"""What the stand-in says: a pure function from a question to words. A word is a token."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_COUNT = re.compile(r"\bcount to (\d{1,6})\b", re.IGNORECASE)
_MAX_REPEATED_CHARS = 200
_WORD = re.compile(r"\S+\s*")
_PIECE_OF_JSON = re.compile(r"[^,:]+[,:]?\s*")
_THOUGHT = "They want to see whether thoughts come through. "
_MAX_DEPTH = 8

_SAMPLES: Mapping[str, object] = {
    "string": "Paris",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
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
        schema: What the answer has to look like as JSON; None answers in words.
        thinks: Whether to think aloud before the answer.
        max_tokens: Words to say at most; None is as many as there are.
    """

    model: str
    prompt: str
    said: str
    tool: Tool | None = None
    schema: Mapping[str, Any] | None = None
    thinks: bool = False
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model says.

    Attributes:
        pieces: The words with the space after each, or the pieces of the tool's arguments.
        thoughts: The words that it thought before.
        tool_name: The tool called; empty where it answers in words.
        cut: Whether ``max_tokens`` ended it.
        prompt_tokens: Words of the prompt; at least one.
    """

    pieces: tuple[str, ...]
    tool_name: str
    cut: bool
    prompt_tokens: int
    thoughts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All pieces together."""
        return "".join(self.pieces)

    @property
    def completion_tokens(self) -> int:
        """How many pieces there are, thoughts included."""
        return len(self.thoughts) + len(self.pieces)

    @property
    def thought(self) -> str:
        """All thoughts together."""
        return "".join(self.thoughts)


def answer(question: Question) -> Answer:
    """The answer to a question; the same each time."""
    schema = question.schema if question.tool is None else question.tool.schema
    if schema is None:
        pieces = _WORD.findall(_reply(question.said))
    else:
        pieces = _PIECE_OF_JSON.findall(json.dumps(_sample(schema, schema)))
    thoughts = _WORD.findall(_THOUGHT) if question.thinks else []
    left = question.max_tokens
    thought = thoughts[:left]
    # What a reasoning model thinks counts, and may leave nothing for the answer.
    said = pieces[: None if left is None else left - len(thought)]
    return Answer(
        pieces=tuple(said),
        tool_name=question.tool.name if question.tool is not None else "",
        cut=len(thought) + len(said) < len(thoughts) + len(pieces),
        prompt_tokens=count(question.prompt),
        thoughts=tuple(thought),
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


def _sample(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> object:
    """A value that fits a schema, in as far as its types, enums and references say what fits.

    Args:
        schema: The schema of the value.
        root: The schema that its references are about.
        depth: How deep in the value this is; a schema that contains itself has to end somewhere.
    """
    if depth > _MAX_DEPTH:
        return None
    schema = _plain(schema, root)
    if choices := schema.get("enum"):
        return choices[0]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return dict(_members(schema, root, depth))
    if kind == "array":
        return [_sample(schema.get("items") or {}, root, depth + 1)] * schema.get("minItems", 1)
    return _SAMPLES.get(kind if isinstance(kind, str) else "string")


def _plain(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its first alternative, its reference and its constant spelled out."""
    for _ in range(_MAX_DEPTH):
        if variants := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            schema = variants[0]
        elif reference := schema.get("$ref"):
            schema = _referred(str(reference), root)
    return {"enum": [schema["const"]]} if "const" in schema else schema


def _members(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> Iterator[tuple[str, object]]:
    """Those that the schema requires, or all of them."""
    properties = schema.get("properties") or {}
    for name in schema.get("required") or properties:
        yield name, _sample(properties.get(name) or {}, root, depth + 1)


def _referred(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ``#/$defs/Name`` names; anything where it names nothing."""
    at: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        at = (at if isinstance(at, dict) else {}).get(name, at if not name else {})
    return at if isinstance(at, dict) else {}
