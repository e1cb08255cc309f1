"""Rows of text in columns, for terminals and pipes of any width.

rich, which the other commands draw with, takes a tenth of a second to load and 0.3 ms a row.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# A word, with the spaces behind it.
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: What stands above it.
        least: How narrow it may be made where there is little room; its title always fits.
        whole: Whether nothing in it may be broken, however little room there is.
    """

    title: str
    least: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    left: str
    line: str
    cross: str
    right: str

    def across(self, widths: Sequence[int]) -> str:
        return self.left + self.cross.join(self.line * (each + 2) for each in widths) + self.right


_DRAWN = (
    _Rule("┏", "━", "┳", "┓"),
    _Rule("┃", " ", "┃", "┃"),
    _Rule("┡", "━", "╇", "┩"),
    _Rule("│", " ", "│", "│"),
    _Rule("└", "─", "┴", "┘"),
)
_ASCII = (
    _Rule("+", "-", "+", "+"),
    _Rule("|", " ", "|", "|"),
    _Rule("+", "-", "+", "+"),
    _Rule("|", " ", "|", "|"),
    _Rule("+", "-", "+", "+"),
)


def lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    only_ascii: bool = False,
) -> Iterator[str]:
    """A table, line by line. What does not fit into a column is folded, never cut off.

    Args:
        columns: Of which each row has a text, without line breaks.
        rows: The texts.
        width: How wide it may be; more where the columns cannot be that narrow.
        only_ascii: Draw it with ``+-|``.
    """
    top, head, below, body, bottom = _ASCII if only_ascii else _DRAWN
    titles = [column.title for column in columns]
    needs = [max(map(cells, texts)) for texts in zip(titles, *rows, strict=True)]
    least = [
        need if column.whole else min(need, max(column.least, cells(column.title)))
        for column, need in zip(columns, needs, strict=True)
    ]
    widths = _fitting(needs, least, width - 3 * len(columns) - 1)
    yield top.across(widths)
    yield from _row(titles, widths, head)
    yield below.across(widths)
    for row in rows:
        yield from _row(row, widths, body)
    yield bottom.across(widths)


def cells(text: str) -> int:
    """How many places of a terminal's line a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _fitting(needs: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that fit into so much together, if they can: the widest gives first."""
    widths = list(needs)
    while sum(widths) > room:
        giving = [place for place, each in enumerate(widths) if each > least[place]]
        if not giving:
            break
        widths[max(giving, key=widths.__getitem__)] -= 1
    return widths


def _row(texts: Sequence[str], widths: Sequence[int], rule: _Rule) -> Iterator[str]:
    folded = [_folded(text, width) for text, width in zip(texts, widths, strict=True)]
    for number in range(max(map(len, folded))):
        parts = []
        for of_one, width in zip(folded, widths, strict=True):
            part = of_one[number] if number < len(of_one) else ""
            parts.append(f" {part}{' ' * (width - cells(part))} ")
        yield rule.left + rule.cross.join(parts) + rule.right


def _folded(text: str, width: int) -> list[str]:
    """Between words where that does, else within them."""
    if cells(text) <= width:
        return [text]
    found, line, used = [], "", 0
    for word in _WORD.findall(text):
        if line and used + cells(word.rstrip()) > width:
            found.append(line.rstrip())
            line, used = "", 0
        for char in word:
            wide = _cells(char)
            if line and used + wide > width and not char.isspace():
                found.append(line.rstrip())
                line, used = "", 0
            line += char
            used += wide
    return [*found, line.rstrip()]
