"""What is said of a key file that is wrong: where, and why, and nothing of what is in it."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.auth import keyfile, keymistakes
from proxy.auth.keyfile import KeyFileError

CANARY = "CANARY"


def entry(key_id: str, digit: str) -> str:
    """A key, as three lines of a file."""
    return f'[[key]]\nid = "{key_id}"\nsha256 = "{digit * 64}"\n'


A, B = entry("aaaaaaaa", "a"), entry("bbbbbbbb", "b")


def errors_of(text: str) -> tuple[str, ...]:
    """All that is wrong with a file."""
    with pytest.raises(KeyFileError) as caught:
        keyfile.parse(text)
    return caught.value.errors


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param(
            f"name = {CANARY}", "column 8: a value is missing, or a text has", id="quotes"
        ),
        pytest.param("name =", "column 7: a value is missing", id="no value"),
        pytest.param(f'name "{CANARY}"', "column 6: an = is missing", id="no ="),
        pytest.param(f'name = "{CANARY}" x', "a value does not end where it should", id="more"),
        pytest.param("expires = 2027-13-01", "a value does not end where", id="a thirteenth month"),
        pytest.param("expires = 2027-02-30", "no such day or time", id="the 30th of February"),
        pytest.param("{CANARY}", "column 1: neither a field nor [[key]]", id="a brace"),
        pytest.param("[[key]", "a ]] is missing", id="half a header"),
        pytest.param(f'["{CANARY}"', "a ] is missing", id="half a table"),
        pytest.param('name = "a\\d"', "a \\ in a text has to be doubled", id="a backslash"),
        pytest.param('name = "\\d\tb"', "a \\ in a text has to be doubled", id="and a tab"),
        pytest.param("name = {a = 1, a = 2}", "a field is given twice", id="twice in braces"),
        pytest.param("[key]", "a table is there twice", id="two kinds of header"),
        pytest.param("name\u00a0= 1", "column 5: a character that is not seen, U+00A0", id="NBSP"),
        pytest.param("\u200bname = 1", "column 1: a character that is not", id="a zero width"),
        pytest.param("# a\0b", "column 4: a character that is not seen, U+0000", id="a NUL"),
        pytest.param("\0", "column 1: a character that is not seen, U+0000", id="a NUL alone"),
        pytest.param("# a\rb", "column 4: a character that is not seen, U+000D", id="a stray CR"),
        pytest.param("name = {a = [}", "", id="something that nobody has words for"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_what_is_no_toml(line: str, told: str, end: str) -> None:
    """By line and column, whatever ends the lines."""
    text = end.join([*A.splitlines(), line, 'models = ["a"]', ""])
    (error,) = errors_of(text)
    assert error.startswith("is not TOML: there is a mistake at line 4, column ")
    assert told in error
    assert CANARY not in error


@pytest.mark.parametrize(
    ("rest", "line", "told"),
    [
        pytest.param(f'name = "{CANARY}', 4, ": a text does not end", id="a text"),
        pytest.param("name = '", 4, ": a text does not end", id="a literal"),
        pytest.param('name = """\n\n\n', 6, ": a text does not end", id="a text of several lines"),
        pytest.param('models = ["a"', 4, ": a list does not end", id="a list"),
        pytest.param('name = "a"\nname = "b"', 5, ": a field is given twice", id="twice"),
    ],
)
def test_what_is_wrong_at_the_end(rest: str, line: int, told: str) -> None:
    """Which has a number, too."""
    (error,) = errors_of(A + rest)
    assert error == f"is not TOML: there is a mistake at its end, line {line}{told}"


@given(st.text(max_size=40), st.text(max_size=40))
def test_whatever_a_parser_says_is_told(before: str, after: str) -> None:
    """Without failing over its place."""
    text = f"{before}{CANARY}{after}"
    try:
        tomllib.loads(text)
    except ValueError as exc:
        told = keymistakes.not_toml(exc, text)
        assert told.startswith("there is a mistake ")
        assert CANARY not in told


def test_a_parser_that_says_something_else() -> None:
    """A newer one, perhaps."""
    assert keymistakes.not_toml(ValueError(CANARY), "") == "there is a mistake in its structure"
    error = ValueError(f"{CANARY} (at line 1, column 1)")
    assert keymistakes.not_toml(error, "a") == "there is a mistake at line 1, column 1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            A + B + entry("aaaaaaaa", "c"),
            "the key at line 7: has the id aaaaaaaa, as a key before it, at line 1 (line 8)",
            id="an id",
        ),
        pytest.param(
            "# ops\n" + A + B + entry("cccccccc", "b"),
            "the key at line 8: has the sha256 of a key before it, at line 5 (line 10)",
            id="a hash",
        ),
        pytest.param(
            f'key = [{{id = "aaaaaaaa", sha256 = "{"a" * 64}"}}, '
            f'{{id = "aaaaaaaa", sha256 = "{"b" * 64}"}}]',
            "key number 2: has the id aaaaaaaa, as a key before it, number 1",
            id="where keys have no headers",
        ),
    ],
)
def test_both_of_two_are_named(text: str, told: str) -> None:
    """Whoever has to take one out looks at both."""
    assert errors_of(text) == (told,)


def test_the_third_of_three_is_compared_with_the_first() -> None:
    """As is the second."""
    errors = errors_of(A + entry("aaaaaaaa", "b") + entry("aaaaaaaa", "c"))
    assert [error.partition("it, ")[2] for error in errors] == [
        "at line 1 (line 5)",
        "at line 1 (line 8)",
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(A.encode() + b'name = "Zo\xe9"\n', 4, id="Latin-1"),
        pytest.param(A.encode("utf-16"), 1, id="UTF-16"),
        pytest.param(b"\xef\xbb\xbf" + A.encode() + b"# \xff", 4, id="behind a byte order mark"),
    ],
)
def test_what_is_no_text_has_a_line(tmp_path: Path, content: bytes, line: int) -> None:
    """Of the first byte that is wrong."""
    path = tmp_path / "keys.toml"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError) as caught:
        keyfile.read(path)
    assert caught.value.errors == (f"is not UTF-8 text (line {line})",)
