"""The watch over the key file: what is taken, what is not, and what is said about it."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from proxy.auth import keyfile, reload
from proxy.auth.keys import KeyRecord, KeyStore, digest, environment_records
from proxy.auth.reload import CAPPED, NOT_RELOADED, RELOADED, KeyFileWatch
from proxy.errors import InvalidApiKey
from proxy.principal import Allowance

SECONDS = 10
NO_CEILINGS = Allowance()
TURNS = 4
"""After so many looks at a file that stays as it is there is nothing more to find."""


def own_key(public_id: str) -> str:
    """A key of our own form."""
    return f"sk-bw-{public_id}-{'s' * 43}"


def text_of(*public_ids: str, more: str = "") -> str:
    """A file with these keys."""
    return "".join(
        f'[[key]]\nid = "{public_id}"\n'
        f'sha256 = "{digest(own_key(public_id).encode()).hex()}"\n{more}'
        for public_id in public_ids
    )


ALICE, BOB = "aliceali", "bobbobbo"


def counts(added: int = 0, removed: int = 0, changed: int = 0) -> dict[str, int]:
    """How many keys are others."""
    return {"added": added, "removed": removed, "changed": changed}


class Watched:
    """A file with one key, the store that has it, and the watch between them."""

    def __init__(
        self, folder: Path, *, environment: bool = False, ceilings: Allowance = NO_CEILINGS
    ) -> None:
        self.path = folder / "keys.toml"
        self.put(text_of(ALICE))
        records = environment_records(["x" * 32] if environment else [])
        self.now = datetime(2026, 6, 1, tzinfo=UTC)
        self.store = KeyStore(
            records, keyfile.read(self.path), ceilings=ceilings, now=lambda: self.now
        )
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.happened = asyncio.Event()
        self.counted: list[int] = []
        self.watch = KeyFileWatch(
            self.path,
            self.store,
            on_event=self.note,
            on_count=lambda: self.counted.append(self.store.usable),
            interval_seconds=0.01,
        )

    def note(self, event: str, fields: Mapping[str, object]) -> None:
        """What the watch says."""
        self.events.append((event, fields))
        self.happened.set()

    def put(self, text: str) -> None:
        """Writes the file anew, under another name first."""
        new = self.path.with_name("new")
        new.write_text(text)
        new.chmod(0o600)
        new.rename(self.path)

    def clear(self) -> None:
        """Removes whatever has the file's name."""
        if self.path.is_dir():
            self.path.rmdir()
        else:
            self.path.unlink(missing_ok=True)

    async def look(self, turns: int = TURNS, *, asked: bool = False) -> None:
        """Lets the watch look so many times."""
        for turn in range(turns):
            await self.watch._turn(asked=asked and not turn)

    def admits(self, public_id: str) -> bool:
        """Whether this key gets in."""
        try:
            self.store.authenticate(own_key(public_id).encode())
        except InvalidApiKey:
            return False
        return True


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """One whose only keys are those of the file."""
    return Watched(tmp_path)


async def test_a_file_as_it_was_is_no_news(watched: Watched) -> None:
    """Also when it is written again with the same keys in it."""
    await watched.look()
    watched.put("# the team\n" + text_of(ALICE))
    await watched.look()
    assert watched.events == []
    assert (watched.watch.reloads, watched.watch.failures, watched.watch.keys) == (0, 0, 1)


async def test_how_many_may_be_used_is_told_when_it_changes(watched: Watched) -> None:
    """At first, by another file, and when time passes and the file does not change."""
    await watched.look()
    assert watched.counted == [1]
    watched.put(text_of(ALICE, BOB, more="expires = 2026-06-01T00:00:01Z\n") + text_of("carolcar"))
    await watched.look()
    assert watched.counted == [1, 3]
    watched.now += timedelta(seconds=1)
    await watched.look()
    assert watched.counted == [1, 3, 1]
    assert [event for event, _ in watched.events] == [RELOADED]


