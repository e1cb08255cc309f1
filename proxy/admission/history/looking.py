"""Reads the file of what keys have used, and neither makes nor changes anything: for the commands."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proxy.admission.history import causes, table
from proxy.admission.history.file import BUSY_SECONDS
from proxy.admission.history.table import HistoryError

# Of a process that was killed in the middle: whoever writes next plays it back.
_LEFT_BEHIND = "SQLITE_READONLY_ROLLBACK"
_LAST_DAY = 2_932_896  # 9999-12-31; what is behind it was not written by a clock

_SUMS = """
SELECT {by}, {sums} FROM usage
WHERE typeof(day) = 'integer' AND day BETWEEN ? AND ?
GROUP BY {by} ORDER BY {by}
"""
# By hand somebody may have written a text.
_SUM = "sum(CASE typeof({name}) WHEN 'integer' THEN {name} ELSE 0 END)"
_NUMBERS = ("requests", "prompt_tokens", "output_tokens", "charged_tokens")


@dataclass(frozen=True, slots=True)
class Sums:
    """What was used on a day, or by a key.

    Attributes:
        of: The number of the day, or the id of the key.
        charged_tokens: What counted against limits of tokens a day.
    """

    of: int | str
    requests: int
    prompt_tokens: int
    output_tokens: int
    charged_tokens: int


def look(path: Path, today: int, *, busy_seconds: float = BUSY_SECONDS) -> None:
    """Sees whether ``HistoryFile.begin`` could make use of what is there, or of what is not.

    Raises:
        HistoryError: It could not; in the same words.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        _check_room(path)
        return
    except OSError as exc:
        raise HistoryError(causes.of_system(exc)) from exc
    table.check_mode(mode)
    # What may not even be read SQLite tells of.
    if os.access(path, os.R_OK) and not os.access(path, os.W_OK):
        raise HistoryError(causes.unwritable())
    try:
        with _reading(path, busy_seconds) as connection:
            if not table.is_new(connection):
                table.check_whole(connection)
                table.kept(connection, today)
    except HistoryError as exc:
        if not _is_left_behind(exc.__cause__):
            raise
    # For the journal.
    if not os.access(path.resolve().parent, os.W_OK | os.X_OK):
        raise HistoryError(causes.unwritable())


def sums_by_day(path: Path, since: int, *, busy_seconds: float = BUSY_SECONDS) -> list[Sums]:
    """What all keys have used on each day, from ``since`` on.

    Raises:
        HistoryError: There is no such file, or it cannot be read.
    """
    return _sums(path, "day", since, busy_seconds)


def sums_by_key(path: Path, since: int, *, busy_seconds: float = BUSY_SECONDS) -> list[Sums]:
    """What each key has used from the day ``since`` on.

    Raises:
        HistoryError: There is no such file, or it cannot be read.
    """
    return _sums(path, "key_id", since, busy_seconds)


def _sums(path: Path, by: str, since: int, busy_seconds: float) -> list[Sums]:
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise HistoryError(f"cannot be opened: {exc.strerror}") from exc
    table.check_mode(mode)
    if not os.access(path, os.R_OK):
        raise HistoryError(f"cannot be opened: {os.strerror(errno.EACCES)}")
    sums = ", ".join(_SUM.format(name=name) for name in _NUMBERS)
    with _reading(path, busy_seconds) as connection:
        if table.is_new(connection):
            return []
        rows = connection.execute(_SUMS.format(by=by, sums=sums), (since, _LAST_DAY))
        return [Sums(*row) for row in rows]


def _check_room(path: Path) -> None:
    """Whether a file may be made there; of a link, where it leads."""
    folder = path.resolve().parent
    try:
        disk = os.statvfs(folder)
    except OSError as exc:
        raise HistoryError(causes.of_system(exc)) from exc
    number = 0
    if disk.f_flag & os.ST_RDONLY:
        number = errno.EROFS
    elif not os.access(folder, os.W_OK | os.X_OK):
        number = errno.EACCES
    if number:
        raise HistoryError(causes.of_system(OSError(number, os.strerror(number))))


@contextlib.contextmanager
def _reading(path: Path, busy_seconds: float) -> Iterator[sqlite3.Connection]:
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(
            sqlite3.connect(uri, uri=True, timeout=busy_seconds, isolation_level=None)
        ) as connection:
            # So that all of it is of one moment.
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as exc:
        if _is_left_behind(exc):
            raise HistoryError(causes.LEFT_BEHIND) from exc
        raise HistoryError(causes.told(exc)) from exc


def _is_left_behind(exc: BaseException | None) -> bool:
    return getattr(exc, "sqlite_errorname", None) == _LEFT_BEHIND
