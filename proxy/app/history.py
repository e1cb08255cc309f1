"""What keeps in a file what keys use, put together; first of all, for it may be a reason not to start."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proxy.admission.history import History, HistoryError, HistoryFile, Kept, look, seeds
from proxy.admission.rates.window import Counter
from proxy.app.clocks import Clocks
from proxy.auth.keys import KeyStore
from proxy.config import ConfigError, Settings
from proxy.telemetry.log import Log

FORGETFUL = (
    "some keys have tokens_per_day, and a restart gives each a new day: PROXY_USAGE_DB names a file "
    "that remembers, PROXY_REDIS_URL a server that does"
)
"""What is said where nothing outlives a restart."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that may be used.

    Attributes:
        kept: What it has of the days that still count.
        seeds: What the books of this process begin with.
    """

    file: HistoryFile
    kept: Kept
    seeds: dict[str, Counter]


def opened(settings: Settings, clocks: Clocks) -> Opened | None:
    """The file of ``PROXY_USAGE_DB``; None where there is none.

    Raises:
        ConfigError: It cannot be used.
    """
    if (path := settings.usage_db) is None:
        return None
    file = HistoryFile(path)
    today = _today(path, clocks)
    try:
        kept = file.begin(today)
    except HistoryError as exc:
        raise ConfigError([_told(path, exc)]) from exc
    return Opened(file, kept, seeds(kept.charged, today))


def usage_problems(settings: Settings, clocks: Clocks = Clocks()) -> list[str]:  # noqa: B008 - frozen
    """Why ``opened`` would raise, in its words; nothing is made for that, and nothing changed."""
    if (path := settings.usage_db) is None:
        return []
    try:
        look(path, _today(path, clocks))
    except HistoryError as exc:
        return [_told(path, exc)]
    return []


def _today(path: Path, clocks: Clocks) -> int:
    return History(HistoryFile(path), wall(clocks)).today()


def _told(path: Path, exc: HistoryError) -> str:
    return f"PROXY_USAGE_DB: {path} {exc}"


def wall(clocks: Clocks) -> Callable[[], float]:
    """Seconds since 1970: what the days of a file are counted by, for they outlive this machine's run."""
    return lambda: clocks.now().timestamp()


def keeper(opened: Opened, clocks: Clocks, log: Log) -> History:
    """What adds to the file, and tells when it cannot."""

    def changed(why: str | None) -> None:
        if why is None:
            log.server("usage_db_back")
        else:
            log.server("usage_db_bad", level="warning", problem=why)

    def lost(rows: int) -> None:
        log.server("usage_lost", level="error", rows=rows)

    return History(opened.file, wall(clocks), on_change=changed, on_lost=lost)


def is_forgetful(settings: Settings, keys: KeyStore) -> bool:
    """Whether a restart gives somebody a new day."""
    return keys.limited_by_day and not (settings.usage_db or settings.redis_url)


def remarks(settings: Settings, keys: KeyStore, opened: Opened | None, log: Log) -> None:
    """Tells, once the server listens, what its operator may want to know of all this."""
    if is_forgetful(settings, keys):
        log.server("usage_not_kept", level="warning", problem=FORGETFUL)
    if opened is not None and opened.kept.days_ahead:
        # Somebody has put the clock back, or it was wrong before.
        log.server("usage_db_ahead", level="warning", days=opened.kept.days_ahead)
