"""Edits of a key file's text that leave every other byte of it as the operator wrote it.

tomlkit knows where a table's fields end and how they are written; headers, and what stands between
two keys, are never written anew. An edit whose outcome does not read as intended is no edit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Item, Table

from proxy.auth import keyfields
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
    records = [
        replace(record, **fields) if record.key_id == key_id else record for record in parse(text)
    ]
    text = _ended(text, _line_end(text))
    place = _place(text, key_id)
    for name, value in fields.items():
        _put(place.table, name, value, _line_end(text))
    return _intended(text[: place.body] + place.table.as_string() + text[place.end :], records)


def remove(text: str, key_id: str) -> str:
    """The file without one key; comments that are not among its fields stay.

    Raises:
        KeyError: There is no such key.
        KeyFileError: The file is not one that can be edited.
    """
    records = [record for record in parse(text) if record.key_id != key_id]
    place = _place(text, key_id)
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


def _place(text: str, key_id: str) -> _Place:
    try:
        keys = tomlkit.parse(text).get("key")
    except TOMLKitError:
        raise KeyFileError(_TOO_UNUSUAL) from None
    if not isinstance(keys, AoT):
        raise KeyFileError(_TOO_UNUSUAL)
    for place in _from_the_end(text, keys):
        if place.table.get("id") == key_id:
            return place
    raise KeyError(key_id)


def _from_the_end(text: str, keys: AoT) -> Iterator[_Place]:
    """The places of the keys, last one first: between two bodies there is one header line."""
    end = len(text)
    for table in reversed(keys.body):
        written = table.as_string()
        body = end - len(written)
        if text[body:end] != written or body <= 0:
            raise KeyFileError(_TOO_UNUSUAL)
        header = text.rfind("\n", 0, body - 1) + 1
        tail = end - sum(len(item.as_string()) for item in _trailing(table))
        yield _Place(table, header, body, tail, end)
        end = header


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
