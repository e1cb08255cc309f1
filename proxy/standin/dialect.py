"""What the four dialects have in common: the contract, and reading a request's texts and tools."""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.standin.model import Answer, Question, Tool

DEFAULT_MODEL = "stand-in"

Json = dict[str, Any]


class Dialect(ABC):
    """Reads a question out of a request body and writes an answer as JSON or as events."""

    @abstractmethod
    def question(self, body: Mapping[str, Any]) -> Question:
        """What a request asks."""

    @abstractmethod
    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """The answer as one JSON object. ``created`` is in seconds since 1970."""

    @abstractmethod
    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """The answer as server-sent events, in order."""


def data(value: object) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\n" + data(value)


def new_id(prefix: str) -> str:
    """A fresh id, as unlike any other as real ones are."""
    return prefix + secrets.token_hex(12)


def model_of(body: Mapping[str, Any]) -> str:
    """The model asked for, whatever its name."""
    return str(body.get("model") or DEFAULT_MODEL)


def choose_tool(
    offered: list[Json], schema: str, body: Mapping[str, Any], messages: list[Json]
) -> Tool | None:
    """The tool to call: the one named, else the first, unless none is wanted or one was just run."""
    choice = body.get("tool_choice")
    wanted = choice if isinstance(choice, dict) else {"type": choice}
    if not offered or wanted.get("type") == "none" or _is_tool_result(messages):
        return None
    name = (wanted.get("function") or wanted).get("name")
    tool = next((tool for tool in offered if tool.get("name") == name), offered[0])
    return Tool(str(tool.get("name")), {"type": "object"} | (tool.get(schema) or {}))


def format_schema(wanted: object, *, member: str = "") -> Mapping[str, Any] | None:
    """The schema in an output format; any object where the format is JSON without one.

    Args:
        wanted: The format.
        member: Where in it the schema is, if not in it directly.
    """
    if not isinstance(wanted, dict) or wanted.get("type") not in ("json_schema", "json_object"):
        return None
    holder = wanted.get(member) if member else wanted
    return (holder or {}).get("schema") or {"type": "object"}


def _is_tool_result(messages: list[Json]) -> bool:
    last = messages[-1] if messages else {}
    if last.get("role") == "tool" or last.get("type") == "function_call_output":
        return True
    content = last.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )


def last_text(messages: list[Json]) -> str:
    """The text of the last message or item."""
    return all_text(messages[-1:])


def all_text(value: object) -> str:
    """Every text in a prompt, messages, items or parts, however they nest."""
    match value:
        case str():
            return value
        case list():
            return " ".join(filter(None, map(all_text, value)))
        case dict():
            return all_text([value.get(name) for name in ("content", "text", "output")])
    return ""
