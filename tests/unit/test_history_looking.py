"""The file of what keys have used, as commands look at it: nothing is made and nothing changed."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.admission.history import HistoryError, HistoryFile, Sums, look, sums_by_day, sums_by_key
from tests.harness.leftout import PREFIX
from tests.unit.test_history_file import (
    REFUSED,
    TODAY,
    altered,
    needs_mounts,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where it is to be; with what a URL would take for something else."""
    (tmp_path / "a folder?mode=ro#x%20").mkdir()
    return tmp_path / "a folder?mode=ro#x%20" / "usage.db"


def tree(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that is beside it and in it, and when it was changed."""
    found = {}
    for each in sorted(path.parent.iterdir()):
        about = each.lstat()
        content = each.read_bytes() if each.is_file() else b""
        found[each.name] = about.st_mode, about.st_mtime_ns, content
    return found


def said(attempt: Callable[[], object]) -> str | None:
    """Why it is refused."""
    try:
        attempt()
    except HistoryError as exc:
        return str(exc)
    return None


def nothing(path: Path) -> None:
    """It is to be made."""


def an_empty_one(path: Path) -> None:
    """A mount of a single file needs one that is there."""
    path.touch(0o600)


def one_of_ours(path: Path) -> None:
    """With a row of today."""
    HistoryFile(path).begin(TODAY)
    HistoryFile(path).add({(TODAY, "k"): (1, 2, 3, 4)})


def a_link_to_nothing(path: Path) -> None:
    """Where it leads a file may be made."""
    path.symlink_to(path.with_name("other.db"))


def a_link_into_nothing(path: Path) -> None:
    """Where it leads no file may be made."""
    path.symlink_to(path.parent / "none" / "usage.db")


def a_link_to_itself(path: Path) -> None:
    """Which leads nowhere."""
    path.symlink_to(path)


@pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(row.values[0], id=row.id) for row in REFUSED),
        pytest.param(nothing, id="nothing"),
        pytest.param(an_empty_one, id="an empty file"),
        pytest.param(one_of_ours, id="one of ours"),
        pytest.param(a_link_to_nothing, id="a link to nothing"),
        pytest.param(a_link_into_nothing, id="a link into a folder that is not there"),
        pytest.param(a_link_to_itself, id="a link to itself"),
    ],
)
def test_it_is_told_as_at_the_start_and_left_as_it_is(
    path: Path, make: Callable[[Path], None]
) -> None:
    """In the very words of whoever begins on it, or not at all."""
    make(path)
    before = tree(path)
    told = said(lambda: look(path, TODAY))
    assert tree(path) == before
    assert told == said(lambda: HistoryFile(path).begin(TODAY))


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("none/usage.db", id="a folder that is not there"),
        pytest.param("a file/usage.db", id="a folder that is a file"),
    ],
)
def test_a_folder_that_is_none(tmp_path: Path, where: str) -> None:
    """Is told in the same words, too."""
    (tmp_path / "a file").touch()
    told = said(lambda: look(tmp_path / where, TODAY))
    assert told is not None
    assert told == said(lambda: HistoryFile(tmp_path / where).begin(TODAY))


BOTH = """
import pathlib, subprocess, sys
from proxy.admission.history import HistoryError, HistoryFile, look, sums_by_key
def said(attempt):
    try: attempt()
    except HistoryError as exc: return str(exc)
def told(path):
    looked, begun = said(lambda: look(path, 1)), said(lambda: HistoryFile(path).begin(1))
    print(looked if looked == begun else f"{looked!r} is not {begun!r}")
"""

NOBODY = f"""{BOTH}
folder = pathlib.Path(sys.argv[1])
for name in sys.argv[2:]: told(folder / name)
print(said(lambda: sums_by_key(folder / "unreadable.db", 1)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason=f"{PREFIX}a file that is not ours, which needs root")
def test_a_user_without_the_right() -> None:
    """Is told as at the start: of the file, of its folder, and of what is to be made there."""
    # Not in pytest's folder, which nobody else may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "theirs").mkdir()
        names = ["others.db", "own.db", "new.db", "unreadable.db"]
        names += ["theirs/others.db", "theirs/own.db", "theirs/new.db", "link.db"]
        for name in names:
            if "new" not in name and name != "link.db":
                HistoryFile(Path(folder, name)).begin(1)
            if "others" in name:
                Path(folder, name).chmod(0o644)
            if "own" in name:
                os.chown(Path(folder, name), 65534, -1)
        os.chown(Path(folder, "theirs"), 65534, -1)
        # Its journal will be where it leads.
        Path(folder, "link.db").symlink_to("theirs/own.db")
        run = subprocess.run(  # noqa: S603 - our own program
            [
                *("setpriv", "--reuid=65534", "--clear-groups"),
                *(sys.executable, "-c", NOBODY, folder, *names),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if not run.stdout:
        pytest.skip(f"{PREFIX}a file that is not ours: nobody else can run this Python")
    who = "user 65534 must be able to write it and its folder, on a disk that can be written"
    assert run.stdout.splitlines() == [
        f"cannot be written; {who}",
        f"cannot be written; {who}",
        f"cannot be opened: Permission denied; {who}",
        f"cannot be opened, or nothing written beside it; {who}",
        f"cannot be written; {who}",
        *["None"] * 3,
        "cannot be opened: Permission denied",
    ]


ON_A_DISK = f"""{BOTH}
path = pathlib.Path(sys.argv[1]) / "usage.db"
def mount(*how): subprocess.run(["mount", *how, path.parent], check=True)
mount("-t", "tmpfs", "disk")
told(path)
mount("-o", "remount,ro")
told(path)
told(path.with_name("other.db"))
print(said(lambda: sums_by_key(path, 1)))
"""


@needs_mounts
def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    """Is told as at the start, too, and what is there may be read."""
    run = subprocess.run(  # noqa: S603 - our own program, in a namespace of its own
        ["unshare", "--mount", sys.executable, "-c", ON_A_DISK, tmp_path],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in run.stderr or "mount:" in run.stderr:
        pytest.skip(f"{PREFIX}a disk that cannot be written: nobody may mount one here")
    first, there, new, read = run.stdout.splitlines()
    assert (first, read) == ("None", "None"), run.stderr
    assert there.startswith("cannot be written; user ")
    assert new == "cannot be opened: Read-only file system"


DYING = """
import os, sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("PRAGMA cache_size = 1")
c.execute("BEGIN IMMEDIATE")
c.execute("UPDATE usage SET charged_tokens = 0")
os.kill(os.getpid(), 9)
"""


def test_a_process_that_was_killed_in_the_middle(path: Path) -> None:
    """A server would put back what was, so that all is well; whoever only reads cannot."""
    file = HistoryFile(path)
    file.begin(TODAY)
    file.add({(TODAY, f"key-{number}"): (1, 1, 1, 1) for number in range(2_000)})
    subprocess.run([sys.executable, "-c", DYING, path], check=False)  # noqa: S603 - as above
    before = tree(path)
    assert len(before) == 2
    look(path, TODAY)
    assert "journal" in str(said(lambda: sums_by_key(path, TODAY)))
    assert tree(path) == before
    file.begin(TODAY)
    assert len(sums_by_key(path, TODAY)) == 2_000


def test_whoever_writes_it_is_waited_for(path: Path) -> None:
    """And then told."""
    HistoryFile(path).begin(TODAY)
    with altered(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        for attempt in (
            lambda: look(path, TODAY, busy_seconds=0),
            lambda: sums_by_day(path, TODAY, busy_seconds=0),
        ):
            assert "is locked by another program" in str(said(attempt))
    look(path, TODAY, busy_seconds=0)


@pytest.fixture
def used(path: Path) -> Path:
    """Of two keys, on three days."""
    file = HistoryFile(path)
    file.begin(TODAY)
    file.add(
        {
            (TODAY - 1, "a"): (1, 10, 100, 1000),
            (TODAY, "a"): (2, 20, 200, 2000),
            (TODAY, "b"): (0, 3, 4, 5),
            (TODAY + 9, "b"): (0, 1, 1, 1),
        }
    )
    return path


def test_sums_of_days(used: Path) -> None:
    """Those that are asked for, and days to come: a clock was wrong, and it was used all the same."""
    assert sums_by_day(used, TODAY) == [
        Sums(TODAY, 23, 204, 2005, 2),
        Sums(TODAY + 9, 1, 1, 1, 0),
    ]
    assert sums_by_day(used, TODAY - 1)[0] == Sums(TODAY - 1, 10, 100, 1000, 1)


def test_sums_of_keys(used: Path) -> None:
    """From a day on."""
    assert sums_by_key(used, TODAY) == [Sums("a", 20, 200, 2000, 2), Sums("b", 4, 5, 6, 0)]
    assert sums_by_key(used, TODAY - 1)[0] == Sums("a", 30, 300, 3000, 3)
    assert sums_by_key(used, TODAY + 10) == []


def test_what_is_no_number_counts_nothing(used: Path) -> None:
    """Somebody has written it by hand; what else there is counts all the same."""
    with altered(used) as connection:
        connection.execute("UPDATE usage SET charged_tokens = 'many' WHERE key_id = 'a'")
        for day in ("'someday'", "0.5", "9e15"):
            connection.execute(f"INSERT INTO usage VALUES ({day}, 'c', 1, 1, 1, 1)")  # noqa: S608
    assert sums_by_key(used, TODAY)[0] == Sums("a", 20, 200, 2000, 0)
    assert [sums.of for sums in sums_by_day(used, 0)] == [TODAY - 1, TODAY, TODAY + 9]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(nothing, "cannot be opened: No such file or directory", id="nothing"),
        *REFUSED[:-2],
    ],
)
def test_what_cannot_be_read(path: Path, make: Callable[[Path], None], why: str) -> None:
    """Is told, and nothing is made."""
    make(path)
    before = tree(path)
    if make.__name__ == "with_no_text_for_an_id":
        # By day no id is read.
        assert len(sums_by_day(path, TODAY)) == 1
    else:
        assert why in str(said(lambda: sums_by_day(path, TODAY)))
    assert why in str(said(lambda: sums_by_key(path, TODAY)))
    assert tree(path) == before


def test_an_empty_file_has_nothing(path: Path) -> None:
    """And stays empty."""
    path.touch(0o600)
    assert (sums_by_day(path, 0), sums_by_key(path, 0)) == ([], [])
    assert path.stat().st_size == 0


def test_a_file_of_a_server_that_writes_ahead(path: Path) -> None:
    """Whoever has made it so with a tool: it is looked at, and no row changed."""
    HistoryFile(path).begin(TODAY)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    before = path.read_bytes()
    look(path, TODAY)
    assert path.read_bytes() == before
