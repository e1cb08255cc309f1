"""``bulwark keys``, as tests run it."""

import sys
from pathlib import Path

from typer.testing import CliRunner

from proxy.cli import keys

SECONDS = 50


class Run:
    """One command on the file of a test."""

    def __init__(self, path: Path, *arguments: str, environ: bool = False) -> None:
        named = [] if environ else ["--file", str(path)]
        env = {"PROXY_KEYS_FILE": str(path) if environ else None, "COLUMNS": "200"}
        result = CliRunner().invoke(keys.group(), [*arguments, *named], env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.status, self.out, self.err = result.exit_code, result.stdout, result.stderr


def command(*arguments: str) -> list[str]:
    """In a process of its own."""
    return [sys.executable, "-m", "proxy", "keys", *arguments]


def made(path: Path, *arguments: str, name: str = "alice") -> str:
    """A new key."""
    run = Run(path, "create", "--name", name, *arguments)
    assert run.status == 0, run.err
    return run.out.removesuffix("\n")


def id_of(key: str) -> str:
    """The public part of it."""
    return key[6:14]
