"""The table of what keys have used: whose database it is in, how it is made, and what is read of it."""

import sqlite3
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

VERSION = 1
"""Of the table, in ``user_version``."""

_APPLICATION = 0x42756C77  # "Bulw", in application_id: whose database it is
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_MAKE = f"""
CREATE TABLE usage (
    day INTEGER NOT NULL,
    key_id TEXT NOT NULL,
    charged_tokens INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key_id)
) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION};
"""
# Also where it is that already: it is the write that shows at the start that there can be one.
SIGN = f"PRAGMA user_version = {VERSION}"


# A clock that is far ahead at one start must not cost all that there is.
FORGET = """
DELETE FROM usage
WHERE day < min(?, (SELECT max(day) FROM usage WHERE typeof(day) = 'integer')) - ?
"""


class HistoryError(Exception):
    """The file cannot be used as it is. The text says why, without its name; fit for the log."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the file has of the days that still count.

    Attributes:
        charged: By key and day, the tokens charged to it: yesterday's, today's and, where the clock
            was put back, tomorrow's.
        days_ahead: How far its newest day is in the future.
    """

    charged: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    days_ahead: int = 0


def check_mode(mode: int) -> None:
    """Refuses what is no file, and what others may write.

    Raises:
        HistoryError: It is one of these.
    """
    if stat.S_ISDIR(mode):
        raise HistoryError("is a folder")
    if not stat.S_ISREG(mode):
        raise HistoryError("is not a regular file")
    if mode & _WRITABLE_BY_OTHERS:
        raise HistoryError("may be written by its group or by everyone; chmod go-w it")


def check_whole(connection: sqlite3.Connection) -> None:
    """Reads all of it.

    Raises:
        HistoryError: Something is not where it should be.
    """
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise HistoryError("is damaged")


def is_new(connection: sqlite3.Connection) -> bool:
    """Whether it is empty and belongs to nobody yet.

    Raises:
        HistoryError: It is not one of ours, of this version.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (application or version or tables):
        return True
    if application != _APPLICATION:
        raise HistoryError("is a database of another program")
    if version != VERSION:
        raise HistoryError(
            f"has version {version}, and this program knows {VERSION}: it was written by a newer one"
        )
    return False


def make(connection: sqlite3.Connection) -> None:
    """Makes it, in an empty database."""
    for statement in _MAKE.split(";")[:-1]:
        connection.execute(statement)
    connection.execute(SIGN)


def kept(connection: sqlite3.Connection, today: int) -> Kept:
    """What is in it of the days that still count."""
    # By hand somebody may have written a text.
    (newest,) = connection.execute(
        "SELECT max(day) FROM usage WHERE typeof(day) = 'integer'"
    ).fetchone()
    rows = connection.execute(
        "SELECT key_id, day, charged_tokens FROM usage"
        " WHERE day BETWEEN ? AND ? AND typeof(key_id) = 'text'"
        " AND typeof(charged_tokens) = 'integer' AND charged_tokens > 0",
        (today - 1, today + 1),
    )
    charged: dict[str, dict[int, int]] = {}
    for key_id, day, tokens in rows:
        charged.setdefault(key_id, {})[day] = tokens
    return Kept(charged, max(0, newest - today) if newest is not None else 0)
