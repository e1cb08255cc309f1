"""On what it was measured: figures mean nothing without."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.dataplane.subjects import Subject, find

_LIBRARIES = ("fastapi", "httptools", "httpx", "jiter", "msgspec", "starlette", "uvicorn", "uvloop")
_VERSION_OPTIONS = {"nginx": "-v", "haproxy": "-v", "caddy": "version", "vllm-router": "--version"}
_ASK_SECONDS = 10


def facts(subjects: Sequence[Subject]) -> dict[str, object]:
    """What machine and what versions these are."""
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "libraries": {name: version(name) for name in _LIBRARIES},
        "programs": {
            s.program: _version(s.program) for s in subjects if s.program in _VERSION_OPTIONS
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def cpu_model(cpuinfo: str) -> str:
    """The name of the first CPU; ARM's kernels give none."""
    names = (
        line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith("model name")
    )
    return next(names, platform.machine()).strip()


def _version(program: str) -> str:
    path = find(program)
    if path is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603
            [path, _VERSION_OPTIONS[program]],
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return (done.stdout or done.stderr).strip().partition("\n")[0]
