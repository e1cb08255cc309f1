"""The key file: what is accepted, and that nothing wrong in it passes or is repeated."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proxy.auth.keyfields import LIMITS
from proxy.auth.keyfile import MAX_BYTES, KeyFileError, parse, read
from proxy.principal import MOST, Allowance

SHA = "0123456789abcdef" * 4
CANARY = "sk-bw-k3v9x2ab-" + "c" * 43
GOOD = f'[[key]]\nid = "k3v9x2ab"\nsha256 = "{SHA}"\n'


def errors_of(text: str) -> tuple[str, ...]:
    """All that is wrong with a file."""
    with pytest.raises(KeyFileError) as caught:
        parse(text)
    return caught.value.errors


def test_all_fields() -> None:
    """Every documented field arrives in the record."""
    text = f"""
        # the team
        [[key]]
        id = "k3v9x2ab"
        name = "Zoë"
        sha256 = "{SHA.upper()}"
        expires = 2027-01-31T00:00:00Z
        disabled = true
        replaced_by = "a2345678"
        requests_per_minute = 1
        tokens_per_minute = 2
        tokens_per_day = {MOST["tokens_per_day"]}
        concurrency = 4
        max_prompt_chars = 5
        max_output_tokens = 6
        models = ["a", "b/c", "a"]

        [[key]]
        id = "a2345678"
        sha256 = "{"f" * 64}"
    """
    first, second = parse(text)
    assert (first.key_id, first.name, first.disabled) == ("k3v9x2ab", "Zoë", True)
    assert first.sha256 == bytes.fromhex(SHA)
    assert first.expires == datetime(2027, 1, 31, tzinfo=UTC)
    assert (second.key_id, second.name, second.disabled) == ("a2345678", "", False)
    assert (second.expires, second.replaced_by, second.allowance) == (None, None, Allowance())
    assert first.replaced_by == "a2345678"
    assert first.allowance == Allowance(
        requests_per_minute=1,
        tokens_per_minute=2,
        tokens_per_day=MOST["tokens_per_day"],
        concurrency=4,
        max_prompt_chars=5,
        max_output_tokens=6,
        models=frozenset({"a", "b/c"}),
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="an empty file"),
        pytest.param("# nobody yet\n", id="comments only"),
        pytest.param("key = []\n", id="an empty list"),
    ],
)
def test_no_keys_are_no_mistake_here(text: str) -> None:
    """Whether a server may run without keys is for the settings to say."""
    assert parse(text) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("[[key]", "is not TOML: there is a mistake at", id="not TOML"),
        pytest.param("[[key]]\nid = 'a'\nid = 'b'\n", "at line 3, column", id="a field twice"),
        pytest.param(CANARY, "is not TOML", id="a bare key pasted into the file"),
        pytest.param(f'"{CANARY}" = "bob"', "unknown field (its name", id="a key as a name"),
        pytest.param("keys = []", "unknown field 'keys'", id="a misspelt table"),
        pytest.param("key = 1", "not written as [[key]]", id="key is no table"),
        pytest.param("key = [1]", "not written as [[key]]", id="key is a list of numbers"),
        pytest.param("[key]\nid = 'a'", "not written as [[key]]", id="key is one table"),
        pytest.param(
            GOOD + "rpm = 1", "at line 1: unknown field 'rpm' (line 4)", id="unknown field"
        ),
        pytest.param(GOOD + "expire = 2027-01-01T00:00:00Z", "field 'expire'", id="misspelt field"),
        pytest.param("[[key]]", "line 1: id is missing", id="no id"),
        pytest.param("[[key]]", "line 1: sha256 is missing", id="no sha256"),
        pytest.param(GOOD.replace("k3v9x2ab", "k3v9x2a"), "id must be", id="an id of 7"),
        pytest.param(GOOD.replace("k3v9x2ab", "k3v9x2abc"), "id must be", id="an id of 9"),
        pytest.param(GOOD.replace("k3v9x2ab", "K3V9X2AB"), "id must be", id="an id in capitals"),
        pytest.param(GOOD.replace("k3v9x2ab", CANARY), "id must be", id="a key for an id"),
        pytest.param(GOOD.replace(SHA, SHA[1:]), "sha256 must be", id="63 digits"),
        pytest.param(GOOD.replace(SHA, SHA + "0"), "sha256 must be", id="65 digits"),
        pytest.param(GOOD.replace(SHA, "g" * 64), "sha256 must be", id="no hexadecimal digits"),
        pytest.param(GOOD.replace(SHA, CANARY), "sha256 must be", id="a key for its digest"),
        pytest.param(GOOD.replace(f'"{SHA}"', "1"), "sha256 must be", id="a number for a digest"),
        pytest.param(GOOD + "name = 1", "name must be", id="a number for a name"),
        pytest.param(GOOD + f'name = "{"n" * 101}"', "name must be", id="a name of 101"),
        pytest.param(GOOD + 'name = "a\\nb"', "name must be", id="a name of two lines"),
        pytest.param(GOOD + "expires = 2027-01-31", "expires must be", id="a date without a time"),
        pytest.param(
            GOOD + "expires = 2027-01-31T00:00:00", "expires must be", id="a time without a zone"
        ),
        pytest.param(GOOD + "expires = '2027'", "expires must be", id="a text for a time"),
        pytest.param(GOOD + "disabled = 'no'", "disabled must be", id="a text for a boolean"),
        pytest.param(GOOD + "disabled = 0", "disabled must be", id="a number for a boolean"),
        pytest.param(
            GOOD + GOOD, "at line 4: has the id k3v9x2ab, as a key before", id="one id twice"
        ),
        pytest.param(
            GOOD + GOOD.replace("k3v9x2ab", "b2345678"),
            "at line 4: has the sha256 of a key before it",
            id="a key twice",
        ),
        pytest.param(GOOD + "replaced_by = 'alice'", "replaced_by must be", id="a name for an id"),
        pytest.param(
            GOOD + "expires = 9999-12-31T23:00:00-02:00", "expires must be", id="the year 10000"
        ),
        pytest.param(
            GOOD + "concurrency = " + "9" * 5000, "is not TOML", id="a number of 5,000 digits"
        ),
    ],
)
def test_refused(text: str, error: str) -> None:
    """A file with a mistake is refused whole, says where, and repeats no key."""
    errors = errors_of(text)
    assert any(error in each for each in errors), errors
    assert CANARY not in " ".join(errors)
    assert SHA not in " ".join(errors)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("0", id="nothing"),
        pytest.param("-1", id="less than nothing"),
        pytest.param("1.0", id="a fraction"),
        pytest.param("inf", id="infinity"),
        pytest.param("true", id="a boolean"),
        pytest.param("'1'", id="a text"),
        pytest.param("[1]", id="a list"),
        pytest.param(str(max(MOST.values()) + 1), id="more than the most"),
        pytest.param("9" * 40, id="a number of 40 digits"),
    ],
)
def test_a_limit_is_a_whole_number_from_1(name: str, value: str) -> None:
    """No other spelling of one, which somebody might take for no limit."""
    (error,) = errors_of(f"{GOOD}{name} = {value}")
    assert error.startswith(f"the key at line 1: {name} must be a whole number from 1 to ")
    assert value not in error.removeprefix("the key at line 1") or len(value) < 4


@pytest.mark.parametrize(
    ("value", "right"),
    [
        pytest.param(["m"], True, id="one"),
        pytest.param([], False, id="none, with which the key could do nothing"),
        pytest.param(["m"] * 100, True, id="a hundred"),
        pytest.param(["m"] * 101, False, id="a hundred and one"),
        pytest.param(["m" * 256], True, id="a name of 256"),
        pytest.param(["m" * 257], False, id="a name of 257"),
        pytest.param(["m", ""], False, id="an empty name"),
        pytest.param(["m\n"], False, id="a line break in a name"),
        pytest.param(["m", 1], False, id="a number"),
        pytest.param("m", False, id="a text for a list"),
        pytest.param([["m"]], False, id="a list in the list"),
    ],
)
def test_models(value: object, right: bool) -> None:
    """A list of names."""
    text = f"{GOOD}models = {json.dumps(value)}"
    if right:
        assert parse(text)[0].allowance.models
    else:
        assert "models must be a list of 1 to 100 names" in errors_of(text)[0]


def test_the_longest_name_is_accepted() -> None:
    """A hundred characters are a name."""
    assert parse(GOOD + f'name = "{"n" * 100}"')[0].name == "n" * 100


def test_every_error_is_reported_at_once_with_its_line() -> None:
    """The operator mends a file in one go."""
    text = '[[key]]\nid = 1\n\n[[key]]\nsha256 = 2\nid = "k3v9x2ab"\n'
    assert [error.split(":")[0] for error in errors_of(text)] == [
        "the key at line 1",
        "the key at line 1",
        "the key at line 4",
    ]


def test_a_mistake_is_where_its_field_is() -> None:
    """Also under a name in quotes; what is not there, or looks like a field in a text, is nowhere."""
    other = GOOD.replace("k3v9x2ab", "b2345678").replace(SHA, "f" * 64)
    text = (
        f'{GOOD}\n{other}name = """\\\nrpm = "\\\n"""\n# rpm = 1\n  "rpm" = 1\n\n[[key]]\nid = 1\n'
    )
    assert errors_of(text) == (
        "the key at line 5: unknown field 'rpm' (line 12)",
        (
            "the key at line 14: id must be the 8 lower-case letters and digits that follow sk-bw- in "
            "the key (line 15)"
        ),
        "the key at line 14: sha256 is missing",
    )


