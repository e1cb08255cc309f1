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
from pathlib import Path

from proxy.admission.history import causes, table
from proxy.admission.history.table import HistoryError, Kept

KEPT_DAYS = 400
"""How many days are kept before today, or before the newest that is there, whichever is earlier."""

BUSY_SECONDS = 2.0
"""How long somebody else's lock is waited for."""

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
            table.check_whole(connection)
            connection.execute(table.SIGN)
            connection.execute(table.FORGET, (today, KEPT_DAYS))
            return table.kept(connection, today)

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
                if table.is_new(connection):
                    table.make(connection)
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
    table.check_mode(mode)
