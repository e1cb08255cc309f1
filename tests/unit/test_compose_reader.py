"""The reader of compose files: what it reads, and that all else is an error."""

import pytest

from tests.harness import compose
from tests.harness.compose import Tagged


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: 1 # one", id="a comment behind a value"),
        pytest.param("a: |\n  b", id="a literal block"),
        pytest.param("a: 1\na: 2", id="a key twice"),
        pytest.param("a: b: c", id="two keys on a line"),
        pytest.param("a: 1\n   b: 2", id="an indent that nothing opened"),
        pytest.param("a: [1, 2", id="a list without its end"),
        pytest.param("a: [1] 2", id="something behind a list"),
        pytest.param("a:\n  - b\n c: 1", id="an indent in between"),
        pytest.param("? a", id="a complex key"),
        pytest.param("a: !env b", id="a tag of somebody else's"),
        pytest.param("a: @b", id="a reserved sign"),
    ],
)
def test_what_is_not_read_is_an_error(text: str) -> None:
    """A file that was read wrongly would pass every other test."""
    with pytest.raises((ValueError, KeyError)):
        compose.parse(text)


def test_what_is_read() -> None:
    """The shapes that the files use."""
    text = """
x-all: &all
  read_only: true
a:
  <<: *all
  list: [b, "c: d", 'e''s', 3]
  map: {f: "g", h: [{i: j}]}
  long: >-
    k
    l m
  items:
    - n: 1
      o: "2"
    - p
  reset: !reset []
  nothing:
"""
    assert compose.parse(text)["a"] == {
        "read_only": True,
        "list": ["b", "c: d", "e's", 3],
        "map": {"f": "g", "h": [{"i": "j"}]},
        "long": "k l m",
        "items": [{"n": 1, "o": "2"}, "p"],
        "reset": Tagged("!reset", []),
        "nothing": None,
    }
