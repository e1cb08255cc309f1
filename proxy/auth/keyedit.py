"""Edits of a key file's text that leave every other byte of it as the operator wrote it.

tomlkit knows where a table's fields end and how they are written; headers, and what stands between
two keys, are never written anew. An edit whose outcome does not read as intended is no edit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Item, Table

from proxy.auth import keyfields, keylayout
from proxy.auth.keyfile import KeyFileError, parse
from proxy.auth.keys import KeyRecord

_TOO_UNUSUAL = "is written in a way that only a person can edit; write each key as [[key]]"
_HEAD = "# Hashes of keys, never the keys themselves. To change it: bulwark keys --help"


def append(text: str, entry: Mapping[str, object]) -> str:
    """The file with one key more, at its end.

    Args:
        text: The whole file; nothing, for a new one.
        entry: As the file has it, with nothing wrong in it; what is None is left out.

    Raises:
        KeyFileError: The file is not one that can be edited.
    """
    end = _line_end(text)
    given = {name: entry[name] for name in keyfields.FIELDS if entry.get(name) is not None}
    before = _ended(text if text.strip() else _HEAD, end)
    if not before.endswith(end + end):
        before += end
    lines = ["[[key]]", *(f"{name} = {_written(value)}" for name, value in given.items())]
    return _intended(before + end.join(lines) + end, [*parse(text), keyfields.record(given)])


def change(text: str, key_id: str, **fields: Any) -> str:
    """The file with these fields of one key set.

    Raises:
        KeyError: There is no such key.
        KeyFileError: The file is not one that can be edited.
    """
    records = parse(text)
    number = _number(records, key_id)
    text = _ended(text, _line_end(text))
    place = _place(text, number, len(records))
    records[number] = replace(records[number], **fields)
    for name, value in fields.items():
        _put(place.table, name, value, _line_end(text))
    return _intended(text[: place.body] + place.table.as_string() + text[place.end :], records)


def remove(text: str, key_id: str) -> str:
    """The file without one key; comments that are not among its fields stay.

    Raises:
        KeyError: There is no such key.
        KeyFileError: The file is not one that can be edited.
    """
    records = parse(text)
    number = _number(records, key_id)
    place = _place(text, number, len(records))
    del records[number]
    before, after = text[: place.header], text[place.tail :]
    if before.endswith(("\n\n", "\n\r\n")) or not before:
        after = after.removeprefix("\r\n").removeprefix("\n")
    changed = before + after
    # An empty file is what a slip of the hand leaves, and no server believes it.
    return _intended(changed if changed.strip() else _ended(_HEAD, _line_end(text)), records)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a key is: the offsets of its header, its fields, what follows these, and its end."""

    table: Table
    header: int
    body: int
    tail: int
    end: int


def _place(text: str, number: int, count: int) -> _Place:
    """Where the key of this number is; of a large file only that is given to tomlkit, which is slow."""
    headers = keylayout.headers(keylayout.blanked(text))
    if len(headers) != count:
        raise KeyFileError(_TOO_UNUSUAL)
    header, end = headers[number], [*headers, len(text)][number + 1]
    try:
        keys = tomlkit.parse(text[header:end]).get("key")
    except TOMLKitError:
        raise KeyFileError(_TOO_UNUSUAL) from None
    if not isinstance(keys, AoT) or len(keys.body) != 1:
        raise KeyFileError(_TOO_UNUSUAL)
    (table,) = keys.body
    written = table.as_string()
    body = end - len(written)
    if text[body:end] != written or body <= header:
        raise KeyFileError(_TOO_UNUSUAL)
    tail = end - sum(len(item.as_string()) for item in _trailing(table))
    return _Place(table, header, body, tail, end)


def _number(records: list[KeyRecord], key_id: str) -> int:
    for number, record in enumerate(records):
        if record.key_id == key_id:
            return number
    raise KeyError(key_id)


def _trailing(table: Table) -> list[Item]:
    """Comments and empty lines after the last field, which as a rule are about the next key."""
    found = []
    for name, item in reversed(table.value.body):
        if name is not None:
            break
        found.append(item)
    return found[::-1]


def _put(table: Table, name: str, value: object, line_end: str) -> None:
    if name in table:
        table[name] = value  # which keeps the comment beside it
        return
    body = table.value.body
    trailing = [(None, item) for item in _trailing(table)]
    del body[len(body) - len(trailing) :]
    item = tomlkit.item(value)
    item.trivia.indent = body[-1][1].trivia.indent if body else ""
    item.trivia.trail = line_end
    table.append(name, item)
    body.extend(trailing)


def _intended(text: str, records: list[KeyRecord]) -> str:
    if parse(text) != records:
        raise KeyFileError(_TOO_UNUSUAL)
    return text


def _ended(text: str, end: str) -> str:
    return text if not text or text.endswith("\n") else text + end


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _written(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(tomlkit.item(value).as_string())
