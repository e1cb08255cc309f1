"""Tables of text: how wide, what is folded where, and that nothing of a text is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli import columns
from proxy.cli.columns import Column

_TWO = (Column("id", whole=True), Column("name", least=6))
_SHOWN = st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ")


def table(*rows: tuple[str, ...], width: int = 200, only_ascii: bool = False) -> list[str]:
    """The lines of a table of two columns."""
    return list(columns.lines(_TWO, rows, width=width, only_ascii=only_ascii))


def test_a_table() -> None:
    """As wide as what is in it."""
    assert table(("a", "alice"), ("bcd", "")) == [
        "┏━━━━━┳━━━━━━━┓",
        "┃ id  ┃ name  ┃",
        "┡━━━━━╇━━━━━━━┩",
        "│ a   │ alice │",
        "│ bcd │       │",
        "└─────┴───────┘",
    ]


def test_a_table_for_few_characters() -> None:
    """Also one without rows."""
    rule = "+----+------+"
    assert table(only_ascii=True) == [rule, "| id | name |", rule, rule]


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        pytest.param("one two", 7, ["one two"], id="it fits"),
        pytest.param("one two three", 9, ["one two", "three"], id="between words"),
        pytest.param("one two", 6, ["one", "two"], id="one less than fits"),
        pytest.param("abc de fghi", 6, ["abc de", "fghi"], id="a space more than fits"),
        pytest.param("abcdefghij", 6, ["abcdef", "ghij"], id="within a word that has no end"),
        pytest.param("a bcdefghij", 6, ["a", "bcdefg", "hij"], id="which begins its own line"),
        pytest.param("one    two", 6, ["one", "two"], id="spaces end with the line"),
        pytest.param("日本語の名前", 7, ["日本語", "の名前"], id="characters of two places"),
        pytest.param("ＡＢＣＤ", 7, ["ＡＢＣ", "Ｄ"], id="letters as wide as these"),  # noqa: RUF001
        pytest.param("e\u0301" * 7, 6, ["e\u0301" * 6, "e\u0301"], id="accents of none"),
        pytest.param("e\u20dd" * 7, 6, ["e\u20dd" * 6, "e\u20dd"], id="and circles around them"),
    ],
)
def test_where_a_text_is_folded(text: str, room: int, shown: list[str]) -> None:
    """In places of the terminal, not in characters."""
    _, _, _, *lines, _ = table(("k", text), width=room + 9)
    assert [line.split("│")[2].rstrip() for line in lines] == [f" {part}" for part in shown]


def test_what_is_whole_is_never_folded() -> None:
    """However little room there is; nor is a column narrower than is of use."""
    lines = table(("abcdefgh", "abcdefgh"), width=1)
    assert lines[3:5] == ["│ abcdefgh │ abcdef │", "│          │ gh     │"]


def test_the_widest_gives_first() -> None:
    """A short column is not folded for a long one."""
    three = (Column("a"), Column("b"), Column("c"))
    row = ("x" * 4, "y" * 30, "z" * 12)
    for width, widths in ((56, [4, 30, 12]), (55, [4, 29, 12]), (30, [4, 8, 8]), (1, [1, 1, 1])):
        top = next(columns.lines(three, [row], width=width))
        assert [len(part) - 2 for part in top.strip("┏┓").split("┳")] == widths


@given(st.lists(st.tuples(st.text(_SHOWN), st.text(_SHOWN)), max_size=4), st.integers(1, 60))
def test_nothing_is_lost(rows: list[tuple[str, str]], width: int) -> None:
    """Every character but spaces is there, in order, and all lines are of one width."""
    lines = table(*rows, width=width)
    assert len({columns.cells(line) for line in lines}) == 1
    drawn = "".join(line.split("│")[2] for line in lines if line.startswith("│ ") and rows)
    if not any("│" in text for row in rows for text in row):
        assert drawn.replace(" ", "") == "".join(text for _, text in rows).replace(" ", "")