async def test_a_change_between_the_first_reading_and_the_watch_is_seen(watched: Watched) -> None:
    """The server reads the file, and begins to watch it a moment later."""
    watched.put(text_of(BOB))
    await watched.look()
    assert (watched.admits(ALICE), watched.admits(BOB)) == (False, True)


def in_place(path: Path, text: str) -> None:
    """As an editor without a second file does."""
    path.write_text(text)


def by_rename(path: Path, text: str) -> None:
    """As ``sed -i`` does, and ``bulwark keys``."""
    new = path.with_name("sedX")
    new.write_text(text)
    new.chmod(0o600)
    new.rename(path)


def by_backup(path: Path, text: str) -> None:
    """As vim does."""
    path.rename(path.with_name("keys.toml~"))
    path.write_text(text)
    path.chmod(0o600)


def by_link(path: Path, text: str) -> None:
    """As Kubernetes does: the file is a link into a folder that is a link."""
    folder = path.with_name("..2026")
    folder.mkdir()
    by_rename(folder / "keys.toml", text)
    path.with_name("..data").symlink_to("..2026")
    path.unlink()
    path.symlink_to("..data/keys.toml")


@pytest.mark.parametrize("write", [in_place, by_rename, by_backup, by_link])
async def test_other_keys_are_in_force(
    watched: Watched, write: Callable[[Path, str], None]
) -> None:
    """However the file was written; one line says how many there are."""
    await watched.look()
    write(watched.path, text_of(BOB, "carolcar"))
    await watched.look()
    assert (watched.admits(ALICE), watched.admits(BOB)) == (False, True)
    assert watched.events == [(RELOADED, {"keys": 2, "problem": None, **counts(2, 1)})]
    assert (watched.watch.reloads, watched.watch.keys, watched.watch.problem) == (1, 2, None)


async def test_a_change_of_terms_is_in_force(watched: Watched) -> None:
    """Of the same keys, with the same size and the same time of last writing."""
    watched.put(text_of(ALICE, more="concurrency = 1\n"))
    await watched.look()
    before = watched.path.stat()
    in_place(watched.path, text_of(ALICE, more="concurrency = 2\n"))
    os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    await watched.look()
    assert watched.store.authenticate(own_key(ALICE).encode()).allowance.concurrency == 2
    told = [(fields["added"], fields["removed"], fields["changed"]) for _, fields in watched.events]
    assert told == [(0, 0, 1), (0, 0, 1)]


async def test_what_keys_are_given_and_do_not_get_is_said(tmp_path: Path) -> None:
    """At the start, with other keys and at a request; once each, and not where nothing is."""
    watched = Watched(tmp_path, ceilings=Allowance(max_prompt_chars=100))
    watched.put(text_of(ALICE, more="max_prompt_chars = 101\n"))
    await watched.look()
    watched.put(text_of(ALICE, more="max_prompt_chars = 100\n"))
    await watched.look()
    watched.put(text_of(*(f"alice{n:03}" for n in range(9)), more="max_prompt_chars = 101\n"))
    await watched.look()
    await watched.look(1, asked=True)
    running = asyncio.create_task(watched.watch.run())
    await asyncio.sleep(0)
    running.cancel()
    told = [str(fields["problem"]) for event, fields in watched.events if event == CAPPED]
    one = "max_prompt_chars 101 of key {} is over the ceiling of 100, which counts (PROXY_MAX_PROMPT_CHARS_CEILING; while that is 0, PROXY_MAX_PROMPT_CHARS)"
    assert told[0] == one.format(ALICE)
    assert told[1] == told[2] == told[3]
    assert told[1].startswith(one.format("alice000") + "; ")
    assert told[1].endswith(one.format("alice004") + "; and 4 more")
    assert len(told) == 4


