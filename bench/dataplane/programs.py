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
    content = b"".join(path.read_bytes() for path in sorted(_SOURCES.iterdir()))
    folder = cache() / "bench" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return Programs(upstream=_compiled("upstream", folder), load=_compiled("load", folder))


def _compiled(name: str, folder: Path) -> Path:
    program = folder / name
    if program.exists():
        return program
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NoCompilerError(
            "no C compiler: install gcc or clang, e.g. apt-get install gcc libc6-dev"
        )
    # Under another name until it is whole: somebody else may build the same at this moment.
    fresh = folder / f"{name}.{os.getpid()}"
    command = [compiler, *_FLAGS, "-o", str(fresh), str(_SOURCES / f"{name}.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NoCompilerError(f"{compiler} does not compile {name}.c:\n{done.stderr}")
    fresh.rename(program)
    return program
