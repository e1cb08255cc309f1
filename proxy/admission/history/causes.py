"""Why the file of what keys have used cannot be read or written, in words that are fit for the log."""

import os
import sqlite3

# By the first part of SQLite's names of its errors, of which it has a hundred.
_WORDS = {
    "BUSY": "is locked by another program for longer than we wait",
    "LOCKED": "is locked by another program for longer than we wait",
    "FULL": "the disk is full",
    "NOTADB": "is not a database of SQLite",
    "CORRUPT": "is damaged",
    "IOERR": "the system failed to read or to write it",
    "ERROR": "is not as this program makes it",
    "TOOBIG": "is not as this program makes it",
    "CONSTRAINT": "is not as this program makes it",
    "MISMATCH": "is not as this program makes it",
    "NOLFS": "the disk takes no file of that size",
}
_UNWRITABLE = "cannot be written"
# What it says also where a file may be written and its folder may not: it needs a journal beside it.
_PERMISSION = {
    "READONLY": _UNWRITABLE,
    "CANTOPEN": "cannot be opened, or nothing written beside it",
    "PERM": _UNWRITABLE,
    "AUTH": _UNWRITABLE,
}

LEFT_BEHIND = (
    "has a journal of a process that was killed beside it, and cannot be read until a server has "
    "been started on it"
)
"""Of a file that is only read: nobody may play the journal back."""


def told(exc: sqlite3.Error) -> str:
    """What SQLite says went wrong; nothing of what was to be written."""
    name = getattr(exc, "sqlite_errorname", None)
    if name is None:
        # Python's own, of what it found in the file.
        return f"is not as this program makes it: {type(exc).__name__}"
    word = name.removeprefix("SQLITE_").partition("_")[0]
    if (what := _PERMISSION.get(word)) is not None:
        return f"{what}; {_who()}"
    return _WORDS.get(word, f"SQLite says {name}")


def unwritable() -> str:
    """As of SQLite, before it is asked."""
    return f"{_UNWRITABLE}; {_who()}"


def of_system(exc: OSError) -> str:
    """The reason in the system's words and, of a missing permission, who would need it."""
    why = f"cannot be opened: {exc.strerror}"
    return f"{why}; {_who()}" if isinstance(exc, PermissionError) else why


def _who() -> str:
    return f"user {os.geteuid()} must be able to write it and its folder, on a disk that can be written"
