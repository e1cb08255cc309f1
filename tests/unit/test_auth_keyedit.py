"""Edits of key files: what was asked for happens, and no other byte changes."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from proxy.auth import keyedit
from proxy.auth.keyedit import append, change, remove
from proxy.auth.keyfile import KeyFileError, parse
from proxy.auth.keys import KeyRecord
from proxy.principal import Allowance

LATER = datetime(2027, 1, 31, 12, tzinfo=UTC)
NEW: dict[str, object] = {"id": "newnewne", "name": 'Zoë "Z" \\', "sha256": "f" * 64}
NEW_RECORD = KeyRecord("newnewne", bytes.fromhex("f" * 64), 'Zoë "Z" \\')

TEAM = """\
# The team's keys.
# Ask Zoë before you change one.

[[key]]  # since March
id = "aaaaaaaa"   # alice
sha256 = "{a}"
disabled = false# she is on leave sometimes

# Bob's key. Do not delete.

[[ key ]]
  name = 'bob'
  "id" = 'bbbbbbbb'
  sha256 = '{b}'
  # nothing follows
# The end.
"""
TEAM = TEAM.format(a="a" * 64, b="b" * 64)


def test_a_key_is_added_at_the_end() -> None:
    """With an empty line between, in the order of the documentation, and only what was given."""
    entry = {**NEW, "models": ["a", "b"], "tokens_per_day": 5, "expires": LATER, "disabled": None}
    assert append(TEAM, entry) == TEAM + (
        '\n[[key]]\nid = "newnewne"\nname = "Zoë \\"Z\\" \\\\"\n'
        f'sha256 = "{"f" * 64}"\nexpires = 2027-01-31T12:00:00Z\n'
        'tokens_per_day = 5\nmodels = ["a", "b"]\n'
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="a file that is not there"),
        pytest.param("\n \n", id="a file of nothing"),
    ],
)
def test_a_new_file_says_what_it_is(text: str) -> None:
    """In a comment, which is also how a file without keys is told from one that was emptied."""
    made = append(text, NEW)
    assert made.startswith("# Hashes of keys, never the keys themselves.")
    assert parse(made) == [NEW_RECORD]
    assert parse(remove(made, "newnewne")) == []
    assert remove(made, "newnewne").startswith("# Hashes of keys")


@pytest.mark.parametrize(
    ("key_id", "fields", "old", "new"),
    [
        pytest.param(
            "aaaaaaaa",
            {"disabled": True},
            "disabled = false# she",
            "disabled = true# she",
            id="a value is replaced where it is, beside its comment",
        ),
        pytest.param(
            "aaaaaaaa",
            {"expires": LATER},
            "sometimes\n",
            "sometimes\nexpires = 2027-01-31T12:00:00Z\n",
            id="a field comes before the comment of the next key",
        ),
        pytest.param(
            "bbbbbbbb",
            {"disabled": True, "replaced_by": "aaaaaaaa"},
            f"'{'b' * 64}'\n",
            f"'{'b' * 64}'\n  disabled = true\n  replaced_by = \"aaaaaaaa\"\n",
            id="a field has the indent of those above it",
        ),
    ],
)
def test_a_change(key_id: str, fields: dict[str, Any], old: str, new: str) -> None:
    """Only this; with line ends of Windows as well, and without a last line end."""
    assert TEAM.count(old) == 1
    assert change(TEAM, key_id, **fields) == TEAM.replace(old, new)
    windows = TEAM.replace("\n", "\r\n")
    assert change(windows, key_id, **fields) == TEAM.replace(old, new).replace("\n", "\r\n")
    assert change(TEAM.rstrip("\n"), key_id, **fields) == TEAM.replace(old, new)


def test_a_field_after_a_last_line_without_end() -> None:
    """It is on a line of its own."""
    text = f'[[key]]\nid = "aaaaaaaa"\nsha256 = "{"a" * 64}"'
    assert change(text, "aaaaaaaa", disabled=True) == text + "\ndisabled = true\n"
    assert append(text, NEW).startswith(text + "\n\n[[key]]\n")


def test_deleting_the_first_key_keeps_the_comment_of_the_second() -> None:
    """And the file's own; only the lines from its header to its last field go."""
    kept = TEAM[: TEAM.index("[[key]]")] + TEAM[TEAM.index("# Bob's") :]
    assert remove(TEAM, "aaaaaaaa") == kept


