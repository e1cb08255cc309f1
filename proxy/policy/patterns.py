"""How much work a regular expression is for an engine that compiles it.

Engines of guided decoding build an automaton of every pattern in a schema, and hold it against their
whole vocabulary. What that costs has little to do with the pattern's length: 80 characters of nested
counts held vLLM for as long as anybody looked, and went on when the client had left. So two things
count here. Steps: from each unit (a character, a class, an escape) to each that may come next; counts
multiply them, and where units may be left out, each leads to all behind it. And for classes that many
tokens fit, steps times the number of places in the pattern where one and the same text may have led.

This is a bound, not a parser. Engines read different dialects, so whatever two of them could read
differently counts as the larger one; nothing is refused for its syntax here.
"""

import functools
import re
from typing import NamedTuple

# More than any limit; sums and products stay small numbers below its square.
MOST = 1_000_000

# Compiled against 131,072 tokens by vLLM 0.32.0 (xgrammar 0.2.8): `[a-z]?` times 100, 500,000 places
# to step from, took 7 s of a processor, `.*` times 50, 64,000 of them, as long; 5,000 steps to a
# letter took nothing to speak of.
_PLACES_PER_STEP = 25

# One pass over these: each character of a pattern is looked at a bounded number of times. A set of
# more than 100 characters counts all of them.
_TOKEN = re.compile(
    r"(?P<escape>\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|U[0-9A-Fa-f]{8}|c[A-Za-z]|[0-7]{1,3}"
    r"|[uxpP]\{[^{}]{0,64}\}|.)?)"
    r"|(?P<set>\[(?:[^]\\]|\\.){0,100}\])"
    r"|(?P<open>\((?:\?(?:[:=!>]|<[=!]|P?<[^<>()]{0,64}>))?)"
    r"|(?P<count>\{[^{}]*\})"
    r"|(?P<special>[)|*+?^$.])"
    r"|(?P<plain>[^][\\(){}|*+?^$.]+|.)",
    re.DOTALL,
)
_PROPER_COUNT = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_NUMBER = re.compile(r"[0-9]+")

# Escapes that match nothing in some dialects and a character in others.
_EDGES = frozenset({r"\b", r"\B", r"\A", r"\Z", r"\z", r"\G"})

# What few tokens of a vocabulary consist of: digits, a few characters by themselves.
_NARROW = re.compile(
    r"\\(?:[dsnrtfv]|[^A-Za-z0-9]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
    r"|\[(?:0-9|a-f|A-F|\\[^A-Zabcghijklmopqsuvwxyz]|[^]\\^-]){1,8}-?\]",
    re.DOTALL,
)


class _Part(NamedTuple):
    """A piece of a pattern.

    Attributes:
        first: Units that it can begin with.
        first_wide: Those of them that many tokens fit.
        last: Units that it can end with.
        steps: Between its units.
        steps_wide: Those of them to units that many tokens fit.
        wide: Its units that many tokens fit.
        places: At how many of them one may be after a text that begins where it does.
        length: Of all that it matches; less than 0 where that differs.
        empty: Whether it can match nothing.
    """

    first: int = 0
    first_wide: int = 0
    last: int = 0
    steps: int = 0
    steps_wide: int = 0
    wide: int = 0
    places: int = 0
    length: int = 0
    empty: bool = True


_NOTHING = _Part()
_CHARACTER = _Part(first=1, last=1, length=1, empty=False)
_CLASS = _Part(1, 1, 1, 0, 0, 1, 1, 1, empty=False)
_EDGE = _CHARACTER._replace(length=0, empty=True)


