"""Where things are in the text of a key file, and whether it is one that a parser should be given.

TOML leaves much open that costs a parser far more than its size: 24 KB of dots took 700 MB. So the
text is looked over first, in one pass, and refused where it goes beyond what any field needs.
"""

import re
from collections.abc import Iterator

MAX_LINES = 400_000
MAX_LINE_CHARS = 50_000
_MAX_DOTS = 1
_MAX_DEPTH = 8
_MAX_PARTS = 400_000
_MAX_COMMAS = 1_500_000
# A table of another name is a mistake, and each costs a parser 2 KB.
_OTHER_TABLE_PARTS = 5

# Strings and comments: closed or, where something is wrong, up to where a string has to end. The
# possessive repeats keep it one pass, whatever it is given.
_OPAQUE = re.compile(
    r'"""(?:[^"\\]|\\.?|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^"\\\n]|\\[^\n]?)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_BRACKET = re.compile(r"[\[\]{}]")
_HEADER = re.compile(r"^[ \t]*\[\[[^\[\]=\n]*\]\]", re.MULTILINE)
_OTHER_TABLE = re.compile(r"[ \t]*\[(?!\[[ \t]*(?:key|_____)[ \t]*\]\])")
_FIELD = re.compile(r"^[ \t]*([^\s=\[\]{}]+)[ \t]*=", re.MULTILINE)


def blanked(text: str) -> str:
    """The text with every string and comment, and no line end, overwritten: offsets stay."""
    return _OPAQUE.sub(_blank, text)


def too_much(text: str, blank: str) -> str | None:
    """Why a text is not one to be parsed, the end of a sentence; None if it is.

    Args:
        text: The whole file.
        blank: The same, ``blanked``.
    """
    if (why := _too_many(text, blank)) is not None:
        return why
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE_CHARS:
            return f"line {number} has more than {MAX_LINE_CHARS:,} characters"
    parts = depth = 0
    for number, line in enumerate(blank.split("\n"), 1):
        # One is in a fraction of a second. A name with dots is no field of ours.
        if line.count(".") > _MAX_DOTS:
            return f"line {number} has names with dots, or several fractions"
        if not depth and _OTHER_TABLE.match(line):
            parts += _OTHER_TABLE_PARTS
        depth, deepest = _depth(line, depth)
        if deepest > _MAX_DEPTH:
            return f"line {number} is inside of more than {_MAX_DEPTH} brackets"
        parts += line.count("=") + line.count("[") + line.count("{")
        if parts > _MAX_PARTS:
            return f"up to line {number} it has more than {_MAX_PARTS:,} keys, fields and lists"
    return None


def _too_many(text: str, blank: str) -> str | None:
    if text.count("\n") > MAX_LINES:
        return f"has more than {MAX_LINES:,} lines"
    if blank.count(",") > _MAX_COMMAS:
        return f"has more than {_MAX_COMMAS:,} items in its lists"
    return None


def headers(blank: str) -> list[int]:
    """Where each ``[[key]]`` begins; of a file with other tables, those as well."""
    return [match.start() for match in _HEADER.finditer(blank)]


def fields(text: str, blank: str, begin: int, end: int) -> Iterator[tuple[str, int]]:
    """The fields that are written between two offsets, as a name and its offset."""
    for match in _FIELD.finditer(blank, begin, end):
        yield text[slice(*match.span(1))].strip("\"'"), match.start(1)


def _blank(match: re.Match[str]) -> str:
    found = match[0]
    if "\n" not in found:
        return "_" * len(found)
    return "\n".join("_" * len(line) for line in found.split("\n"))


def _depth(line: str, depth: int) -> tuple[int, int]:
    """How deep the line's end is inside of brackets, and its deepest place."""
    deepest = depth
    for bracket in _BRACKET.findall(line):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return depth, deepest
