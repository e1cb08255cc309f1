"""The file of what keys have used: what is made, added up, forgotten and refused."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.admission.history import HistoryError, HistoryFile, Kept, causes
from proxy.admission.history.file import KEPT_DAYS
from proxy.admission.history.table import VERSION
from tests.harness.leftout import PREFIX

TODAY = 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where it is to be; with what a URL would take for something else."""
    (tmp_path / "a folder?mode=ro#x%20").mkdir()
    return tmp_path / "a folder?mode=ro#x%20" / "usage.db"


@pytest.fixture
def file(path: Path) -> HistoryFile:
    """One that was made today, and for which nobody waits."""
    made = HistoryFile(path, busy_seconds=0)
    assert made.begin(TODAY) == Kept()
    return made


def rows(path: Path) -> list[tuple[object, ...]]:
    """All that is in it, as anybody reads it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM usage ORDER BY day, key_id").fetchall()


@contextlib.contextmanager
def altered(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else's hand."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        yield connection
        connection.commit()


def test_it_is_made_for_its_owner_alone(path: Path) -> None:
    """Whatever the umask says, and no other file is left beside it."""
    before = os.umask(0)
    try:
        HistoryFile(path).begin(TODAY)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*path.parent.iterdir()] == [path]


def test_an_empty_file_is_made_use_of(path: Path) -> None:
    """As a mount of a single file needs one that is there."""
    path.touch(0o600)
    HistoryFile(path).begin(TODAY)
    assert rows(path) == []


def test_a_link_is_followed(path: Path, tmp_path: Path) -> None:
    """As one to the key file is; to a file that is not there yet, too."""
    path.symlink_to(tmp_path / "elsewhere.db")
    HistoryFile(path).begin(TODAY)
    HistoryFile(path).add({(TODAY, "k"): (1, 2, 3, 4)})
    assert rows(tmp_path / "elsewhere.db") == [(TODAY, "k", 1, 2, 3, 4)]


def test_what_is_added_adds_up(file: HistoryFile, path: Path) -> None:
    """By day and key, of two proxies that share it."""
    other = HistoryFile(path, busy_seconds=0)
    assert other.begin(TODAY) == Kept()
    file.add({(TODAY, "a"): (1, 2, 3, 4), (TODAY, "b"): (5, 6, 7, 8)})
    other.add({(TODAY, "a"): (10, 20, 30, 40), (TODAY + 1, "a"): (9, 9, 9, 9)})
    assert rows(path) == [
        (TODAY, "a", 11, 22, 33, 44),
        (TODAY, "b", 5, 6, 7, 8),
        (TODAY + 1, "a", 9, 9, 9, 9),
    ]


async def test_two_that_write_at_once_lose_nothing(file: HistoryFile, path: Path) -> None:
    """Each waits for the other's lock."""
    both = HistoryFile(path, busy_seconds=60), HistoryFile(path, busy_seconds=60)

    def write(one: HistoryFile) -> None:
        for _ in range(20):
            one.add({(TODAY, "a"): (1, 1, 1, 1)})

    await asyncio.gather(*(asyncio.to_thread(write, one) for one in both))
    assert rows(path) == [(TODAY, "a", 40, 40, 40, 40)]


@pytest.mark.parametrize(
    ("day", "counts"),
    [
        pytest.param(TODAY - 2, False, id="the day before yesterday"),
        pytest.param(TODAY - 1, True, id="yesterday"),
        pytest.param(TODAY, True, id="today"),
        pytest.param(TODAY + 1, True, id="tomorrow, before the clock was put back"),
        pytest.param(TODAY + 2, False, id="the day after tomorrow"),
    ],
)
def test_the_days_that_count(file: HistoryFile, day: int, counts: bool) -> None:
    """Those of a window and the one before, and of a clock that is a turn behind."""
    file.add({(day, "a"): (7, 1, 3, 4), (day, "without limit"): (0, 1, 3, 4)})
    kept = file.begin(TODAY)
    assert kept == Kept({"a": {day: 7}} if counts else {}, max(0, day - TODAY))


