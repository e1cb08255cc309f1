"""How long a JSON value is: as compact JSON, and as a chat template may write it."""

import json
from typing import Any, NamedTuple

import msgspec

_COMPACT = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_RENDERED = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode

_FAST = msgspec.json.Encoder().encode

_INDENT = 4
_QUOTES = 2


def compact(value: object, *, floats: bool = True) -> str:
    """The value as compact JSON, numbers in Python's spelling.

    Args:
        value: What ``proxy.policy.body`` has read.
        floats: Whether there may be any in it. Without them another encoder, an eighth as slow, has the
            very same characters.
    """
    return _COMPACT(value) if floats else _FAST(value).decode()


def compact_chars(value: object) -> int:
    """Characters of the value as compact JSON."""
    return len(compact(value, floats=type(value) is not str))


def rendered_chars(value: object) -> int:
    """Characters of the value as a template's ``tojson`` writes it.

    That is Python's default form, with a space behind each comma and colon and with numbers in
    Python's spelling: ``1e15`` is 18 characters long there. Counting the compact form, or the
    client's own, let 4,900 numbers through as 9,800 characters that became 14,700.

    A template may also have Python print it, as ``{{ value }}`` does: where that is longer, it counts.
    """
    encoded = _RENDERED(value)
    return max(len(encoded), len(repr(value))) if _longer_in_print(encoded) else len(encoded)


def rendered_total(values: list[Any], most: int) -> int:
    """The same as the sum of `rendered_chars` of each, by one call of the encoder.

    A call for each held the loop for 0.2 s with 84,000 numbers, and for 0.4 s on embeddings.

    Args:
        values: What is rendered.
        most: Above this the exact sum does not matter any more.
    """
    if not values:
        return 0
    encoded = _RENDERED(values)
    # As a list: each but the last has ", " behind it, and there are two brackets.
    total = len(encoded) - 2 * len(values)
    if total > most or not _longer_in_print(encoded):
        return total
    return sum(map(rendered_chars, values))


def printed_chars(value: object, encoded: str | None = None) -> int:
    """Characters that Python's way of printing a value has more than its JSON.

    vLLM writes what a tool answered so where it stands in a turn that is not the user's
    (``_convert_tool_result_block``): 1,000 invisible characters became 10,000.

    Args:
        value: The value.
        encoded: It as JSON of any form, where somebody has that already.
    """
    if encoded is not None and not _longer_in_print(encoded):
        return 0
    rendered = _RENDERED(value)
    return max(0, len(repr(value)) - len(rendered)) if _longer_in_print(rendered) else 0


def _longer_in_print(encoded: str) -> bool:
    """Whether a value with this JSON may be longer as Python prints it.

    That escapes what is not printable, has no short escape for backspace and form feed, and escapes
    ``'`` where both quotation marks are in one text.
    """
    # JSON escapes other control characters; and of ASCII this one is found sooner.
    unprintable = "\x7f" in encoded if encoded.isascii() else not encoded.isprintable()
    return (
        unprintable or ("'" in encoded and '\\"' in encoded) or "\\b" in encoded or "\\f" in encoded
    )


class Shape(NamedTuple):
    """What a value is made of, and what indentation makes of it.

    Attributes:
        levels: Of arrays and objects.
        added: Characters that ``tojson(indent=4)`` adds.
        members: Of all objects.
        widest: Members of the largest object.
        entries: Of all arrays.
        telling: Whether an object has a member that was asked for.
        floats: Whether there are any.
    """

    levels: int
    added: int
    members: int
    widest: int
    entries: int
    telling: bool
    floats: bool


def shape(value: object, telltales: frozenset[str] = frozenset()) -> Shape:
    """Looks at a value level by level, and for members with these names.

    Llama 3's template indents tools. Line breaks and spaces are paid by depth, not by content:
    20 KB of ones inside 55 brackets became 2.4 million characters in a real vLLM, whose one loop
    took 3.5 s to tokenize them.
    """
    levels = chars = members = widest = entries = 0
    telling, floats = False, type(value) is float
    layer: list[Any] = [value] if type(value) in (dict, list) else []
    while layer:
        closing = 1 + _INDENT * levels
        levels += 1
        cells = rows = brackets = 0
        deeper: list[Any] = []
        for node in layer:
            size = len(node)
            if not size:
                continue
            brackets += 1
            if type(node) is dict:
                cells += size
                if size > widest:  # noqa: PLR1730 - a call for each object is slower
                    widest = size
                telling = telling or not telltales.isdisjoint(node)
                children = node.values()
            else:
                rows += size
                children = node
            # No comprehension: a call for each node, of which most are small.
            for child in children:
                kind = type(child)
                if kind is dict or kind is list:
                    deeper.append(child)
                elif kind is float:
                    floats = True
        # A line for each member, and one for the closing bracket; a space behind each colon.
        chars += (cells + rows) * (closing + _INDENT) + cells + brackets * closing
        members += cells
        entries += rows
        layer = deeper
    return Shape(levels, chars, members, widest, entries, telling, floats)


def escape_chars(content: object) -> int:
    """Characters that content grows by where a template writes it as a JSON string.

    Llama 3's template does so with what tools answered: ``{"output": content} | tojson`` makes six
    characters of a control character, two of a line break or a quotation mark.

    Args:
        content: A string, or a list of parts.
    """
    if type(content) is str:
        return len(_RENDERED(content)) - _QUOTES - len(content)
    if type(content) is list:
        return sum(escape_chars(part) for part in content if type(part) is not list)
    return escape_chars(content["text"]) if type(content) is dict and "text" in content else 0


def arguments_size(text: str) -> tuple[int, int]:
    """Characters of tool-call arguments given as a string, as a template may write them, and members.

    vLLM parses such a string with ``json.loads`` and hands the object to the template
    (``_postprocess_messages``), so the same parser decides here. What it does not read stays text.
    """
    if not text:
        return 0, 0  # before the exception, which costs more than all else here
    try:
        value = json.loads(text)
        return max(len(text), rendered_chars(value)), len(value) if type(value) is dict else 0
    except (ValueError, RecursionError):
        return len(text), 0
