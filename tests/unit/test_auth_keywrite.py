"""Writing the key file: whole or not at all, by one at a time, and without taking it from anybody."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.auth import keyfile, keywrite
from proxy.auth.keyfile import KeyFileError

SHA = "0123456789abcdef" * 4
GOOD = f'[[key]]\nid = "k3v9x2ab"\nsha256 = "{SHA}"\n'
NOBODY = 65_534
SECONDS = 50
ROOT = os.geteuid() == 0


def add_comment(text: str) -> str:
    """An edit."""
    return text + "# more\n"


def write(folder: Path, content: str = GOOD, mode: int = 0o600) -> Path:
    """A key file with this mode."""
    path = folder / "keys.toml"
    path.write_text(content)
    path.chmod(mode)
    return path


def mode_of(path: Path) -> int:
    """Its permissions."""
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    """What is in it."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=[0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """One that takes nothing away, and one that takes much."""
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_new_file(tmp_path: Path, mode: int) -> None:
    """It has the mode that was asked for, whatever the umask, and nothing is left beside it."""
    path = tmp_path / "keys.toml"
    assert keywrite.update(path, add_comment, new_mode=mode, create=True)
    assert (path.read_text(), mode_of(path)) == ("# more\n", mode)
    assert names(tmp_path) == ["keys.toml"]


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o644])
def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    """And is another one: who has it open still reads the old one, whole."""
    path = write(tmp_path, mode=mode)
    with path.open() as reader:
        assert not keywrite.update(path, add_comment, new_mode=0o666)
        assert reader.read() == GOOD
    assert (path.read_text(), mode_of(path)) == (GOOD + "# more\n", mode)
    assert names(tmp_path) == ["keys.toml"]


@pytest.mark.skipif(not ROOT, reason="only root can give a file away")
def test_a_file_of_another_user_stays_his(tmp_path: Path) -> None:
    """The server that could read it still can."""
    path = write(tmp_path, mode=0o640)
    os.chown(path, NOBODY, 10_001)
    keywrite.update(path, add_comment)
    status = path.stat()
    assert (status.st_uid, status.st_gid, mode_of(path)) == (NOBODY, 10_001, 0o640)


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_a_file_that_would_change_hands_is_not_written() -> None:
    """Whoever may write the folder but cannot give the file to its owner is told so."""
    # The folders of pytest are root's alone.
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        path = write(folder, mode=0o644)
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(KeyFileError, match="to user 0 and group 0, which user 65534"):
                keywrite.update(path, add_comment)
        finally:
            os.seteuid(0)
        assert path.read_text() == GOOD
        assert names(folder) == ["keys.toml"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    """Through a link to a link in another folder, too."""
    folder = tmp_path / "real"
    folder.mkdir()
    path = write(folder)
    (tmp_path / "a").symlink_to("real/keys.toml")
    (tmp_path / "b").symlink_to("a")
    keywrite.update(tmp_path / "b", add_comment)
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "b").is_symlink()
    assert path.read_text() == GOOD + "# more\n"


def test_a_mark_of_byte_order_stays(tmp_path: Path) -> None:
    """Some editor will want it."""
    path = write(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    keywrite.update(path, add_comment)
    assert path.read_bytes() == b"\xef\xbb\xbf" + GOOD.encode() + b"# more\n"


def test_an_edit_of_nothing_writes_nothing(tmp_path: Path) -> None:
    """Nobody has to read it again."""
    path = write(tmp_path)
    before = path.stat()
    assert not keywrite.update(path, str)
    assert path.stat() == before


def test_what_may_not_be_trusted_is_not_written_over(tmp_path: Path) -> None:
    """A file that others may write, a folder, a pipe, no text, a circle of links: all stay."""
    path = write(tmp_path, mode=0o666)
    with pytest.raises(KeyFileError, match="may be written by"):
        keywrite.update(path, add_comment)
    assert (path.read_text(), mode_of(path)) == (GOOD, 0o666)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name in ("folder", "fifo", "circle", "bytes"):
        with pytest.raises(KeyFileError, match=r"not a regular|not UTF-8|cannot be read"):
            keywrite.update(tmp_path / name, add_comment, create=True)
    assert names(tmp_path) == ["bytes", "circle", "fifo", "folder", "keys.toml"]


def test_what_is_not_there(tmp_path: Path) -> None:
    """A file, a folder, or a folder that is a file."""
    path = tmp_path / "keys.toml"
    with pytest.raises(KeyFileError, match="No such file"):
        keywrite.update(path, add_comment)
    with pytest.raises(KeyFileError, match="no folder to be in"):
        keywrite.update(tmp_path / "no" / "keys.toml", add_comment, create=True)
    write(tmp_path)
    with pytest.raises(KeyFileError, match="that is no folder"):
        keywrite.update(path / "keys.toml", add_comment, create=True)


def test_an_edit_that_fails_leaves_everything(tmp_path: Path) -> None:
    """And gives the lock back."""
    path = write(tmp_path)

    def fail(text: str) -> str:
        raise KeyError(text)

    with pytest.raises(KeyError):
        keywrite.update(path, fail)
    assert path.read_text() == GOOD
    keywrite.update(path, add_comment)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_disk_that_is_full_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing beside it."""
    path = write(tmp_path)
    real = os.open

    def full(name: os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        descriptor = real(name, flags, mode)
        if flags & os.O_CREAT:
            device = real("/dev/full", os.O_WRONLY)
            os.dup2(device, descriptor)
            os.close(device)
        return descriptor

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        keywrite.update(path, add_comment)
    assert path.read_text() == GOOD
    assert names(tmp_path) == ["keys.toml"]


def test_a_power_cut_finds_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is on the disk before the name is, and the name before anybody is told."""
    path, calls = write(tmp_path), []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_rename(old: Path, new: Path) -> None:
        assert old.read_text() == GOOD + "# more\n"
        calls.append("name")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    keywrite.update(path, add_comment)
    assert calls == ["file", "name", "folder"]


def test_who_waits_too_long_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that hangs is named as the reason."""
    path = write(tmp_path)
    monkeypatch.setattr(keywrite, "_LOCK_SECONDS", 0.0)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(KeyFileError, match="being written by somebody else"):
        keywrite.update(path, add_comment)
    os.close(descriptor)
    keywrite.update(path, add_comment)


def test_what_cannot_be_locked_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers at once would lose what one of them wrote."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    path = write(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(KeyFileError, match="cannot be locked: Bad file descriptor"):
        keywrite.update(path, add_comment)
    assert path.read_text() == GOOD


def in_place(path: Path, text: str) -> None:
    """As an editor without a second file does."""
    path.write_text(text)


def by_rename(path: Path, text: str) -> None:
    """As most editors do."""
    new = path.with_name("editors")
    new.write_text(text)
    new.chmod(0o600)
    new.rename(path)


@pytest.mark.parametrize("save", [in_place, by_rename])
@pytest.mark.parametrize("saves", [0, 1, 4])
def test_what_an_editor_saves_meanwhile_is_not_lost(
    tmp_path: Path, save: Callable[[Path, str], None], saves: int
) -> None:
    """He saves between our reading and our writing; both changes are in the file."""
    path, left = write(tmp_path), saves

    def edit(text: str) -> str:
        nonlocal left
        if left:
            left -= 1
            save(path, path.read_text() + "# by hand\n")
        return add_comment(text)

    keywrite.update(path, edit)
    assert path.read_text() == GOOD + "# by hand\n" * saves + "# more\n"
    assert names(tmp_path) == ["keys.toml"]


def test_a_file_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    """Somebody writes his first key by hand while we make ours."""
    path = tmp_path / "keys.toml"

    def edit(text: str) -> str:
        if not text:
            write(tmp_path)
        return add_comment(text)

    assert not keywrite.update(path, edit, create=True)
    assert path.read_text() == GOOD + "# more\n"


def test_a_file_that_goes_away_meanwhile_stays_away(tmp_path: Path) -> None:
    """What was deleted is not brought back."""
    path = write(tmp_path)

    def edit(text: str) -> str:
        path.unlink(missing_ok=True)
        return add_comment(text)

    with pytest.raises(KeyFileError, match="No such file"):
        keywrite.update(path, edit)
    assert names(tmp_path) == []


def test_who_is_written_over_each_time_gives_up(tmp_path: Path) -> None:
    """Five times; what somebody else wrote is there, and nothing of ours."""
    path, turns = write(tmp_path), 0

    def edit(text: str) -> str:
        nonlocal turns
        turns += 1
        by_rename(path, f"{GOOD}# {turns}\n")
        return add_comment(text)

    with pytest.raises(KeyFileError, match="written by somebody else each time"):
        keywrite.update(path, edit)
    assert (turns, path.read_text()) == (5, f"{GOOD}# 5\n")
    assert names(tmp_path) == ["keys.toml"]


WRITER = """
import sys
from pathlib import Path
from proxy.auth import keyedit, keywrite
from proxy.auth.keys import digest, generate

def add(text):
    key = generate()
    entry = {"id": key[6:14], "sha256": digest(key.encode()).hex(), "name": sys.argv[2]}
    return keyedit.append(text, entry)

for _ in range(int(sys.argv[3])):
    keywrite.update(Path(sys.argv[1]), add, create=True)
"""


def test_eight_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Whoever reads meanwhile finds a whole file each time, with no fewer keys than before."""
    path = tmp_path / "keys.toml"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"writer {number}", "25"])  # noqa: S603
        for number in range(8)
    ]
    seen, reads = 0, 0
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            found = len(keyfile.read(path))
            assert found >= seen
            seen, reads = found, reads + 1
    assert [writer.wait(SECONDS) for writer in writers] == [0] * 8
    records = keyfile.read(path)
    assert len(records) == 200
    for number in range(8):
        assert sum(record.name == f"writer {number}" for record in records) == 25
    assert reads > 10
    assert names(tmp_path) == ["keys.toml"]


KILLED = """
import os, signal, sys
from pathlib import Path
from proxy.auth import keywrite

def killing(call):
    def call_or_die(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return call_or_die

left = int(sys.argv[2])
for name in ("open", "fchmod", "fchown", "fsync", "fstat", "close", "rename", "unlink"):
    setattr(os, name, killing(getattr(os, name)))
keywrite.update(Path(sys.argv[1]), lambda text: text + "# more\\n")
print("done")
"""


def test_a_writer_that_is_killed_anywhere_leaves_the_old_file_or_the_new_one(
    tmp_path: Path,
) -> None:
    """Before each of its calls to the system; and what it leaves beside does not disturb."""
    path = write(tmp_path)
    outcomes = []
    for calls in range(100):
        path.write_text(GOOD)
        run = subprocess.run(  # noqa: S603 - this very Python and the text above
            [sys.executable, "-c", KILLED, str(path), str(calls)],
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
        outcomes.append(path.read_text())
        assert outcomes[-1] in (GOOD, GOOD + "# more\n")
        assert mode_of(path) == 0o600
        if run.stdout:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
    assert outcomes[0] == GOOD
    assert outcomes[-1] == GOOD + "# more\n"
    assert len(outcomes) > 5
    assert names(tmp_path) == ["keys.toml"]
