"""``bulwark keys`` on files and disks that are not as they should be: what is said, and nothing lost."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.auth import keyfile, keywrite
from tests.harness.keycommands import SECONDS, Run, command, id_of, made

SHA = "a" * 64
GOOD = f'# ops\n[[key]]\nid = "aaaaaaaa"   # alice\nname = "alice"\nsha256 = "{SHA}"\n'
COMMANDS = {
    "list": "the keys cannot be listed",
    "create --name=bob": "no key was made",
    "rotate aaaaaaaa": "nothing was changed",
    "disable aaaaaaaa": "nothing was changed",
    "enable aaaaaaaa": "nothing was changed",
    "delete aaaaaaaa --yes": "nothing was changed",
}


def of(text: str | bytes, mode: int = 0o600) -> Callable[[Path], None]:
    """Puts a file there."""

    def put(path: Path) -> None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)

    return put


def kept(path: Path) -> tuple[object, ...]:
    """What is different once a file was written, or is another one."""
    status = path.lstat()
    content = path.read_bytes() if path.is_file() else b""
    return status.st_ino, status.st_mode, status.st_mtime_ns, content


@pytest.mark.parametrize("arguments", COMMANDS)
@pytest.mark.parametrize(
    ("put", "told"),
    [
        pytest.param(of(GOOD + GOOD), "line 7: has the id aaaaaaaa, as a key", id="an id twice"),
        pytest.param(of(GOOD + "a = 1\n"), "unknown field 'a' (line 6)", id="an unknown field"),
        pytest.param(of(GOOD + "concurrency = -1"), "from 1 to 65536", id="a negative limit"),
        pytest.param(of(GOOD + "\0"), "line 6, column 1: a character that is not", id="a NUL"),
        pytest.param(of(GOOD.encode() + b"\xff"), "is not UTF-8 text (line 6)", id="junk"),
        pytest.param(of(GOOD + "#" * 2**23), "is larger than 8388608 bytes", id="8 MiB"),
        pytest.param(of(GOOD, 0o620), "chmod go-w it", id="its group may write it"),
        pytest.param(Path.mkdir, "Is a directory", id="a directory"),
        pytest.param(os.mkfifo, "is not a regular file", id="a pipe"),
        pytest.param(lambda path: path.symlink_to(path), "Too many levels", id="a link to itself"),
    ],
)
def test_a_file_that_is_wrong(
    tmp_path: Path, put: Callable[[Path], None], told: str, arguments: str
) -> None:
    """Its name and what is wrong in it; it stays as it was, and nothing is left beside it."""
    path = tmp_path / "keys.toml"
    put(path)
    before = kept(path)
    run = Run(path, *arguments.split())
    assert (run.status, run.out) == (2, "")
    assert run.err.startswith(f"bulwark: {COMMANDS[arguments]}:\n  {path}: ")
    assert told in run.err
    assert kept(path) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("before", "mark"),
    [
        pytest.param(GOOD, b"", id="as it should be"),
        pytest.param(GOOD.replace("\n", "\r\n"), b"", id="lines of Windows"),
        pytest.param(GOOD, b"\xef\xbb\xbf", id="a byte order mark"),
        pytest.param(GOOD.rstrip("\n"), b"", id="no last line end"),
    ],
)
def test_a_file_that_is_unusual(tmp_path: Path, before: str, mark: bytes) -> None:
    """Is kept as it is but for what a command changes."""
    path = tmp_path / "keys.toml"
    of(mark + before.encode())(path)
    key = made(path, "--rpm=5", name="bob")
    for arguments in (("disable", "aaaaaaaa"), ("enable", "aaaaaaaa"), ("rotate", id_of(key))):
        assert Run(path, *arguments).status == 0
    content = path.read_bytes()
    assert content.startswith(mark + before.rstrip("\r\n").encode())
    assert (b"\r\n" in content) == ("\r\n" in before)
    assert (content.count(b"\n") == content.count(b"\r\n")) == ("\r\n" in before)
    assert [record.name for record in keyfile.read(path)] == ["alice", "bob", "bob"]


def test_a_link_stays_and_its_folder_is_named(tmp_path: Path) -> None:
    """The folder of what it points to, where that is not there."""
    folder = tmp_path / "elsewhere"
    link = tmp_path / "keys.toml"
    link.symlink_to(folder / "real.toml")
    run = Run(link, "create", "--name=alice")
    assert (run.status, f"has no folder to be in; make it first: {folder}" in run.err) == (2, True)
    folder.mkdir()
    key = made(link)
    assert link.is_symlink()
    assert [record.key_id for record in keyfile.read(folder / "real.toml")] == [id_of(key)]


@pytest.mark.parametrize("arguments", ["create --name=bob", "rotate aaaaaaaa", "disable aaaaaaaa"])
def test_a_disk_that_takes_no_more(tmp_path: Path, arguments: str) -> None:
    """The file is as it was, and no key is shown; with the space, the same command works."""
    path = tmp_path / "keys.toml"
    of(GOOD + "#" * 2_000 + "\n")(path)
    before = path.read_bytes()
    limited = ["/bin/bash", "-c", 'ulimit -f 1; exec "$@"', "bash"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for prefix, status in ((limited, 1), ([], 0)):
        run = subprocess.run(  # noqa: S603 - our own command
            [*prefix, *command(*arguments.split(), "--file", str(path))],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=env,
        )
        assert run.returncode == status, run.stderr
        assert (path.read_bytes() == before) == bool(status)
        assert list(tmp_path.iterdir()) == [path]
        if status:
            assert run.stdout == ""
            what = COMMANDS[arguments]
            assert run.stderr == f"bulwark: {what}: {path} was not written: File too large\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        pytest.param(errno.EACCES, f"user {os.geteuid()} must be able to write in ", id="no right"),
        pytest.param(errno.EBUSY, "mount its folder", id="mounted by itself"),
        pytest.param(errno.EROFS, "Read-only file system", id="a disk that is only read"),
    ],
)
def test_why_a_file_is_not_written(tmp_path: Path, code: int, told: str) -> None:
    """In the system's words, and with what these leave out."""
    link = tmp_path / "keys.toml"
    link.symlink_to("/var/lib/keys.toml")
    why = keywrite.why_unwritable(OSError(code, os.strerror(code)), link)
    assert why.startswith(os.strerror(code))
    assert told in why
    assert ("/var/lib" in why) == (code == errno.EACCES)


