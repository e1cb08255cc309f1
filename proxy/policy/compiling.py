"""What an engine of guided decoding has to compile of a request's schemas, before its first token.

Each bound is for all schemas of a request, far above what people write, and such that a request costs
about a minute of one processor at the very most, where hours went before. What a schema says by
numbers alone (``maxItems`` of two thousand million, towers, references that double) costs the engines
nothing and is not looked at.

Measured with vLLM 0.32.0 (xgrammar 0.2.8) against a real vocabulary of 131,072 tokens, in seconds of
one processor (it uses up to eight), and with llama.cpp's server, which answers nobody meanwhile:

* patterns with a work of 4,000 took vLLM 7 to 60, and of 30,000 longer than anybody waited;
* each other ``maxLength`` took vLLM 2 to 5 from about 200 on, whatever its value;
* at least 50 of 100 optional properties took vLLM 1, 35 of 140 took 6, 100 of 200 took 16, and 4 of
  500 over 60; at most 1 of 1,000 took 1, at most 5 of them 19;
* 800 optional properties of an object took vLLM 2.5 and llama.cpp 1.2, 1,600 took that over 5;
* 4,000 alternatives of an ``enum`` took llama.cpp 0.5, 8,000 took it 1.8, and 15,000 over 5.
"""

import json
from typing import Any

from proxy.errors import ToolsTooLarge
from proxy.policy import patterns
from proxy.policy.lengths import Shape
from proxy.policy.lengths import shape as shape_of

MAX_WORK = 4_000
MAX_PATTERN_CHARS = 8_000
MAX_LENGTHS = 8_192
MAX_MEMBERS = 1_000
MAX_WAYS = 1_000_000
MAX_ENTRIES = 8_000

# A pattern that stands there again is compiled once by vLLM, and cheap for the others.
_AGAIN = 10
_TENTHS = 10

# From here on a string's length makes no difference to vLLM.
_LONGEST = 256

# Members whose value is a regular expression, where it is a string.
PATTERNS = frozenset(
    {"pattern", "regex", "guided_regex", "whitespace_pattern", "guided_whitespace_pattern"}
)

# Members whose value may be a schema written as a string.
_WRITTEN = frozenset({"json", "guided_json", "json_schema", "structural_tag"})

# A list of tools with none of these members, and most have none, needs no second look.
TELLTALES = PATTERNS | {
    "patternProperties",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    *_WRITTEN,
}

# Top-level fields besides `tables.SCHEMAS` that some engine compiles.
FIELDS = frozenset({"json_schema", "guided_json", "structural_tag"} | PATTERNS)


class Compiling:
    """What has been found in the schemas of one request."""

    __slots__ = ("_entries", "_lengths", "_pattern_chars", "_pattern_tenths", "_patterns", "_total")

    def __init__(self) -> None:
        self._patterns: dict[str, int] = {}
        self._pattern_chars = 0
        self._pattern_tenths = 0
        self._lengths: set[tuple[float, float]] = set()
        self._total = 0.0
        self._entries = 0

    def count(self, name: str, value: object, shape: Shape) -> None:
        """Counts one schema, or a list of tools.

        Args:
            name: Its field, for errors.
            value: The schema.
            shape: Of it, with `TELLTALES`.

        Raises:
            ToolsTooLarge: More than an engine compiles within seconds.
        """
        if shape.widest > MAX_MEMBERS:
            raise _refusal(name, "An object in", shape.widest, "members", MAX_MEMBERS)
        self._entries += shape.entries
        if self._entries > MAX_ENTRIES:
            raise _refusal(name, "The lists in", self._entries, "entries together", MAX_ENTRIES)
        if shape.telling:
            self._walk(name, value)

    def _walk(self, name: str, value: object) -> None:
        waiting = [value]
        while waiting:
            node = waiting.pop()
            if type(node) is dict:
                self._schema(name, node)
                waiting += node.values()
            elif type(node) is list:
                waiting += node

    def _schema(self, name: str, schema: dict[str, Any]) -> None:
        for key, member in schema.items():
            if type(member) is str and key in PATTERNS:
                self._pattern(name, member)
            elif key == "patternProperties" and type(member) is dict:
                for pattern in member:
                    self._pattern(name, pattern)
            elif type(member) is str and key in _WRITTEN:
                schema_of_it = _read(member)
                # As deep as quotation marks in quotation marks, each of which doubles the text.
                self.count(name, schema_of_it, shape_of(schema_of_it, TELLTALES))
        if "minLength" in schema or "maxLength" in schema:
            self._length(name, schema.get("minLength"), schema.get("maxLength"))
        if "minProperties" in schema or "maxProperties" in schema:
            _check_number_of_properties(name, schema)

    def _pattern(self, name: str, pattern: str) -> None:
        if pattern in self._patterns:
            self._pattern_tenths += self._patterns[pattern] * _TENTHS // _AGAIN
        else:
            self._pattern_chars += len(pattern)
            if self._pattern_chars > MAX_PATTERN_CHARS:
                chars = self._pattern_chars
                raise _refusal(name, "The patterns in", chars, "characters", MAX_PATTERN_CHARS)
            work = self._patterns[pattern] = patterns.work(pattern)
            self._pattern_tenths += work * _TENTHS
        total = self._pattern_tenths // _TENTHS
        if total > MAX_WORK:
            what = "steps to compile (counts multiply them, most of all nested ones)"
            raise _refusal(name, "The patterns in", total, what, MAX_WORK)

    def _length(self, name: str, least: object, most: object) -> None:
        lengths = _number(least), _number(most)
        if lengths in self._lengths:
            return
        self._lengths.add(lengths)
        self._total += min(max(lengths), _LONGEST)
        if self._total > MAX_LENGTHS:
            what = f"characters in different minLength and maxLength, of each up to {_LONGEST},"
            raise _refusal(name, "The strings in", self._total, what, MAX_LENGTHS)


def _read(text: str) -> object:
    """A schema that is written as a string, as the server reads it; None if it is none."""
    try:
        return json.loads(text) if text.lstrip()[:1] in {"{", "["} else None
    except (ValueError, RecursionError):
        return None


def _check_number_of_properties(name: str, schema: dict[str, Any]) -> None:
    properties = schema.get("properties")
    number = len(properties) if type(properties) is dict else 0
    # How many are wanted makes no difference, that some are does; how many there may be does.
    wanted = _number(schema.get("minProperties")) > 0
    states = number if wanted else min(_number(schema.get("maxProperties")), number)
    ways = number * number * states
    if ways > MAX_WAYS:
        what = "ways through its properties with minProperties or maxProperties"
        raise _refusal(name, "An object in", ways, what, MAX_WAYS)


def _number(value: object) -> float:
    return max(value, 0) if type(value) is int or type(value) is float else 0


def _refusal(name: str, where: str, number: float, what: str, limit: int) -> ToolsTooLarge:
    return ToolsTooLarge(
        f"{where} {name} (and the schemas before it) count {number:,.0f} {what}; the limit is "
        f"{limit:,} (fixed): an engine compiles them before its first token.",
        param=name,
    )
