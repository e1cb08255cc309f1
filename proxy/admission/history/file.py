"""The file of what keys have used: SQLite, one table, opened anew for each transaction.

Anew, so that a file that somebody has replaced or taken away is noticed and not written to after its
end; it takes a millisecond every few seconds. Whatever is done is one transaction that holds the lock
from its beginning: two proxies that share a file add up, and a process that is killed in the middle
leaves what was there before.
"""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxy.admission.history import causes

VERSION = 1
"""Of the table, in ``user_version``."""

KEPT_DAYS = 400
"""How many days before today are kept."""

BUSY_SECONDS = 2.0
"""How long somebody else's lock is waited for."""

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
_SIGN = f"PRAGMA user_version = {VERSION}"
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (day, key_id) DO UPDATE SET
    charged_tokens = charged_tokens + excluded.charged_tokens,
    requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    output_tokens = output_tokens + excluded.output_tokens
"""

Rows = Mapping[tuple[int, str], Sequence[int]]
"""By day and key: the tokens charged to its day, requests, tokens of prompts, tokens of output."""


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


class HistoryFile:
    """One such file. Each method may take as long as the disk does, and belongs into a thread.

    Args:
        path: Where it is, or is to be made, with mode 0600. A link is followed, as with the key file.
        busy_seconds: How long somebody else's lock is waited for.
    """

    def __init__(self, path: Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = path
        self._busy_seconds = busy_seconds

    def begin(self, today: int) -> Kept:
        """Makes the file, or sees whether it is whole and may be written; forgets what is too old.

        Raises:
            HistoryError: It cannot be used.
        """
        with self._transaction() as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise HistoryError("is damaged")
            connection.execute(_SIGN)
            connection.execute("DELETE FROM usage WHERE day < ?", (today - KEPT_DAYS,))
            (newest,) = connection.execute("SELECT max(day) FROM usage").fetchone()
            rows = connection.execute(
                "SELECT key_id, day, charged_tokens FROM usage"
                # By hand somebody may have written a text.
                " WHERE day BETWEEN ? AND ? AND typeof(charged_tokens) = 'integer'"
                " AND charged_tokens > 0",
                (today - 1, today + 1),
            )
            charged: dict[str, dict[int, int]] = {}
            for key_id, day, tokens in rows:
                charged.setdefault(key_id, {})[day] = tokens
        return Kept(charged, max(0, newest - today) if newest is not None else 0)

    def add(self, rows: Rows) -> None:
        """Adds to what the file has, all or nothing.

        Raises:
            HistoryError: Nothing was added.
        """
        with self._transaction() as connection:
            connection.executemany(_ADD, ((*key, *numbers) for key, numbers in rows.items()))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            _claim(self.path)
            with contextlib.closing(self._connect()) as connection:
                connection.execute("BEGIN IMMEDIATE")
                _know(connection)
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as exc:
            raise HistoryError(causes.told(exc)) from exc
        except OSError as exc:
            raise HistoryError(causes.of_system(exc)) from exc

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            # Not made by SQLite: it would have the mode that the umask leaves.
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
        )


def _claim(path: Path) -> None:
    """Makes the file where there is none, and lets pass what is safe to trust.

    Without opening what is there: by closing it again this process would lose SQLite's locks on it.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        os.close(os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR))
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise HistoryError("is a folder")
    if not stat.S_ISREG(mode):
        raise HistoryError("is not a regular file")
    if mode & _WRITABLE_BY_OTHERS:
        raise HistoryError("may be written by its group or by everyone; chmod go-w it")


def _know(connection: sqlite3.Connection) -> None:
    """Makes the table in an empty database; lets no other pass than one of ours, of this version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (application or version or tables):
        for statement in _MAKE.split(";")[:-1]:
            connection.execute(statement)
        connection.execute(_SIGN)
    elif application != _APPLICATION:
        raise HistoryError("is a database of another program")
    elif version != VERSION:
        raise HistoryError(
            f"has version {version}, and this program knows {VERSION}: it was written by a newer one"
        )