def test_deleting_the_last_key_keeps_what_follows_it() -> None:
    """Nobody can tell whom a comment at the end is about."""
    kept = TEAM[: TEAM.index("[[ key ]]")] + "  # nothing follows\n# The end.\n"
    assert remove(TEAM, "bbbbbbbb") == kept


@pytest.mark.parametrize("edit", [remove, change])
def test_a_key_that_is_not_there(edit: Any) -> None:
    """Nothing is edited."""
    with pytest.raises(KeyError, match="cccccccc"):
        edit(TEAM, "cccccccc")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f'key = [{{ id = "aaaaaaaa", sha256 = "{"a" * 64}" }}]\n', id="inline keys"),
        pytest.param("key = []\n", id="an inline list of none"),
    ],
)
def test_what_only_a_person_can_edit(text: str) -> None:
    """It is valid, and refused with what to do about it."""
    parse(text)
    with pytest.raises(KeyFileError, match=r"write each key as \[\[key\]\]|is not TOML"):
        append(text, NEW)
    for edit in (remove, change):
        with pytest.raises((KeyFileError, KeyError)):
            edit(text, "aaaaaaaa")


def test_a_file_with_a_mistake_is_not_edited() -> None:
    """Its errors are told instead."""
    for edit in (remove, change):
        with pytest.raises(KeyFileError, match="unknown field 'model'"):
            edit(TEAM + "model = 1\n", "aaaaaaaa")
    with pytest.raises(KeyFileError, match="unknown field 'model'"):
        append(TEAM + "model = 1\n", NEW)


def test_a_second_key_of_an_id_is_not_written() -> None:
    """Nor anything else that a server would refuse."""
    with pytest.raises(KeyFileError, match="has the id aaaaaaaa, as a key before it"):
        append(TEAM, {**NEW, "id": "aaaaaaaa"})


def fail(text: str) -> None:
    """What tomlkit says of what it cannot read."""
    raise TOMLKitError(text)


@pytest.mark.parametrize(
    ("owner", "name", "mangled"),
    [
        pytest.param(tomlkit, "parse", fail, id="it cannot be read"),
        pytest.param(Table, "as_string", lambda table: "?", id="it would be written otherwise"),
        pytest.param(keyedit, "_put", lambda *given: None, id="the edit has no effect"),
    ],
)
def test_an_edit_that_goes_wrong_is_none(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mangled: object
) -> None:
    """A fault of the library that edits is no reason to write what nobody asked for."""
    monkeypatch.setattr(owner, name, mangled)
    with pytest.raises(KeyFileError, match="only a person can edit"):
        change(TEAM, "aaaaaaaa", disabled=True)


# What an operator may have written: everything that TOML leaves open, but for the inline form.

# By hand: to draw from all of Unicode takes Hypothesis 3 s the first time, on a fresh checkout.
LINE = st.text("aZ09 #\"'[]{}=,.\\-_\u00e9\u6f22\U0001f600\u00a0\u2028\u202e\ufeff", max_size=8)
COMMENT = LINE.map(lambda text: "#" + text)
SPACE = st.sampled_from(["", " ", "  ", "\t"])
BETWEEN = st.lists(
    st.one_of(
        st.just(""),
        SPACE.flatmap(lambda indent: COMMENT.map(lambda text: indent + text)),
        st.just("# [[key]]"),
    ),
    max_size=4,
)


@dataclass(frozen=True)
class File:
    """A key file, by lines."""

    preamble: list[str]
    keys: list[tuple[list[str], list[str]]]
    """Of each key: from its header to its last field, and what follows."""

    end: str
    has_last_end: bool

    @property
    def text(self) -> str:
        """The whole of it."""
        lines = [*self.preamble, *(line for key in self.keys for part in key for line in part)]
        return self.end.join(lines) + (self.end if self.has_last_end else "")


def spelled(name: str, key_id: str) -> st.SearchStrategy[str]:
    """A value of a field, in one of its spellings."""
    values = {
        "id": [f'"{key_id}"', f"'{key_id}'", f'"""{key_id}"""', f"'''{key_id}'''"],
        "sha256": [f'"{key_id * 8}"', f"'{key_id.upper() * 8}'"],
        "name": ['"bob"', "'a # b'", '"""\\\n  [[key]] bob"""', '"\\u00e9 \\" ["'],
        "disabled": ["true", "false"],
        "expires": ["2027-01-31T00:00:00Z", "2027-01-31 00:00:00.5+01:00"],
        "tokens_per_day": ["1_000", "+5", "0x10"],
        "models": ['["a"]', '[\n  "a", # first\n  "b",\n]', "['a','b']"],
    }
    return st.sampled_from(values[name])


