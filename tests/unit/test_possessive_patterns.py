"""Patterns that Python before 3.11.5 could take otherwise, which Debian 12 has.

There, a possessive or atomic group that has a quantifier inside may not match what it should (CPython's
issue 106052). One such pattern had made every head of an answer invalid.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined] # typeshed knows it as sre_constants
from re import _parser as parser  # type: ignore[attr-defined] # nobody else parses as it does
from typing import Any, cast

import pytest

import proxy
from proxy.auth import keylayout
from proxy.policy import edit

ROOT = Path(proxy.__file__).parent
REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}
BY_LOOK = re.compile(r"[*+?}]\+|\(\?>")

# What is not like them, but means the same: the twin has no quantifier inside.
PROVEN = {
    edit._STRING.pattern: rb'"(?:[^"\\]|\\.)*+"',
    keylayout._OPAQUE.pattern: (
        r'"""(?:[^"\\]|\\.|\\|"(?!""))*+(?:"{3,5})?'
        r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?"
        r'|"(?:[^"\\\n]|\\[^\n]|\\)*+"?'
        r"|'[^'\n]*+'?"
        r"|#[^\n]*+"
    ),
}


def repeats(node: Any, *, inside: bool = False) -> bool:
    """Whether a part of a parsed pattern has a quantifier within a possessive or atomic group."""
    if isinstance(node, tuple) and node and node[0] in REPEATS | {codes.ATOMIC_GROUP}:
        if inside and node[0] in REPEATS:
            return True
        content = node[1][-1] if node[0] in REPEATS else node[1]
        # A single character, or a set of them, is repeated by another way, which is in order.
        is_group = not (len(content) == 1 and content[0][0] in (codes.IN, codes.LITERAL, codes.ANY))
        closes = node[0] is not codes.MAX_REPEAT and node[0] is not codes.MIN_REPEAT
        return repeats(content, inside=inside or (closes and is_group))
    if isinstance(node, tuple | list | parser.SubPattern):
        return any(repeats(each, inside=inside) for each in cast("list[Any]", node))
    return False


def suspicious(pattern: str | bytes) -> bool:
    """Whether this is such a pattern."""
    try:
        return repeats(parser.parse(pattern))
    except re.error:
        return False


def texts(path: Path) -> Iterator[str | bytes]:
    """What a module says that could be a pattern with a possessive part."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if BY_LOOK.search(text):
                yield node.value


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?:ab?c)*+", True),
        (r"(?:ab?c)++", True),
        (r"(?:ab?c)?+", True),
        (r"(?:ab?c){1,3}+", True),
        (r"(?>(?:ab?c)*)", True),
        (r"(?:x|(?:a[bc]*+)d)*+", True),
        (r"(?:x(?P<n>a+))*+", True),
        (r"(?:a|bc)*+", False),
        (r"(?>\r\n|\n)", False),
        (r"(?:[^a]++b)*", False),
        (r"[ab]*+c?x++.?+", False),
    ],
)
def test_which_are_suspicious(pattern: str, expected: bool) -> None:
    """The issue's own, and those that are in order."""
    assert suspicious(pattern) is expected
    assert suspicious(pattern.encode()) is expected


def test_no_pattern_of_the_product_is_suspicious() -> None:
    """But for those that are shown to be in order below."""
    found = {text for path in ROOT.rglob("*.py") for text in texts(path) if suspicious(text)}
    assert found == set(PROVEN)


@pytest.mark.parametrize("pattern", PROVEN, ids=["a string of JSON", "what is opaque in TOML"])
def test_they_match_what_their_twins_match(pattern: str | bytes) -> None:
    """Whatever the text, up to a length at which all their parts meet."""
    ours, twin = (re.compile(each, re.DOTALL) for each in (pattern, PROVEN[pattern]))
    for length in range(7):
        for letters in itertools.product("a\"\\'\n", repeat=length):
            text: Any = "".join(letters)
            if isinstance(pattern, bytes):
                text = text.encode()
            spans = [[match.span() for match in each.finditer(text)] for each in (ours, twin)]
            assert spans[0] == spans[1], text
