"""What is wrong with a key file, and where, in words of ours that repeat nothing of it.

A parser's own message may hold what it found, and somebody will paste a key in here.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.auth import keylayout


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with a field of the key of this number.

    Attributes:
        before: The number of another key that it is to be compared with.
    """

    number: int
    field: str
    what: str
    before: int | None = None


def told(mistakes: Sequence[Mistake], text: str, blank: str, count: int) -> Iterator[str]:
    """Each with its key's line and its own; with the key's number where headers cannot be counted.

    Args:
        mistakes: In the order of their keys.
        text: The whole file.
        blank: The same, ``keylayout.blanked``.
        count: How many keys there are.
    """
    begins = keylayout.headers(blank)
    if len(begins) != count:
        for mistake in mistakes:
            other = "" if mistake.before is None else f", number {mistake.before + 1}"
            yield f"key number {mistake.number + 1}: {mistake.what}{other}"
        return
    ends = [*begins[1:], len(text)]
    line, counted = 1, 0
    for number, of_one in itertools.groupby(mistakes, key=lambda mistake: mistake.number):
        begin, end = begins[number], ends[number]
        line, counted = line + text.count("\n", counted, begin), begin
        written = dict(keylayout.fields(text, blank, begin, end))
        for mistake in of_one:
            at = written.get(mistake.field)
            where = "" if at is None else f" (line {line + text.count(chr(10), begin, at)})"
            other = ""
            if mistake.before is not None:
                other = f", at line {text.count(chr(10), 0, begins[mistake.before]) + 1}"
            yield f"the key at line {line}: {mistake.what}{other}{where}"


# What tomllib says, without its place. What it has no words for here is a mistake without a reason.
_REASONS = {
    "Cannot overwrite a value": "a field is given twice",
    "Expected '=' after a key in a key/value pair": "an = is missing behind a field's name",
    "Expected ']' at the end of a table declaration": "a ] is missing",
    "Expected ']]' at the end of an array declaration": "a ]] is missing",
    "Expected newline or end of document after a statement": "a value does not end where it should",
    "Invalid date or datetime": "there is no such day or time",
    "Invalid initial character for a key part": "no field's name begins so",
    "Invalid statement": "neither a field nor [[key]]",
    "Invalid value": "a value is missing, or a text has no quotes",
    "Unclosed array": "a list does not end",
    "Unclosed inline table": "a } is missing",
    "Unescaped '\\' in a string": "a \\ in a text has to be doubled",
    "Unterminated string": "a text does not end",
}
_BEGINNINGS = {
    "Cannot declare ": "a table is there twice",
    "Duplicate inline table key ": "a field is given twice",
    'Expected "': "a text does not end",
}
_PLACED = re.compile(
    r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL
)


def not_toml(exc: Exception, text: str) -> str:
    """Why a text is no TOML, and where; the end of a sentence.

    Args:
        exc: What tomllib raised.
        text: What it was given.
    """
    match = _PLACED.fullmatch(str(exc))
    if match is None:
        return "there is a mistake in its structure"
    # As tomllib counts.
    lines = text.replace("\r\n", "\n").split("\n")
    if match["line"] is None:
        last = len(lines) - (not lines[-1])
        return f"there is a mistake at its end, line {last}" + _because(match["what"])
    line, column = int(match["line"]), int(match["column"])
    place = f"there is a mistake at line {line}, column {column}"
    char = lines[line - 1][column - 1 : column]
    if char.isprintable() or char == "\t":
        return place + _because(match["what"])
    return f"{place}: a character that is not seen, U+{ord(char):04X}"


def _because(what: str) -> str:
    for beginning, reason in _BEGINNINGS.items():
        if what.startswith(beginning):
            return f": {reason}"
    return f": {_REASONS[what]}" if what in _REASONS else ""
