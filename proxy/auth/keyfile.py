"""Reads ``PROXY_KEYS_FILE``: TOML, hashed keys, refused whole if anything in it is wrong.

::

    [[key]]
    id = "k3v9x2ab"            # the 8 characters after sk-bw-
    name = "alice"             # optional
    sha256 = "9f86d0818…"      # of the whole key, 64 hex digits
    expires = 2027-01-31T00:00:00Z   # optional, with a time zone
    disabled = false           # optional

No message repeats a value, nor a name that might be one: somebody will paste a key in here.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from proxy.auth.keys import KeyRecord, is_public_id

MAX_BYTES = 8 * 1024 * 1024
_MAX_NAME_CHARS = 100
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_HEADER = re.compile(r"[ \t]*\[\[[ \t]*key[ \t]*\]\]")
# Longer than any field of ours and shorter than any key.
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_]{1,20}")


class KeyFileError(Exception):
    """A key file that is not used. ``errors`` has a sentence for each thing wrong with it."""

    def __init__(self, *errors: str) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


def read(path: Path) -> list[KeyRecord]:
    """The keys in a file.

    Raises:
        KeyFileError: It cannot be read, is not safe to trust, or has anything wrong in it.
    """
    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except OSError as exc:
        raise KeyFileError(f"cannot be read: {why_unreadable(exc)}") from exc
    except UnicodeDecodeError as exc:
        raise KeyFileError("is not UTF-8 text") from exc
    return parse(text)


def why_unreadable(exc: OSError) -> str:
    """The reason in the system's words and, of a missing permission, who would need it.

    In a container the file may be readable to everybody that its owner knows of.
    """
    if isinstance(exc, PermissionError):
        return (
            f"{exc.strerror}; user {os.geteuid()} must be able to read it and to enter its folders"
        )
    return str(exc.strerror)


def parse(text: str) -> list[KeyRecord]:
    """The keys in the text of a key file.

    Raises:
        KeyFileError: With every error in it, each with its line.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        raise KeyFileError(f"is not TOML: {_where(exc)}") from None
    errors = [f"has an unknown field {_shown(name)}" for name in document if name != "key"]
    entries = document.get("key", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KeyFileError(*errors, "has a field 'key' that is not written as [[key]]")
    records: list[KeyRecord] = []
    for place, entry in zip(_places(text, len(entries)), entries, strict=True):
        try:
            records.append(_record(entry))
        except KeyFileError as exc:
            errors += [f"{place}: {error}" for error in exc.errors]
    errors += _repeated(records)
    if errors:
        raise KeyFileError(*errors)
    return records


def _read_bytes(path: Path) -> bytes:
    # Not blocking: opening a FIFO must not wait for somebody to write into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        # Of the open file, not of the path, which may name another file by then.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError("is not a regular file")
        if status.st_mode & _WRITABLE_BY_OTHERS:
            raise KeyFileError("may be written by its group or by everyone; chmod go-w it")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise KeyFileError(f"is larger than {MAX_BYTES} bytes")
    return content


def _record(entry: dict[str, object]) -> KeyRecord:
    """One ``[[key]]``, or all that is wrong with it."""
    errors = [f"unknown field {_shown(name)}" for name in entry if name not in _FIELDS]
    for name, (required, is_right, expected) in _FIELDS.items():
        if name not in entry:
            if required:
                errors.append(f"{name} is missing")
        elif not is_right(entry[name]):
            errors.append(f"{name} must be {expected}")
    if errors:
        raise KeyFileError(*errors)
    expires = entry.get("expires")
    return KeyRecord(
        key_id=str(entry["id"]),
        sha256=bytes.fromhex(str(entry["sha256"])),
        name=str(entry.get("name", "")),
        expires=expires if isinstance(expires, datetime) else None,
        disabled=entry.get("disabled") is True,
    )


def _is_id(value: object) -> bool:
    return isinstance(value, str) and is_public_id(value)


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME_CHARS and value.isprintable()


def _is_moment(value: object) -> bool:
    # A local time would expire at another moment on another machine.
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


# Name -> whether it is required, whether a value is right, what it must be.
_FIELDS: dict[str, tuple[bool, Callable[[object], bool], str]] = {
    "id": (True, _is_id, "the 8 lower-case letters and digits that follow sk-bw- in the key"),
    "sha256": (True, _is_sha256, "the SHA-256 of the whole key as 64 hexadecimal digits"),
    "name": (False, _is_name, f"at most {_MAX_NAME_CHARS} printable characters"),
    "expires": (False, _is_moment, "a date and time with a zone, such as 2027-01-31T00:00:00Z"),
    "disabled": (False, _is_boolean, "true or false"),
}


def _repeated(records: list[KeyRecord]) -> Iterator[str]:
    """Two keys with one id could not be told apart; two ids for one key are a slip of the hand."""
    ids: set[str] = set()
    digests: set[bytes] = set()
    for record in records:
        if record.key_id in ids:
            yield f"has two keys with the id {record.key_id}"
        if record.sha256 in digests:
            yield f"has the sha256 of key {record.key_id} twice"
        ids.add(record.key_id)
        digests.add(record.sha256)


def _places(text: str, count: int) -> list[str]:
    """Where each key is: its line if the headers can be counted, else its number."""
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    if len(lines) == count:
        return [f"the key at line {line}" for line in lines]
    return [f"key number {number}" for number in range(1, count + 1)]


def _where(exc: Exception) -> str:
    """The place in tomllib's message, without what it says was found there."""
    place = re.search(r"at line \d+, column \d+|at end of document", str(exc))
    return f"there is a mistake {place[0] if place else 'in its structure'}"


def _shown(name: str) -> str:
    return repr(name) if _PRINTABLE_NAME.fullmatch(name) else "(its name is not repeated here)"