def fifo(path: Path) -> None:
    """A pipe without a writer."""
    os.mkfifo(path, 0o600)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file that was emptied": (lambda path: path.write_text(""), "is empty"),
    "one of blank lines": (lambda path: path.write_text("\n \n"), "is empty"),
    "junk": (lambda path: path.write_bytes(os.urandom(64) + b"\xff"), "is not UTF-8"),
    "no TOML": (lambda path: path.write_text("[[key]"), "is not TOML"),
    "a mistake in a key": (
        lambda path: path.write_text(text_of(BOB, more="model = 1\n")),
        "the key at line 1: unknown field 'model'",
    ),
    "nothing": (lambda path: None, "cannot be read: No such file"),
    "a folder": (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    "a pipe": (fifo, "not a regular file"),
    "a circle of links": (lambda path: path.symlink_to(path), "cannot be read: Too many"),
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_file_that_is_not_used_leaves_the_last_keys(watched: Watched, bad: str) -> None:
    """Said once, shown while it lasts, and over by itself."""
    make, problem = BAD[bad]
    await watched.look()
    watched.clear()
    make(watched.path)
    if watched.path.is_file():
        watched.path.chmod(0o600)
    await watched.look()
    assert watched.admits(ALICE)
    ((event, fields),) = watched.events
    assert (event, fields["keys"]) == (NOT_RELOADED, 1)
    assert problem in str(fields["problem"])
    assert (watched.watch.problem, watched.watch.failures) == (fields["problem"], 1)
    watched.clear()
    watched.put(text_of(ALICE, BOB))
    await watched.look()
    assert watched.admits(BOB)
    assert watched.events[1:] == [(RELOADED, {"keys": 2, "problem": None, **counts(1)})]
    assert (watched.watch.problem, watched.watch.reloads) == (None, 1)


async def test_the_same_file_again_ends_a_problem(watched: Watched) -> None:
    """Which is worth a line, though no other keys are in force."""
    watched.path.chmod(0o666)
    await watched.look()
    watched.path.chmod(0o600)
    await watched.look()
    assert [event for event, _ in watched.events] == [NOT_RELOADED, RELOADED]
    assert "chmod go-w" in str(watched.events[0][1]["problem"])
    assert (watched.watch.reloads, watched.watch.failures) == (0, 1)


async def test_each_problem_is_said_once(watched: Watched) -> None:
    """Another mistake is another line; the same one in another place of the file is, too."""
    for text in ("[[key]", "[[key] # soon", "\n[[key]", "\n[[key] # soon", ""):
        watched.path.write_text(text)
        await watched.look()
    problems = [fields["problem"] for _, fields in watched.events]
    assert len(problems) == len(set(problems)) == 3


async def test_a_file_full_of_mistakes_is_a_line_with_an_end(watched: Watched) -> None:
    """The first five, and how many more."""
    watched.path.write_text("[[key]]\n" * 1000)
    await watched.look()
    assert str(watched.watch.problem).endswith("; and 1995 more")
    assert len(str(watched.watch.problem)) < 500


async def test_a_file_that_cannot_be_read_is_tried_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is back does not change the file."""
    real = os.open
    broken = True

    def open_(path: Path, *arguments: int) -> int:
        if broken:
            raise OSError(5, "Input/output error")
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", open_)
    watched.watch.request()
    await watched.look()
    assert watched.watch.problem == "cannot be read: Input/output error"
    broken = False
    await watched.look()
    assert watched.watch.problem is None


async def test_a_file_without_keys_that_says_so_is_in_force(watched: Watched) -> None:
    """Nobody gets in: a key that was deleted must not live on because it was the last."""
    await watched.look()
    watched.put("# nobody\n")
    await watched.look()
    assert not watched.admits(ALICE)
    problem = "holds no key: every request is refused"
    assert watched.events == [(RELOADED, {"keys": 0, "problem": problem, **counts(0, 1)})]
    assert watched.watch.problem == problem
    watched.put(text_of(BOB))
    await watched.look()
    assert watched.admits(BOB)
    assert watched.watch.problem is None


async def test_a_file_without_keys_beside_keys_of_the_environment(tmp_path: Path) -> None:
    """It is no problem; an emptied one still is."""
    watched = Watched(tmp_path, environment=True)
    watched.put("# nobody\n")
    await watched.look()
    assert not watched.admits(ALICE)
    assert watched.watch.problem is None
    watched.put(text_of(ALICE))
    await watched.look()
    watched.put("")
    await watched.look()
    assert watched.admits(ALICE)
    assert "is empty" in str(watched.watch.problem)


async def test_a_file_that_changes_while_it_is_read_is_not_taken(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was read of it, nor a problem that it had meanwhile."""
    await watched.look()
    halves = [text_of(BOB), "[[key]", text_of(BOB, "carolcar")]
    real = keyfile.read_text

    def read_text(path: Path) -> str:
        text = real(path)
        if halves:
            in_place(path, halves.pop(0))  # as soon as it was read
        return text

    monkeypatch.setattr(keyfile, "read_text", read_text)
    in_place(watched.path, "[[key]] # soon")
    await watched.look(20)
    assert watched.events == [(RELOADED, {"keys": 2, "problem": None, **counts(2, 1)})]


async def test_a_file_is_looked_at_twice_before_it_is_read(watched: Watched) -> None:
    """An editor that empties it first is given the time to write it."""
    await watched.look()
    in_place(watched.path, text_of(BOB))
    await watched.look(1)
    assert watched.admits(ALICE)
    await watched.look(1)
    assert watched.admits(BOB)


async def test_a_file_that_never_settles_is_read_all_the_same(watched: Watched) -> None:
    """Somebody makes keys in a loop."""
    await watched.look()
    for number in range(4):
        watched.put(text_of(BOB) + f"# {number}\n")
        await watched.look(1)
    assert watched.admits(BOB)


async def test_a_request_reads_at_once_and_is_answered(watched: Watched) -> None:
    """With a line, also where nothing has changed and where the problem was told before."""
    await watched.look()
    await watched.look(1, asked=True)
    assert watched.events == [(RELOADED, {"keys": 1, "problem": None, **counts()})]
    watched.put(text_of(BOB))
    await watched.look(1, asked=True)
    assert watched.admits(BOB)
    watched.put("?")
    await watched.look()
    await watched.look(1, asked=True)
    events = [event for event, _ in watched.events]
    assert events == [RELOADED, RELOADED, NOT_RELOADED, NOT_RELOADED]
    await watched.look()
    assert len(watched.events) == 4


async def test_a_clock_that_stands_still_between_two_changes(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read at once, at a request, a file may change again and look the same."""
    await watched.look()
    monkeypatch.setattr(reload, "_look", lambda path: "the same tick")
    in_place(watched.path, text_of(BOB))
    await watched.look(1, asked=True)
    in_place(watched.path, text_of("carolcar"))
    await watched.look()
    assert watched.admits("carolcar")


async def test_it_runs_until_it_is_cancelled(watched: Watched) -> None:
    """By itself it finds a change, and at a request it does not wait."""
    running = asyncio.create_task(watched.watch.run())
    watched.put(text_of(BOB))
    async with asyncio.timeout(SECONDS):
        await watched.happened.wait()
    assert watched.admits(BOB)
    watched.happened.clear()
    watched.watch._interval_seconds = 3600.0
    async with asyncio.timeout(SECONDS):
        while not watched.happened.is_set():  # once it is in its long pause
            watched.watch.request()
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Parsing takes until this is set."""
    real, over = keyfile.parse, threading.Event()

    def parse(text: str) -> list[KeyRecord]:
        assert over.wait(SECONDS)
        return real(text)

    monkeypatch.setattr(keyfile, "parse", parse)
    yield over
    over.set()


async def test_a_long_parse_holds_nobody(watched: Watched, slow: threading.Event) -> None:
    """The loop goes on, and the old keys work, until the new ones do, all at once."""
    watched.put(text_of(BOB))
    looking = asyncio.create_task(watched.look(2))
    for _ in range(1000):
        await asyncio.sleep(0)
        assert (watched.admits(ALICE), watched.admits(BOB)) == (True, False)
    slow.set()
    await looking
    assert (watched.admits(ALICE), watched.admits(BOB)) == (False, True)