def test_what_is_too_old_is_forgotten(file: HistoryFile, path: Path) -> None:
    """When a process begins; the last day that is kept is kept."""
    days = (TODAY - KEPT_DAYS - 1, TODAY - KEPT_DAYS, TODAY)
    file.add({(day, "a"): (1, 1, 1, 1) for day in days})
    assert len(rows(path)) == 3
    file.begin(TODAY)
    assert [row[0] for row in rows(path)] == [TODAY - KEPT_DAYS, TODAY]


def test_a_clock_that_is_far_ahead_forgets_nothing(file: HistoryFile, path: Path) -> None:
    """Nor does one that was, when it is right again; what is old by the newest day is old."""
    days = (TODAY - KEPT_DAYS - 1, TODAY - 1, TODAY)
    file.add({(day, "a"): (1, 1, 1, 1) for day in days})
    file.begin(TODAY + 30_000)
    assert [row[0] for row in rows(path)] == [TODAY - 1, TODAY]
    file.add({(TODAY + 30_000, "a"): (1, 1, 1, 1)})
    assert file.begin(TODAY) == Kept({"a": {TODAY - 1: 1, TODAY: 1}}, 30_000)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param("day", "'x'", id="a text for a day"),
        pytest.param("day", "x'00'", id="bytes for a day"),
        pytest.param("key_id", "x'61'", id="bytes for an id"),
    ],
)
def test_what_is_no_day_or_id_does_not_count(
    file: HistoryFile, path: Path, column: str, value: str
) -> None:
    """By hand, too; the process begins with what else there is."""
    file.add({(TODAY, "a"): (1, 1, 1, 1), (TODAY, "b"): (2, 1, 1, 1)})
    with altered(path) as connection:
        connection.execute(f"UPDATE usage SET {column} = {value} WHERE key_id = 'a'")  # noqa: S608
    assert file.begin(TODAY) == Kept({"b": {TODAY: 2}})
    assert len(rows(path)) == 2


@pytest.mark.parametrize("number", ["'many'", "x'00'", "-7", "0.5"])
def test_what_is_no_number_of_tokens_does_not_count(
    file: HistoryFile, path: Path, number: str
) -> None:
    """Somebody has written it by hand; what else there is counts all the same."""
    file.add({(TODAY, "a"): (1, 1, 1, 1), (TODAY, "b"): (2, 1, 1, 1)})
    with altered(path) as connection:
        connection.execute(f"UPDATE usage SET charged_tokens = {number} WHERE key_id = 'a'")  # noqa: S608
    assert file.begin(TODAY) == Kept({"b": {TODAY: 2}})


def a_folder(path: Path) -> None:
    """Somebody's mount of a file that was not there."""
    path.mkdir()


def a_pipe(path: Path) -> None:
    """Nobody writes into it."""
    os.mkfifo(path)


def everybodys(path: Path) -> None:
    """Whoever can write it gives himself another day."""
    path.touch()
    path.chmod(0o620)


def a_text(path: Path) -> None:
    """The key file, perhaps."""
    path.write_text("[[key]]\n" * 1000)
    path.chmod(0o600)


def of_another_program(path: Path) -> None:
    """It has a version, too."""
    with altered(path) as connection:
        connection.execute("CREATE TABLE visits (url TEXT)")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    path.chmod(0o600)


def without_a_version(path: Path) -> None:
    """Of a program that has none."""
    with altered(path) as connection:
        connection.execute("CREATE TABLE visits (url TEXT)")
    path.chmod(0o600)


