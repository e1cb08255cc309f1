"""Writes a key file so that whoever reads it finds the old one or the new one, and no third.

Writers take turns by a lock on the folder: a file that is renamed over takes the lock on it away,
and a lock file beside it would belong to whoever came first. It works between containers, too.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from proxy.auth.keyfile import KeyFileError, read_text

_BOM = "\ufeff"
_LOCK_SECONDS = 30.0
_LOCK_PAUSE_SECONDS = 0.02
# An editor knows of no lock. It saves once; a program that writes all the time is not outrun.
_MAX_TURNS = 5


def update(
    path: Path, edit: Callable[[str], str], *, new_mode: int = 0o600, create: bool = False
) -> bool:
    """Replaces a file by what ``edit`` makes of its text, while no other writer is at it.

    What somebody saves meanwhile who takes no turns, such as an editor, is not lost: then all of it
    is done again, with what he saved.

    A symbolic link stays, and what it points to is replaced. Owner, group and mode stay, too.

    Args:
        path: Which file.
        edit: From text to text, perhaps several times; what it raises leaves everything as it is.
        new_mode: The permissions of a file that was not there.
        create: Whether it may be one that is not there.

    Returns:
        Whether the file is a new one.

    Raises:
        KeyFileError: It is not one that may be trusted, or its owner could not be kept.
        OSError: The system says no.
    """
    # Path.resolve raises what is no OSError where links go round in circles.
    target = Path(os.path.realpath(path))
    with _locked(target.parent):
        for _ in range(_MAX_TURNS):
            try:
                return _turn(target, edit, new_mode=new_mode, create=create)
            except _ChangedMeanwhileError:
                continue
    raise KeyFileError("was written by somebody else each time that it was to be; try it again")


def why_unwritable(exc: OSError, path: Path) -> str:
    """The reason in the system's words and, where these tell only half, what to do about it."""
    if isinstance(exc, PermissionError):
        folder = Path(os.path.realpath(path)).parent
        return f"{exc.strerror}; user {os.geteuid()} must be able to write in {folder}"
    if exc.errno == errno.EBUSY:
        return f"{exc.strerror}; where a file is mounted by itself, it cannot be replaced: mount its folder"
    return str(exc.strerror)


class _ChangedMeanwhileError(Exception):
    """Somebody wrote the file after it was read; it is his now."""


def _turn(target: Path, edit: Callable[[str], str], *, new_mode: int, create: bool) -> bool:
    status = _status(target, create=create)
    text = "" if status is None else read_text(target)
    mark = _BOM if status is not None and _has_bom(target) else ""
    changed = edit(text)
    if changed != text or status is None:
        _replace(target, (mark + changed).encode(), status, new_mode)
    return status is None


def _status(target: Path, *, create: bool) -> os.stat_result | None:
    try:
        return target.lstat()
    except FileNotFoundError:
        if create:
            return None
        raise KeyFileError("cannot be read: No such file or directory") from None


def _has_bom(target: Path) -> bool:
    with target.open("rb") as file:
        return file.read(3) == _BOM.encode()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        # By name: where the file is a link, it is not the folder that whoever asks would look at.
        raise KeyFileError(f"has no folder to be in; make it first: {folder}") from None
    except NotADirectoryError:
        raise KeyFileError(f"is in something that is no folder: {folder}") from None
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _lock(descriptor):
            if time.monotonic() > deadline:
                raise KeyFileError("is being written by somebody else, for a long time now")
            time.sleep(_LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        # A folder on NFS, for one.
        raise KeyFileError(
            f"cannot be locked: {exc.strerror}; change it on a disk of this machine"
        ) from None
    return True


def _replace(target: Path, content: bytes, old: os.stat_result | None, new_mode: int) -> None:
    beside = target.with_name(f".{target.name}.new")
    # What a writer left that was killed: nobody else is at it now.
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    # Exclusive: it is a new file of ours, whatever somebody may have put there in between.
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _own(descriptor, old, new_mode)
            # Before the new name is: after a power cut it must not name an empty file.
            os.fsync(descriptor)
        # As late as can be: between this and the new name there is nothing that waits.
        _check_unchanged(target, old)
        beside.rename(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        raise
    _sync(target.parent)


def _check_unchanged(target: Path, old: os.stat_result | None) -> None:
    try:
        now = _marks(target.lstat())
    except FileNotFoundError:
        now = None
    if now != (None if old is None else _marks(old)):
        raise _ChangedMeanwhileError


def _marks(status: os.stat_result) -> tuple[int, ...]:
    """What is different once a file was written, or is another one."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _own(descriptor: int, old: os.stat_result | None, new_mode: int) -> None:
    """Gives a new file the owner and the permissions of the one whose place it takes."""
    if old is None:
        os.fchmod(descriptor, new_mode)  # whatever the umask
        return
    ours = os.fstat(descriptor)
    if (ours.st_uid, ours.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:
            # Else the server that can read the old one could no more.
            raise KeyFileError(
                f"belongs to user {old.st_uid} and group {old.st_gid}, which user {os.geteuid()} "
                "cannot give to a file; run this as that user or as root"
            ) from None
    os.fchmod(descriptor, old.st_mode & 0o7777)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