def test_lines_are_counted_as_editors_do() -> None:
    """A separator of Unicode in a comment is no line break."""
    assert errors_of("# a\u2028b\u0085c\n[[key]]\nid = 1\n")[0].startswith("the key at line 2: ")


def test_repeated_and_wrong_keys_are_told_in_their_order() -> None:
    """Of three keys the last repeats the first, and the second is wrong."""
    text = GOOD + GOOD.replace("k3v9x2ab", "?") + GOOD
    assert [error.split(":")[0][-1] for error in errors_of(text)] == ["4", "7", "7"]


def test_keys_that_cannot_be_counted_by_line_are_counted() -> None:
    """An inline list has no headers to point at."""
    assert errors_of("key = [{}]")[0].startswith("key number 1: ")


def write(folder: Path, content: bytes = GOOD.encode(), mode: int = 0o600) -> Path:
    """A key file with this mode."""
    path = folder / "keys.toml"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(GOOD.encode(), id="plain"),
        pytest.param(b"\xef\xbb\xbf" + GOOD.encode(), id="a byte order mark"),
        pytest.param(GOOD.replace("\n", "\r\n").encode(), id="line ends of Windows"),
    ],
)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644])
def test_read(tmp_path: Path, content: bytes, mode: int) -> None:
    """A file that only its owner may write is read."""
    assert [record.key_id for record in read(write(tmp_path, content, mode))] == ["k3v9x2ab"]


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    """Kubernetes mounts secrets as links."""
    link = tmp_path / "link"
    link.symlink_to(write(tmp_path))
    assert len(read(link)) == 1