def newer(path: Path) -> None:
    """Of the version after this one."""
    HistoryFile(path).begin(TODAY)
    with altered(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")


def without_its_table(path: Path) -> None:
    """By hand."""
    HistoryFile(path).begin(TODAY)
    with altered(path) as connection:
        connection.execute("DROP TABLE usage")


def with_no_text_for_an_id(path: Path) -> None:
    """By hand, too."""
    HistoryFile(path).begin(TODAY)
    with altered(path) as connection:
        row = f"({TODAY}, CAST(x'ff' AS TEXT), 1, 1, 1, 1)"
        connection.execute(f"INSERT INTO usage VALUES {row}")  # noqa: S608


def with_a_bad_page(path: Path) -> None:
    """In the middle of rows of long ago, which only a look at all of it finds."""
    file = HistoryFile(path)
    file.begin(TODAY)
    file.add({(TODAY - 9, f"key-{number}"): (1, 1, 1, 1) for number in range(2_000)})
    with path.open("r+b") as bytes_of_it:
        bytes_of_it.seek(5 * 4096)
        bytes_of_it.write(b"\xff" * 4096)


def cut_short(path: Path) -> None:
    """By a disk that was full when it was copied."""
    with_a_bad_page(path)
    os.truncate(path, 3 * 4096)


REFUSED = [
    pytest.param(a_folder, "is a folder", id="a folder"),
    pytest.param(a_pipe, "is not a regular file", id="a pipe"),
    pytest.param(everybodys, "chmod go-w", id="others may write it"),
    pytest.param(a_text, "is not a database of SQLite", id="a text"),
    pytest.param(of_another_program, "of another program", id="another program's"),
    pytest.param(without_a_version, "of another program", id="one without a version"),
    pytest.param(newer, "has version 2", id="a newer version"),
    pytest.param(without_its_table, "not as this program makes it", id="no table"),
    pytest.param(with_no_text_for_an_id, "not as this program makes it", id="bytes for an id"),
    pytest.param(with_a_bad_page, "is damaged", id="a bad page"),
    pytest.param(cut_short, "is damaged", id="cut short"),
]
"""What is no such file: how it is made, and what is said of it."""


@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_what_is_refused(path: Path, make: Callable[[Path], None], why: str) -> None:
    """At the start; and what is there is left as it is."""
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(HistoryError, match=why):
        HistoryFile(path).begin(TODAY)
    assert not path.is_file() or path.read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """It is not made: a volume that was not mounted would be remembered nowhere."""
    with pytest.raises(HistoryError, match="cannot be opened: No such file or directory"):
        HistoryFile(tmp_path / "none" / "usage.db").begin(TODAY)


def test_a_lock_is_waited_for_and_then_told(file: HistoryFile, path: Path) -> None:
    """Of whoever reads it with a tool and forgets it open."""
    with altered(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for attempt in (lambda: file.begin(TODAY), lambda: file.add({(TODAY, "a"): (1, 1, 1, 1)})):
            with pytest.raises(HistoryError, match="is locked by another program"):
                attempt()
    file.add({(TODAY, "a"): (1, 1, 1, 1)})
    assert rows(path) == [(TODAY, "a", 1, 1, 1, 1)]


def test_a_file_that_was_taken_away_is_made_again(file: HistoryFile, path: Path) -> None:
    """And nothing is written to one that no name leads to."""
    path.unlink()
    file.add({(TODAY, "a"): (1, 1, 1, 1)})
    assert rows(path) == [(TODAY, "a", 1, 1, 1, 1)]


def test_a_process_that_is_killed_in_the_middle_changes_nothing(
    file: HistoryFile, path: Path
) -> None:
    """Its journal is left beside the file, and the next one puts everything back."""
    file.add({(TODAY, f"key-{number}"): (1, 1, 1, 1) for number in range(2_000)})
    before = rows(path)
    dying = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size = 1')\n"
        "c.execute('BEGIN IMMEDIATE')\n"
        "c.execute('UPDATE usage SET charged_tokens = 0')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", dying, path], check=False)  # noqa: S603 - as above
    assert path.with_name("usage.db-journal").exists()
    assert len(file.begin(TODAY).charged) == 2_000
    assert rows(path) == before


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason=f"{PREFIX}a disk that is full, which needs root to mount it",
)

