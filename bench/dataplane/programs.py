"""The two C programs, compiled when they are needed."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCES = Path(__file__).resolve().parent / "wire"
_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")


class NoCompilerError(Exception):
    """There is nothing to compile with, or it does not compile; the text says which."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are."""

    upstream: Path
    load: Path


def cache() -> Path:
    """Where everything that is fetched or built for the benchmark is kept."""
    default = Path.home() / ".cache" / "bulwark"
    return Path(os.environ.get("BULWARK_CACHE") or default)


def build() -> Programs:
    """Compiles what has changed since the last time.

    Raises:
        NoCompilerError: It cannot be compiled.
    """
    return Programs(upstream=compiled(_SOURCES / "upstream.c"), load=compiled(_SOURCES / "load.c"))


def compiled(source: Path, *options: str) -> Path:
    """What comes of a source and the headers beside it, kept for the next time.

    Raises:
        NoCompilerError: It cannot be compiled.
    """
    read = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    folder = cache() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{source.stem}-{hashlib.sha256(read).hexdigest()[:16]}"
    if program.exists():
        return program
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NoCompilerError(
            "no C compiler: install gcc or clang, e.g. apt-get install gcc libc6-dev"
        )
    # Under another name until it is whole: somebody else may build the same at this moment.
    fresh = folder / f"{source.stem}.{os.getpid()}"
    command = [compiler, *_FLAGS, *options, "-o", str(fresh), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NoCompilerError(f"{compiler} does not compile {source.name}:\n{done.stderr}")
    fresh.rename(program)
    return program