def test_a_full_file_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    """The bound is 8 MiB on both sides."""
    lines = b"#".ljust(1023, b"-") + b"\n"
    padding = b"#" + (lines * (MAX_BYTES // 1024))[len(GOOD) + 1 :]
    assert len(read(write(tmp_path, padding + GOOD.encode()))) == 1
    with pytest.raises(KeyFileError, match="larger than 8388608 bytes"):
        read(write(tmp_path, b"#" + padding + GOOD.encode()))


def test_a_file_of_another_user_says_who_cannot_read_it(tmp_path: Path) -> None:
    """A host's file belongs to its user, and in a container that is somebody else."""
    path = write(tmp_path, mode=0o000)
    ours, nobody = os.geteuid(), 65534
    if ours == 0:
        os.seteuid(nobody)
    try:
        with pytest.raises(KeyFileError) as caught:
            read(path)
    finally:
        os.seteuid(ours)
    assert str(caught.value) == (
        f"cannot be read: Permission denied; user {ours or nobody} must be able to read it "
        "and to enter its folders"
    )


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever can write it can let himself in."""
    with pytest.raises(KeyFileError, match="may be written by"):
        read(write(tmp_path, mode=mode))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, a pipe without a writer, a missing file: a reason for each, and no waiting."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(KeyFileError, match="not a regular file"):
        read(fifo)
    with pytest.raises(KeyFileError, match="not a regular file"):
        read(Path("/dev/null"))
    with pytest.raises(KeyFileError, match=r"not a regular file|cannot be read"):
        read(tmp_path)
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read(tmp_path / "missing")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A file of another kind is not guessed at."""
    with pytest.raises(KeyFileError, match="not UTF-8"):
        read(write(tmp_path, b"\xff\xfe\x00k"))


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        pytest.param(98, None, id="one hundred, with the two that are missing"),
        pytest.param(99, "and 1 more", id="one more"),
        pytest.param(60_000, "and 59,902 more", id="as many as a file may have"),
    ],
)
def test_of_many_mistakes_a_hundred_are_told(fields: int, more: str | None) -> None:
    """Each with its line, in no more time than the file takes to be read."""
    text = "[[key]]\n" + "".join(f"f{number} = 1\n" for number in range(fields))
    with pytest.raises(KeyFileError) as refused:
        parse(text)
    told = refused.value.errors
    assert len(told) == 100 + (more is not None)
    assert (told[-1] == more) == (more is not None)


def test_of_many_tables_that_are_no_keys_a_hundred_are_told() -> None:
    """Likewise."""
    with pytest.raises(KeyFileError) as refused:
        parse("".join(f"f{number} = 1\n" for number in range(1_000)))
    assert len(refused.value.errors) == 101
    assert refused.value.errors[-1] == "and 900 more"
