"""What of a key file is given to a parser at all: far more than any key needs is not."""

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.auth import keylayout
from proxy.auth.keyfile import KeyFileError, parse
from proxy.auth.keylayout import MAX_LINE_CHARS, MAX_LINES, blanked

SHA = "0123456789abcdef" * 4
KEY = f'[[key]]\nid = "k3v9x2ab"\nsha256 = "{SHA}"\n'
PARTS = 400_000


def why(text: str) -> str | None:
    """Why it is not parsed."""
    return keylayout.too_much(text, blanked(text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(KEY + "expires = 2027-01-31T00:00:00.5Z", None, id="a fraction of a second"),
        pytest.param("a.b = 1", None, id="one dot, which is a mistake of another kind"),
        pytest.param("\na.b.c = 1", 2, id="two dots"),
        pytest.param(".".join("a" * 12_000) + " = 1", 1, id="24 KB of dots"),
        pytest.param(".".join(["1"] * 3) + " = 1", 1, id="dots between digits"),
        pytest.param('"a" . "b" . "c" = 1', 1, id="dots between names in quotes"),
        pytest.param("[a.b.c]", 1, id="dots in a header"),
        pytest.param(KEY + "models = [\"a.b.c.d\", 'a.b.c'] # a.b.c", None, id="dots in quotes"),
        pytest.param(KEY + 'name = """\na.b.c"""', None, id="dots in quotes of several lines"),
        pytest.param('a = "\\""\n"b" = "."\nx = "\\\\".b.c', 3, id="dots after escapes"),
        pytest.param('a = """x""""\nb.c.d = 1', 2, id="dots after four quotes"),
        pytest.param('a = "x\nb.c.d = 1', 2, id="dots after quotes that are not closed"),
        pytest.param("a = " + "[" * 8 + "]" * 8, None, id="eight brackets"),
        pytest.param("a = [\n" + "[" * 8 + "]" * 9, 2, id="nine, over two lines"),
        pytest.param("a = {b=[" * 5, 1, id="braces as well"),
        pytest.param("a = [" + "[]," * 1000 + "]", None, id="one beside the other"),
        pytest.param("#" * MAX_LINE_CHARS, None, id="the longest line"),
        pytest.param("\n" + "#" * (MAX_LINE_CHARS + 1), 2, id="a longer one"),
        pytest.param("#\n" * MAX_LINES, None, id="the most lines"),
        pytest.param("a=1\n" * (PARTS - 1) + "a=1", None, id="the most fields"),
        pytest.param("a=1\n" * (PARTS - 1) + "b={}", PARTS, id="a table more"),
        pytest.param("[[key]]\n" * (PARTS // 2), None, id="the most keys"),
        pytest.param("[a]\n" * (PARTS // 6), None, id="the most tables of other names"),
        pytest.param("[a]\n" * (PARTS // 6 + 1), PARTS // 6 + 1, id="one more of these"),
        pytest.param('"\\' * 24_000, None, id="quotes and escapes without end"),
        pytest.param('"""' + ('""\\"' * 10_000 + "\n") * 20, None, id="the same over many lines"),
    ],
)
def test_what_is_given_to_a_parser(text: str, line: int | None) -> None:
    """Both sides of each bound, with the line."""
    found = why(text)
    if line is None:
        assert found is None
    else:
        assert found is not None
        assert re.findall(r"line (\d+) ", found) == [str(line)]


def test_too_many_lines() -> None:
    """Blank ones as well."""
    assert why("\n" * MAX_LINES) is None
    assert why("\n" * (MAX_LINES + 1)) == "has more than 400,000 lines"


def test_what_is_too_much_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line, and nothing of what is there."""
    monkeypatch.setattr(tomllib, "loads", None)
    with pytest.raises(KeyFileError) as caught:
        parse("# keys\n" + ".".join("a" * 12_000) + " = 1")
    assert caught.value.errors == (
        "is not used, for no key needs that much: line 2 has names with dots, or several fractions",
    )


def test_ten_thousand_keys_with_all_there_is_are_given_to_a_parser() -> None:
    """Each with thirteen fields, one of them a list, and a comment."""
    fields = "".join(f"field_{number} = 1  # why\n" for number in range(12))
    assert why(f"# whose\n[[key]]\n{fields}models = [\n  'a', 'b',\n]\n\n" * 10_000) is None


@given(st.text("a1 =.#\"'\\\n[]", max_size=30))
def test_blanks_are_in_place(text: str) -> None:
    """As long, with the same line ends."""
    blank = blanked(text)
    assert [char == "\n" for char in blank] == [char == "\n" for char in text]
    assert not set(blank) & set("#\"'")


@given(st.lists(st.sampled_from(['"', '""', '"""', "'", "'''", "\\", "a", "#", "\n"]), max_size=12))
def test_texts_are_told_from_what_is_around_them_as_tomllib_does(inside: list[str]) -> None:
    """A field after something valid is seen, and nothing in it is."""
    text = f"a = {''.join(inside)}\nz = 1\n"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = keylayout.fields(text, blanked(text), 0, len(text))
    assert [name for name, _ in found] == list(document)