def test_a_new_key_says_how_long_it_works(tmp_path: Path) -> None:
    """Also one that comes in another's place, for it has its end."""
    path = tmp_path / "keys.toml"
    run = Run(path, "create", "--name=alice", "--expires=2099-01-31")
    assert " of alice, which works until 2099-01-31T00:00:00Z, shown this once:" in run.err
    run = Run(path, "rotate", id_of(run.out))
    assert " of alice, which works until 2099-01-31T00:00:00Z, shown this once:" in run.err
    run = Run(path, "rotate", id_of(run.out), "--expires=2099-02-01")
    assert " of alice, which works until 2099-02-01T00:00:00Z, shown this once:" in run.err


_MANY = """
import sys
from pathlib import Path
from typer.testing import CliRunner
from proxy.cli import keys

def run(*arguments):
    result = CliRunner().invoke(keys.group(), [*arguments, "--file", sys.argv[1]])
    assert result.exit_code == 0, result.stderr
    return result.stdout[6:14]

for number in range(20):
    made = run("create", "--name", f"{sys.argv[2]} {number}")
    match number % 4:
        case 1: run("disable", made)
        case 2: run("delete", made, "--yes")
        case 3: made += " " + run("rotate", made)
    print(number % 4, made)
"""


def test_processes_that_change_a_file_at_once(tmp_path: Path) -> None:
    """Each finds all that the others did."""
    path = tmp_path / "keys.toml"
    runs = [
        subprocess.Popen(  # noqa: S603 - the text above
            [sys.executable, "-c", _MANY, str(path), str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    lines = [line for run in runs for line in run.communicate(timeout=SECONDS)[0].splitlines()]
    assert [run.returncode for run in runs] == [0] * 3
    assert len(lines) == 60
    expected = {}
    for line in lines:
        what, key_id, *successor = line.split()
        if what != "2":
            expected[key_id] = (what == "1", successor[0] if successor else None)
        expected |= dict.fromkeys(successor, (False, None))
    found = {each.key_id: (each.disabled, each.replaced_by) for each in keyfile.read(path)}
    assert found == expected