# Agents send the same tools with every turn.
@functools.lru_cache(maxsize=512)
def work(pattern: str) -> int:
    """An upper bound of the work, at most `MOST`.

    Never less than the characters of a pattern that has no other meaning than those. Takes about
    5 µs for each of them; the caller bounds their number.
    """
    # For each open group: its alternatives until now, what stands before the last piece of the
    # present one, and whether it matches nothing itself. A count or a star is for the last piece.
    groups: list[tuple[_Part | None, _Part, bool]] = []
    others: _Part | None = None
    done = last = _NOTHING
    looks = False
    # At the ends they say what is meant anyway.
    for token in _TOKEN.finditer(pattern.removeprefix("^").removesuffix("$")):
        kind, text = token.lastgroup, token[0]
        if kind == "count":
            last = _counted(last, text)
        elif text in {"*", "+", "?"}:
            last = _starred(last, text)
        elif text == "|":
            others, done, last = _either(others, _sequence(done, last)), _NOTHING, _NOTHING
        elif kind == "open":
            groups.append((others, _sequence(done, last), looks))
            others, done, last, looks = None, _NOTHING, _NOTHING, text.endswith(("=", "!"))
        elif text == ")" and groups:
            group = _either(others, _sequence(done, last))
            last = group._replace(empty=True) if looks else group
            others, done, looks = groups.pop()
        else:
            done, last = _sequence(done, last), _unit(kind, text)
            if kind == "plain" and len(text) > 1:
                done, last = _sequence(done, _characters(len(text) - 1)), _CHARACTER
    whole = _either(others, _sequence(done, last))
    while groups:  # whatever was not closed
        others, done, _ = groups.pop()
        whole = _either(others, _sequence(done, whole))
    places = whole.places * (whole.steps_wide + whole.first_wide)
    return min(whole.steps + whole.first + places // _PLACES_PER_STEP, MOST)


def _unit(kind: str | None, text: str) -> _Part:
    if text in {"^", "$"} or text in _EDGES:
        return _EDGE
    narrow = kind == "plain" or text == ")" or _NARROW.fullmatch(text)
    unit = _CHARACTER if narrow else _CLASS
    if kind == "escape" and len(text) > len(r"\x"):
        # One character, or several in a dialect that does not know it, the last of them counted.
        return unit._replace(steps=len(text) + _largest_number(text) if "{" in text else len(text))
    return unit


def _characters(number: int) -> _Part:
    return _CHARACTER._replace(steps=number - 1, length=number)


def _sequence(left: _Part, right: _Part) -> _Part:
    if left is _NOTHING:
        return right
    if right is _NOTHING:
        return left
    together = left.length >= 0
    return _part(
        left.first + (right.first if left.empty else 0),
        left.first_wide + (right.first_wide if left.empty else 0),
        right.last + (left.last if right.empty else 0),
        left.steps + right.steps + left.last * right.first,
        left.steps_wide + right.steps_wide + left.last * right.first_wide,
        left.wide + right.wide,
        max(left.places, right.places) if together else left.places + right.wide,
        length=left.length + right.length if together and right.length >= 0 else -1,
        empty=left.empty and right.empty,
    )


def _either(left: _Part | None, right: _Part) -> _Part:
    if left is None:
        return right
    return _part(
        left.first + right.first,
        left.first_wide + right.first_wide,
        left.last + right.last,
        left.steps + right.steps,
        left.steps_wide + right.steps_wide,
        left.wide + right.wide,
        left.places + right.places,
        length=left.length if left.length == right.length else -1,
        empty=left.empty or right.empty,
    )


def _starred(part: _Part, mark: str) -> _Part:
    """The part with ``*``, ``+`` or ``?`` behind it; behind a count these say how it is matched."""
    if part is _NOTHING:
        return part
    if mark == "?":
        return part._replace(length=-1, empty=True)
    return _part(
        part.first,
        part.first_wide,
        part.last,
        part.steps + part.last * part.first,
        part.steps_wide + part.last * part.first_wide,
        part.wide,
        part.places if part.length >= 0 else part.wide,
        length=-1,
        empty=part.empty or mark == "*",
    )


def _counted(part: _Part, text: str) -> _Part:
    """The part with a count in braces behind it, or braces that are themselves."""
    proper = _PROPER_COUNT.fullmatch(text)
    most = max(_largest_number(text), 1)
    least = min(_number(proper[1]), most) if proper else 0
    copies = _copies(part, least, most)
    if proper and proper[2] == ",":  # and on without an end
        copies = _starred(copies, "+")
    if proper:
        return copies
    # Whatever follows may come behind the last copy, or behind the brace.
    both = _sequence(copies, _characters(len(text)))
    return both._replace(last=min(both.last + copies.last, MOST), length=-1, empty=copies.empty)


def _copies(part: _Part, least: int, most: int) -> _Part:
    """So many of it, one behind the other."""
    if part is _NOTHING:
        return part
    if part.empty:  # from each to all behind it
        beginnings, endings, pairs = most, most, most * (most - 1) // 2
    else:
        beginnings, endings, pairs = 1, most - max(least, 1) + 1, most - 1
    return _part(
        beginnings * part.first,
        beginnings * part.first_wide,
        endings * part.last,
        most * part.steps + min(pairs, MOST) * part.last * part.first,
        most * part.steps_wide + min(pairs, MOST) * part.last * part.first_wide,
        most * part.wide,
        part.places if part.length >= 0 and not part.empty else most * part.wide,
        length=most * part.length if least == most and part.length >= 0 else -1,
        empty=part.empty or least == 0,
    )


def _part(  # noqa: PLR0917 - in the order of the tuple
    first: int,
    first_wide: int,
    last: int,
    steps: int,
    steps_wide: int,
    wide: int,
    places: int,
    *,
    length: int,
    empty: bool,
) -> _Part:
    return _Part(
        min(first, MOST),
        min(first_wide, MOST),
        min(last, MOST),
        min(steps, MOST),
        min(steps_wide, MOST),
        min(wide, MOST),
        min(places, MOST),
        min(length, MOST),
        empty,
    )


def _largest_number(text: str) -> int:
    return max(map(_number, _NUMBER.findall(text)), default=0)


def _number(digits: str) -> int:
    # Thousands of digits would be slow to read, and refused by Python.
    significant = digits.lstrip("0")
    return MOST if len(significant) > len(str(MOST)) else min(int(significant or "0"), MOST)
