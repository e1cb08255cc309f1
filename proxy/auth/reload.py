"""Watches the key file and puts what is in it in force, without stopping for anything in flight.

By looking at it twice a second: that sees every way to replace a file (rename, a Kubernetes link,
a bind mount, a network's file system), which notifications do not. A file that is not used leaves
the keys in force that were; a file without a single key that says so takes them all away, because a
key that was taken out must not live on.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from proxy.auth import keyfile
from proxy.auth.keyfile import KeyFileError, UnreadableKeyFileError
from proxy.auth.keys import Change, KeyRecord, KeyStore

RELOADED = "keys_reloaded"
"""The event when other keys are in force, or were asked for; with how many there are from the file,
and how many of them were added, removed and changed."""

NOT_RELOADED = "keys_not_reloaded"
"""The event when a file is not used, once for each thing that is wrong; with that problem."""

CAPPED = "keys_capped"
"""The event when keys in force were given more than they get, at the start and with other keys."""

_SHOWN_ERRORS = 5
# A new file is looked at again before it is read: editors empty a file and then write it.
_SETTLING = 0.25
# One that is written all the time is read all the same.
_MAX_SETTLING_TURNS = 2

_Look = tuple[int, ...] | str


class KeyFileWatch:
    """Keeps a store's keys those of a file.

    Args:
        path: The file.
        store: Whose keys they are; it has those of the file already.
        on_event: Told of ``RELOADED``, ``NOT_RELOADED`` and ``CAPPED``, on the loop.
        on_count: Called, on the loop, when the number of keys that may be used is another one, by
            another file or because one has expired; and once in the beginning.
        interval_seconds: Between two looks.

    Attributes:
        problem: Why the file is not in force as it is, or that it lets nobody in; None if all is
            well. Fit for logs.
        reloads: How often other keys were put in force.
        failures: How often a file was found that is not used.
    """

    def __init__(
        self,
        path: Path,
        store: KeyStore,
        *,
        on_event: Callable[[str, Mapping[str, object]], None],
        on_count: Callable[[], None],
        interval_seconds: float = 0.5,
    ) -> None:
        self._path = path
        self._store = store
        self._on_event = on_event
        self._on_count = on_count
        self._interval_seconds = interval_seconds
        self._asked = asyncio.Event()
        self._seen: _Look = ""
        self._done: _Look | None = None
        self._settling = 0
        self._usable: int | None = None
        self.problem: str | None = None
        self.reloads = 0
        self.failures = 0

    @property
    def keys(self) -> int:
        """How many keys of the file are in force."""
        return self._store.from_file

    def request(self) -> None:
        """Has the file read now, and told about whether or not it has changed; on the loop."""
        self._asked.set()

    async def run(self) -> None:
        """Watches until it is cancelled."""
        self._tell_capped()
        while True:
            asked = self._asked.is_set()
            self._asked.clear()
            pause = self._interval_seconds * (_SETTLING if await self._turn(asked=asked) else 1)
            try:
                async with asyncio.timeout(pause):
                    await self._asked.wait()
            except TimeoutError:
                continue

    async def _turn(self, *, asked: bool) -> bool:
        """One look, at the clock too; says whether the next should come soon."""
        soon = await self._read_if_new(asked=asked)
        usable = self._store.usable
        if usable != self._usable:
            self._usable = usable
            self._on_count()
        return soon

    async def _read_if_new(self, *, asked: bool) -> bool:
        """What follows from one look at the file; says the same."""
        # In a thread, for a network's file system may take its time.
        look = await asyncio.to_thread(_look, self._path)
        settled, self._seen = look == self._seen, look
        if not asked:
            if look == self._done:
                return False
            if not settled and self._settling < _MAX_SETTLING_TURNS:
                self._settling += 1
                return True
        self._settling = 0
        try:
            change = await asyncio.to_thread(self._load, look)
        except _ChangedMeanwhileError:
            if asked:
                self.request()
            return True
        except KeyFileError as exc:
            self._done = None if isinstance(exc, UnreadableKeyFileError) else look
            self._refused(_summary(exc.errors, exc.count), asked=asked)
        else:
            # One that was read without having settled is looked at once more.
            self._done = look if settled else None
            self._accepted(change, asked=asked)
        return False

    def _load(self, look: _Look) -> Change:
        """Puts the keys in force, in a thread; says how many are others."""
        try:
            records = _records(self._path)
        except KeyFileError:
            if _look(self._path) != look:
                raise _ChangedMeanwhileError from None
            raise
        # What was read may be half of two files otherwise.
        if _look(self._path) != look:
            raise _ChangedMeanwhileError
        return self._store.replace(records)

    def _accepted(self, change: Change, *, asked: bool) -> None:
        recovered = self.problem is not None
        self.problem = None if len(self._store) else "holds no key: every request is refused"
        self.reloads += bool(change)
        if change or asked or (recovered and self.problem is None):
            about = {"keys": self.keys, "problem": self.problem}
            self._on_event(RELOADED, {**about, **dataclasses.asdict(change)})
        if change or asked:
            self._tell_capped()

    def _tell_capped(self) -> None:
        if capped := tuple(self._store.capped()):
            self._on_event(CAPPED, {"keys": self.keys, "problem": _summary(capped, len(capped))})

    def _refused(self, problem: str, *, asked: bool) -> None:
        if problem == self.problem and not asked:
            return
        self.problem = problem
        self.failures += 1
        self._on_event(NOT_RELOADED, {"keys": self.keys, "problem": problem})


class _ChangedMeanwhileError(Exception):
    """Somebody wrote the file while it was read."""


def _records(path: Path) -> list[KeyRecord]:
    text = keyfile.read_text(path)
    keyfile.check_not_empty(text)
    return keyfile.parse(text)


def _look(path: Path) -> _Look:
    """What is different whenever the file, or what is in it, is another one."""
    try:
        status = path.stat()
    except OSError as exc:
        return str(exc.errno)
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _summary(sentences: tuple[str, ...], count: int) -> str:
    """The first of so many: a line of the log has an end."""
    more = count - _SHOWN_ERRORS
    return "; ".join(sentences[:_SHOWN_ERRORS]) + (f"; and {more} more" if more > 0 else "")