@st.composite
def files(draw: st.DrawFn) -> File:
    """Files with up to four keys."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    keys = []
    for number in range(draw(st.integers(1, 4))):
        lines = [draw(st.sampled_from(["[[key]]", " [[ key ]]", '[["key"]]', "[['key']] # who"]))]
        optional = ["name", "disabled", "expires", "tokens_per_day", "models"]
        chosen = draw(st.lists(st.sampled_from(optional), unique=True))
        for name in draw(st.permutations(["id", "sha256", *chosen])):
            lines += draw(BETWEEN)
            spelling = draw(st.sampled_from([name, f'"{name}"', f"'{name}'"]))
            value = draw(spelled(name, "abcdef0" + str(number))).replace("\n", end)
            indent, around, comment = draw(SPACE), draw(SPACE), draw(st.sampled_from(["", " # c"]))
            lines.append(f"{indent}{spelling}{around}={around}{value}{comment}")
        keys.append((lines, draw(BETWEEN)))
    return File(draw(BETWEEN), keys, end, draw(st.booleans()))


def is_without(longer: list[str], shorter: list[str]) -> bool:
    """Whether the shorter is the longer one without one line."""
    return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))


def lines_of(file: File, text: str) -> list[str]:
    """Its lines, whether or not the last one has an end."""
    assert file.end in ("\n", "\r\n")
    return text.removesuffix(file.end).split(file.end)


@given(files())
def test_adding_leaves_every_byte(file: File) -> None:
    """What was there is the beginning of what is there."""
    made = append(file.text, NEW)
    assert made.startswith(file.text)
    assert parse(made) == [*parse(file.text), NEW_RECORD]


@given(files(), st.data())
def test_changing_leaves_every_other_line(file: File, data: st.DataObject) -> None:
    """A field that was there is replaced in its line; one that was not is a line more."""
    before = parse(file.text)
    number = data.draw(st.integers(0, len(file.keys) - 1))
    fields: dict[str, Any] = data.draw(
        st.sampled_from([{"disabled": True}, {"disabled": False}, {"expires": LATER}])
    )
    made = change(file.text, before[number].key_id, **fields)
    wanted = [*before]
    wanted[number] = replace(before[number], **fields)
    assert parse(made) == wanted
    old, new = lines_of(file, file.text), lines_of(file, made)
    if len(old) == len(new):
        assert sum(a != b for a, b in zip(old, new, strict=True)) <= 1
        assert sum("# c" in line for line in old) == sum("# c" in line for line in new)
    else:
        assert is_without(new, old)


@given(files(), st.data())
def test_deleting_leaves_every_other_line(file: File, data: st.DataObject) -> None:
    """From the header to the last field they go, and one of two empty lines that would meet."""
    before = parse(file.text)
    number = data.draw(st.integers(0, len(file.keys) - 1))
    made = remove(file.text, before[number].key_id)
    assert parse(made) == [record for record in before if record is not before[number]]
    keys = [*file.keys]
    keys[number] = ([], keys[number][1])
    rest = replace(file, keys=keys).text
    if rest.strip():
        lines, wanted = lines_of(file, made), lines_of(file, rest)
        assert [line for line in lines if line] == [line for line in wanted if line]
        assert lines == wanted or is_without(wanted, lines) or not file.has_last_end


@given(files(), st.permutations(["append", "change", "remove"]))
def test_edits_follow_each_other(file: File, edits: list[str]) -> None:
    """What one leaves, the next can edit."""
    text = file.text
    key_id = parse(text)[0].key_id
    for edit in edits:
        if edit == "append":
            text = append(text, NEW)
        elif edit == "change" and key_id in text:
            text = change(text, key_id, disabled=True)
        elif edit == "remove":
            text = remove(text, key_id)
    ids = [record.key_id for record in parse(text)]
    assert "newnewne" in ids
    assert key_id not in ids


def test_a_record_of_what_was_written() -> None:
    """Every field that can be written is read as it was meant."""
    entry = {
        **NEW,
        "disabled": True,
        "replaced_by": "aaaaaaaa",
        "expires": LATER,
        "concurrency": 3,
        "models": ["x"],
    }
    assert parse(append("", entry)) == [
        replace(
            NEW_RECORD,
            disabled=True,
            replaced_by="aaaaaaaa",
            expires=LATER,
            allowance=Allowance(concurrency=3, models=frozenset({"x"})),
        )
    ]