ON_A_DISK = """
import pathlib, subprocess, sys
from proxy.admission.history import HistoryError, HistoryFile
path = pathlib.Path(sys.argv[1]) / "usage.db"
def mount(*how): subprocess.run(["mount", *how, path.parent], check=True)
def said(what):
    try: what()
    except HistoryError as exc: print(exc)
    else: print("well")
mount("-t", "tmpfs", "-o", "size=64k", "disk")
file = HistoryFile(path)
said(lambda: file.begin(1))
big = {(1, f"key-{n}"): (1, 1, 1, 1) for n in range(10_000)}
said(lambda: file.add(big))
said(lambda: file.add({(1, "a"): (1, 1, 1, 1)}))
mount("-o", "remount,size=4m")
said(lambda: file.add(big))
mount("-o", "remount,ro")
said(lambda: file.add(big))
said(lambda: file.begin(1))
said(lambda: HistoryFile(path.with_name("other.db")).begin(1))
"""


@needs_mounts
def test_a_disk_that_is_full_or_cannot_be_written(tmp_path: Path) -> None:
    """Each is told by its name, and what was there before is not lost."""
    run = subprocess.run(  # noqa: S603 - our own program, in a namespace of its own
        ["unshare", "--mount", sys.executable, "-c", ON_A_DISK, tmp_path],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in run.stderr or "mount:" in run.stderr:
        pytest.skip(f"{PREFIX}a disk that is full: nobody may mount one here")
    said = run.stdout.splitlines()
    assert said[:4] == ["well", "the disk is full", "well", "well"], run.stderr
    assert all("cannot be" in line for line in said[4:6])
    assert said[6] == "cannot be opened: Read-only file system"
    assert len(said) == 7


NOBODY = """
import pathlib, sys
from proxy.admission.history import HistoryError, HistoryFile
for name in ("usage.db", "new.db", "own.db"):
    try:
        HistoryFile(pathlib.Path(sys.argv[1], name)).begin(1)
    except HistoryError as exc:
        print(exc)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason=f"{PREFIX}a file that is not ours, which needs root")
def test_a_user_without_the_right() -> None:
    """Is told which user needs it, and to what."""
    # Not in pytest's folder, which nobody else may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name in ("usage.db", "own.db"):
            HistoryFile(Path(folder, name)).begin(TODAY)
        # There is no room for its journal in a folder of somebody else.
        os.chown(Path(folder, "own.db"), 65534, -1)
        run = subprocess.run(  # noqa: S603 - our own program
            [
                *("setpriv", "--reuid=65534", "--clear-groups"),
                *(sys.executable, "-c", NOBODY, folder),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if not run.stdout:
        pytest.skip(f"{PREFIX}a file that is not ours: nobody else can run this Python")
    said = run.stdout.splitlines()
    assert len(said) == 3
    assert all("user 65534 must be able to write it and its folder" in line for line in said)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("SQLITE_FULL", "the disk is full", id="full"),
        pytest.param("SQLITE_BUSY_SNAPSHOT", "is locked by another program", id="a kind of lock"),
        pytest.param("SQLITE_READONLY_DBMOVED", "cannot be written; user", id="a kind of right"),
        pytest.param("SQLITE_IOERR_FSYNC", "the system failed", id="a kind of failure"),
        pytest.param("SQLITE_NOMEM", "SQLite says SQLITE_NOMEM", id="what nobody expects"),
    ],
)
def test_how_each_is_told(name: str, words: str) -> None:
    """By the kind of what SQLite says; its text could quote what was to be written."""
    error = sqlite3.OperationalError("canary")
    error.sqlite_errorname = name
    assert causes.told(error).startswith(words)
    assert "canary" not in causes.told(error)
