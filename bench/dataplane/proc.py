"""CPU time and memory of a server with all its processes, as Linux tells them in ``/proc``."""

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_NS_PER_SECOND = 1_000_000_000
_SESSION, _UTIME, _STIME = 3, 11, 12
"""Places of what follows the name of the program in ``stat`` (proc(5), from the field ``state`` on)."""


def stat_fields(text: str) -> list[str]:
    """The fields after the program's name, which may itself have spaces and brackets in it."""
    return text.rpartition(")")[2].split()


def session_of(stat: str) -> int:
    """The session that a process is of."""
    return int(stat_fields(stat)[_SESSION])


def ticks_ns(stat: str, ticks_per_second: int) -> int:
    """CPU time of a process, in steps of a tick."""
    fields = stat_fields(stat)
    return (int(fields[_UTIME]) + int(fields[_STIME])) * _NS_PER_SECOND // ticks_per_second


def resident_kib(status: str) -> int:
    """Memory of a process; one that is ending has none."""
    return next(
        (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0
    )


def cpu_ns(session: int) -> int:
    """CPU time, user's and system's, that all processes of a session have had."""
    return sum(_cpu_ns(process) for process in _processes(session))


def rss_mib(session: int) -> float:
    """Resident memory of all processes of a session; what they share counts for each."""
    return sum(resident_kib(_read(process / "status")) for process in _processes(session)) / 1024


def _processes(session: int) -> Iterator[Path]:
    for process in _PROC.iterdir():
        stat = _read(process / "stat") if process.name.isdigit() else ""
        if stat and session_of(stat) == session:
            yield process


def _cpu_ns(process: Path) -> int:
    # In nanoseconds, thread by thread. Ticks are of 10 ms, too coarse for nginx in a short run, and are
    # what is left where the kernel keeps no such statistics.
    try:
        threads = [_read(thread / "schedstat") for thread in (process / "task").iterdir()]
    except FileNotFoundError:
        threads = []
    if any(threads):
        return sum(int(line.split()[0]) for line in threads if line)
    stat = _read(process / "stat")
    return ticks_ns(stat, os.sysconf("SC_CLK_TCK")) if stat else 0


def _read(path: Path) -> str:
    """Empty where the process has ended meanwhile."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
