"""Reads ``PROXY_KEYS_FILE``: TOML, hashed keys, refused whole if anything in it is wrong.

::

    [[key]]
    id = "k3v9x2ab"            # the 8 characters after sk-bw-
    name = "alice"             # this and all that follows but the hash is optional
    sha256 = "9f86d0818…"      # of the whole key, 64 hex digits
    expires = 2027-01-31T00:00:00Z   # with a time zone
    disabled = false
    replaced_by = "m4c8w1yz"   # while it is being rotated out
    requests_per_minute = 60   # this and the following: absent, the operator's default
    tokens_per_minute = 100000
    tokens_per_day = 2000000
    concurrency = 4
    max_prompt_chars = 40000
    max_output_tokens = 8192
    models = ["qwen3-8b"]

No message repeats a value, nor a name that might be one: somebody will paste a key in here.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from proxy.auth import keyfields, keylayout, keymistakes
from proxy.auth.keymistakes import Mistake
from proxy.auth.keys import KeyRecord

MAX_BYTES = 8 * 1024 * 1024
_MAX_TOLD = 100
"""Mistakes, of a kind, that are told in full: nobody reads 400,000, and each takes its time."""
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

# Longer than any field of ours and shorter than any key.
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_]{1,20}")


class KeyFileError(Exception):
    """A key file that is not used.

    Attributes:
        errors: A sentence for each thing wrong with it; of very many the last says how many more.
        count: How many there are.
    """

    def __init__(self, *errors: str, untold: int = 0) -> None:
        super().__init__("; ".join(errors))
        self.errors = (*errors, f"and {untold:,} more") if untold else errors
        self.count = len(errors) + untold


class UnreadableKeyFileError(KeyFileError):
    """The system does not let us read it; that may pass without a change of the file."""


def read(path: Path) -> list[KeyRecord]:
    """The keys in a file.

    Raises:
        KeyFileError: It cannot be read, is not safe to trust, or has anything wrong in it.
    """
    return parse(read_text(path))


def read_text(path: Path) -> str:
    """What is in a file that is safe to trust, without a byte order mark.

    Raises:
        KeyFileError: It is none.
    """
    try:
        return _read_bytes(path).decode("utf-8-sig")
    except OSError as exc:
        raise UnreadableKeyFileError(f"cannot be read: {why_unreadable(exc)}") from exc
    except UnicodeDecodeError as exc:
        line = exc.object.count(b"\n", 0, exc.start) + 1
        raise KeyFileError(f"is not UTF-8 text (line {line})") from exc


def why_unreadable(exc: OSError) -> str:
    """The reason in the system's words and, of a missing permission, who would need it.

    In a container the file may be readable to everybody that its owner knows of.
    """
    if isinstance(exc, PermissionError):
        return (
            f"{exc.strerror}; user {os.geteuid()} must be able to read it and to enter its folders"
        )
    return str(exc.strerror)


def check_not_empty(text: str) -> None:
    """Lets a text pass that has something in it, be it a comment.

    Raises:
        KeyFileError: It has nothing, as an editor leaves it that was stopped.
    """
    if not text.strip():
        raise KeyFileError(
            "is empty, which is taken for a slip; to have no key at all, leave a comment in it"
        )


def parse(text: str) -> list[KeyRecord]:
    """The keys in the text of a key file.

    Raises:
        KeyFileError: With every error in it, each with its line.
    """
    blank = keylayout.blanked(text)
    if (why := keylayout.too_much(text, blank)) is not None:
        raise KeyFileError(f"is not used, for no key needs that much: {why}")
    try:
        document = tomllib.loads(text)
    # Its own error is a ValueError, and so is what Python says of a number of 5,000 digits.
    except (ValueError, RecursionError) as exc:
        raise KeyFileError(f"is not TOML: {keymistakes.not_toml(exc, text)}") from None
    strangers = [name for name in document if name != "key"]
    errors = [f"has an unknown field {_shown(name)}" for name in strangers[:_MAX_TOLD]]
    entries = document.get("key", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KeyFileError(*errors, "has a field 'key' that is not written as [[key]]")
    records: list[KeyRecord] = []
    numbers: list[int] = []
    mistakes: list[Mistake] = []
    for number, entry in enumerate(entries):
        unknown = [name for name in entry if name not in keyfields.FIELDS]
        found = [(name, f"unknown field {_shown(name)}") for name in unknown]
        found += keyfields.wrong(entry)
        mistakes += [Mistake(number, name, what) for name, what in found]
        if not found:
            records.append(keyfields.record(entry))
            numbers.append(number)
    mistakes += _repeated(records, numbers)
    if errors or mistakes:
        mistakes.sort(key=lambda mistake: mistake.number)
        errors += keymistakes.told(mistakes[:_MAX_TOLD], text, blank, len(entries))
        untold = len(strangers) + len(mistakes) - len(errors)
        raise KeyFileError(*errors, untold=untold)
    return records


def _read_bytes(path: Path) -> bytes:
    # Not blocking: opening a FIFO must not wait for somebody to write into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        # Of the open file, not of the path, which may name another file by then.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError("is not a regular file")
        if status.st_mode & WRITABLE_BY_OTHERS:
            raise KeyFileError("may be written by its group or by everyone; chmod go-w it")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise KeyFileError(f"is larger than {MAX_BYTES} bytes")
    return content


def _repeated(records: Sequence[KeyRecord], numbers: Sequence[int]) -> Iterator[Mistake]:
    """Two keys with one id could not be told apart; two ids for one key are a slip of the hand."""
    ids: dict[str, int] = {}
    digests: dict[bytes, int] = {}
    for number, record in zip(numbers, records, strict=True):
        if (before := ids.setdefault(record.key_id, number)) != number:
            what = f"has the id {record.key_id}, as a key before it"
            yield Mistake(number, "id", what, before)
        if (before := digests.setdefault(record.sha256, number)) != number:
            yield Mistake(number, "sha256", "has the sha256 of a key before it", before)


def _shown(name: str) -> str:
    return repr(name) if _PRINTABLE_NAME.fullmatch(name) else "(its name is not repeated here)"
