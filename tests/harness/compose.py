"""Reads the compose files: of YAML the part that they use, and an error for everything else.

Whether an engine reads them in the same way, `tests/e2e` finds out.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).resolve().parents[2] / "docker"

_KEY = re.compile(r"([\w.-]+|<<):(?: +(.*))?$")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-?]([^}]*))?\}")
_REPLACED = ("command", "entrypoint", "test")
"""Lists that are taken whole; others grow."""

_PLAIN: dict[str, Any] = {"true": True, "false": False, "null": None, "": None}


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value under one of compose's own tags: it takes the place of what it would be merged with."""

    tag: str
    value: Any


def files() -> dict[str, Any]:
    """Every compose file by its name, parsed."""
    return {
        path.name: parse(path.read_text("utf-8")) for path in sorted(DOCKER.glob("compose*.yaml"))
    }


def with_usage_database(text: str) -> tuple[str, str]:
    """compose.yaml with the lines that it offers for ``PROXY_USAGE_DB``, and the value for that."""
    comment = re.search(r"(?m)^ +# For PROXY_USAGE_DB=(\S+),.*\n((?: +# .+\n)+)", text)
    assert comment is not None
    lines = re.sub(r"(?m)^( +)# ", r"\1", comment[2])
    return text.replace(comment[0], lines), comment[1]


def merged(under: Any, over: Any, key: str = "") -> Any:
    """One document laid over another, as compose does it for what the files have."""
    match over:
        case Tagged("!override", value):
            return value
        case dict():
            under = under if isinstance(under, dict) else {}
            kept = {name: value for name, value in under.items() if name not in over}
            laid = {
                name: merged(under.get(name), value, name)
                for name, value in over.items()
                if not (isinstance(value, Tagged) and value.tag == "!reset")
            }
            return {**kept, **laid}
        case list() if isinstance(under, list) and key not in _REPLACED:
            targets = {
                item["target"] for item in over if isinstance(item, dict) and "target" in item
            }
            others = [
                item
                for item in under
                if not (isinstance(item, dict) and item.get("target") in targets)
            ]
            return [*others, *over]
        case _:
            return over


def variables(text: str) -> Iterator[tuple[str, str]]:
    """The variables in a text, each with its default, which may be empty."""
    for match in _VARIABLE.finditer(text.replace("$$", "")):
        yield match[1], match[2] or ""


def with_defaults(value: Any) -> Any:
    """The same with each variable at its default."""
    match value:
        case str():
            return _VARIABLE.sub(lambda match: match[2] or "", value).replace("$$", "$")
        case list():
            return [with_defaults(item) for item in value]
        case dict():
            return {name: with_defaults(item) for name, item in value.items()}
        case _:
            return value


def parse(text: str) -> Any:
    """The document in a text.

    Raises:
        ValueError: There is something in it that is not read here.
    """
    lines = [
        (len(line) - len(line.lstrip(" ")), line.strip())
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    reader = _Reader(lines)
    document = reader.block(0)
    if reader.lines:
        raise ValueError(f"not read: {reader.lines[0][1]}")
    return document


@dataclass(slots=True)
class _Reader:
    """Takes the lines, each as its indent and its text, from the front."""

    lines: list[tuple[int, str]]
    anchors: dict[str, Any] = field(default_factory=dict)

    def block(self, indent: int) -> Any:
        """What stands at this indent."""
        if self.lines[0][1].startswith("- "):
            return self._sequence(indent)
        mapping: dict[str, Any] = {}
        while self.lines and self.lines[0][0] == indent:
            line = self.lines.pop(0)[1]
            match = _KEY.fullmatch(line)
            if match is None or match[1] in mapping:
                raise ValueError(f"neither a key nor a new one: {line}")
            mapping[match[1]] = self._value(match[2] or "", indent)
        merged = mapping.pop("<<", {})
        return {**merged, **mapping}

    def _sequence(self, indent: int) -> list[Any]:
        items: list[Any] = []
        while self.lines and self.lines[0][0] == indent and self.lines[0][1].startswith("- "):
            rest = self.lines.pop(0)[1][2:]
            if _KEY.fullmatch(rest):
                # The first key of a mapping; its others stand below it.
                self.lines.insert(0, (indent + 2, rest))
                items.append(self.block(indent + 2))
            else:
                items.append(self._value(rest, indent))
        return items

    def _value(self, text: str, indent: int) -> Any:
        """What follows a key or a dash, on its line or below it."""
        if match := re.fullmatch(r"&(\w+)(?: (.*))?", text):
            self.anchors[match[1]] = self._value(match[2] or "", indent)
            return self.anchors[match[1]]
        if match := re.fullmatch(r"(!reset|!override)(?: (.*))?", text):
            return Tagged(match[1], self._value(match[2] or "", indent))
        if text.startswith("*"):
            return self.anchors[text[1:]]
        if text == ">-":
            return " ".join(self._deeper(indent))
        if not text and self.lines and self.lines[0][0] > indent:
            return self.block(self.lines[0][0])
        flow = _Flow(text)
        value = flow.value("") if text[:1] in ("[", "{", '"', "'") else flow.rest()
        if flow.text:
            raise ValueError(f"not read: {flow.text}")
        return value

    def _deeper(self, indent: int) -> Iterator[str]:
        while self.lines and self.lines[0][0] > indent:
            yield self.lines.pop(0)[1]


@dataclass(slots=True)
class _Flow:
    """Takes values from the front of a text that is all on one line."""

    text: str

    def rest(self) -> Any:
        """All of it, as a plain scalar."""
        text, self.text = self.text, ""
        if " #" in text or ": " in text or text[:1] in ("|", ">", "?", "%", "@", "`", "!", "&"):
            raise ValueError(f"not read: {text}")
        return int(text) if text.isdecimal() else _PLAIN.get(text, text)

    def value(self, ends: str) -> Any:
        """The next value; a plain one goes as far as one of these characters."""
        match self.text[:1]:
            case "[":
                return self._items("]")
            case "{":
                return dict(self._pairs())
            case '"':
                value, end = json.JSONDecoder().raw_decode(self.text)
                self.text = self.text[end:]
                return value
            case "'":
                quoted = self._take(r"'(?:[^']|'')*'")
                return quoted[1:-1].replace("''", "'")
        plain = _Flow(self._take(f"[^{re.escape(ends)}]*").strip())
        return plain.rest()

    def _items(self, end: str) -> list[Any]:
        items: list[Any] = []
        self.text = self.text[1:].lstrip()
        while not self.text.startswith(end):
            items.append(self.value(",]"))
            self._take(r" *(?:, *|(?=\]))")
        self.text = self.text[1:].lstrip()
        return items

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        self.text = self.text[1:].lstrip()
        while not self.text.startswith("}"):
            key = self._take(r"[\w.-]+(?=: )")
            self._take(": +")
            yield key, self.value(",}")
            self._take(r" *(?:, *|(?=\}))")
        self.text = self.text[1:].lstrip()

    def _take(self, pattern: str) -> str:
        match = re.match(pattern, self.text)
        if match is None:
            raise ValueError(f"not read: {self.text}")
        self.text = self.text[match.end() :]
        return match[0]
