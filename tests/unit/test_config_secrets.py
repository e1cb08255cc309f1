"""Keys and other secrets: from the environment or from a file, and never in a message."""

import os
import traceback
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from proxy.config import ConfigError, Settings, load
from proxy.config.describe import Description, descriptions, shown
from tests.harness.environments import ANONYMOUS, CANARY, KEY, problems


def told(environ: dict[str, str]) -> str:
    """All that a log or a traceback could show of loading an environment."""
    try:
        return f"Settings: {load(ANONYMOUS | environ)!r}"
    except ConfigError:
        return traceback.format_exc()


def test_a_secrets_file_of_another_user_says_who_cannot_read_it(tmp_path: Path) -> None:
    """As for the key file; the path is not repeated."""
    path = tmp_path / "canary"
    path.write_text(CANARY)
    path.chmod(0)
    ours, nobody = os.geteuid(), 65534
    if ours == 0:
        os.seteuid(nobody)
    try:
        said = told({"PROXY_UPSTREAM_API_KEY_FILE": str(path)})
    finally:
        os.seteuid(ours)
    assert f"Permission denied; user {ours or nobody} must be able to read it" in said
    assert "canary" not in said


@pytest.mark.parametrize("row", descriptions(), ids=lambda row: row.name)
@pytest.mark.parametrize("suffix", ["", "\n", ",", " x", "\x00", "\udcff"])
def test_no_message_repeats_a_value(row: Description, suffix: str) -> None:
    """Somebody will paste a key into the wrong variable."""
    for name in (row.name, row.name + "_FILE", row.name + "S"):
        said = told({name: CANARY + suffix})
        assert CANARY not in said or not row.secret
        assert CANARY not in said or said.startswith("Settings")


def test_settings_repeat_no_secret_when_made_by_hand() -> None:
    """The model itself hides its input, whoever builds it."""
    with pytest.raises(ValidationError) as caught:
        Settings(allow_anonymous=True, upstream_api_key=SecretStr(CANARY + "\n"))
    assert CANARY not in str(caught.value)


# Keys


def test_no_keys_at_all_is_an_error() -> None:
    """A door without a lock has to be asked for in so many words."""
    (problem,) = problems({})
    assert problem.startswith("no keys at all: set PROXY_API_KEYS or PROXY_KEYS_FILE")


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"PROXY_API_KEYS": KEY}, id="keys in the environment"),
        pytest.param({"PROXY_KEYS_FILE": "keys.toml"}, id="a file of hashed keys"),
        pytest.param({"PROXY_ALLOW_ANONYMOUS": "true"}, id="no key wanted"),
        pytest.param({"PROXY_ALLOW_ANONYMOUS": "true", "PROXY_API_KEYS": KEY}, id="both"),
    ],
)
def test_one_way_to_know_clients_is_enough(environ: dict[str, str]) -> None:
    """Each source of keys will do, and so will the spelled-out absence."""
    assert problems(environ) == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param("k" * 32, [], id="32 characters are enough"),
        pytest.param(
            "k" * 31,
            ["key 1 is 31 characters long; at least 32 random ones are needed"],
            id="31 are not",
        ),
        pytest.param(f"{KEY},short", ["key 2 is 5 characters long"], id="the second is short"),
        pytest.param(f"{KEY}, {KEY}", ["key 2 is the same as key 1"], id="twice the same"),
        pytest.param(f" {KEY} ,,{'l' * 32},", [], id="spaces and empty items do not matter"),
        pytest.param("ä" * 40, ["key 1 has a character that no header may carry"], id="umlauts"),
        pytest.param("a b" * 20, ["key 1 has a character that no header may carry"], id="spaces"),
        pytest.param(",", ["no keys at all"], id="nothing but commas"),
    ],
)
def test_keys_of_the_environment(keys: str, expected: list[str]) -> None:
    """They are long enough, printable, and each is there once; a message names the position."""
    found = problems({"PROXY_API_KEYS": keys})
    assert len(found) == len(expected)
    for problem, text in zip(found, expected, strict=True):
        assert text in problem


# Secrets from files


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    """Line breaks and a byte order mark that editors leave are no part of it."""
    (tmp_path / "upstream").write_bytes(b"\xef\xbb\xbfupstream-key\n")
    (tmp_path / "keys").write_text(f"{KEY}\n{'l' * 32}\r\n")
    settings = load(
        {
            "PROXY_UPSTREAM_API_KEY_FILE": str(tmp_path / "upstream"),
            "PROXY_API_KEYS_FILE": str(tmp_path / "keys"),
        }
    )
    assert settings.upstream_api_key == SecretStr("upstream-key")
    assert settings.api_keys == (SecretStr(KEY), SecretStr("l" * 32))


def test_a_secret_is_given_once(tmp_path: Path) -> None:
    """Two places for one secret: which of them was meant?"""
    path = tmp_path / "key"
    path.write_text(KEY)
    assert problems({"PROXY_API_KEYS": KEY, "PROXY_API_KEYS_FILE": str(path)}) == [
        "PROXY_API_KEYS: is set, and so is PROXY_API_KEYS_FILE; keep one of them"
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b" \n", "is empty", id="blank"),
        pytest.param(b"\xff\xfe", "is not UTF-8 text", id="binary"),
        pytest.param(b"k" * 65_537, "is over 65536 bytes", id="too large"),
    ],
)
def test_a_secret_file_that_cannot_be_meant(tmp_path: Path, content: bytes, expected: str) -> None:
    """A file without a usable secret is an error, never no secret."""
    path = tmp_path / "key"
    path.write_bytes(content)
    assert problems(ANONYMOUS | {"PROXY_UPSTREAM_API_KEY_FILE": str(path)}) == [
        f"PROXY_UPSTREAM_API_KEY: the file in PROXY_UPSTREAM_API_KEY_FILE {expected}"
    ]


def test_a_pipe_in_place_of_a_secret_file_does_not_hold_up_the_start(tmp_path: Path) -> None:
    """Nobody may ever write into it."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        (problem,) = problems(ANONYMOUS | {"PROXY_UPSTREAM_API_KEY_FILE": str(path)})
        assert "is not a regular file" in problem


@pytest.mark.parametrize(
    "key", ["", "a b", "a\nb", "a\r\nX-Evil: 1", "\x7f", "schlüssel", "\u2028", "a\x00"]
)
def test_the_upstream_key_fits_into_a_header(key: str) -> None:
    """A line break in it would be a header of its own."""
    (problem,) = problems(ANONYMOUS | {"PROXY_UPSTREAM_API_KEY": key})
    assert problem.startswith("PROXY_UPSTREAM_API_KEY: ")


def test_secrets_are_only_counted() -> None:
    """Neither a key nor a part of it is shown."""
    settings = load({"PROXY_API_KEYS": f"{KEY},{'l' * 32}", "PROXY_UPSTREAM_API_KEY": "up"})
    assert shown(settings.api_keys) == "(2 set)"
    assert shown(settings.upstream_api_key) == "(set)"
