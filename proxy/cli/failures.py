"""How a command says that it cannot start, or go on: every reason at once, no traceback, no value."""

import sys
from typing import NoReturn

import typer

EXIT_USAGE = 2


def give_up(what: str, problems: list[str]) -> NoReturn:
    """Prints why to standard error and exits with 2."""
    typer.echo(f"bulwark: {what}:", err=True)
    for problem in problems:
        typer.echo(f"  {problem}", err=True)
    raise typer.Exit(EXIT_USAGE)


def put_out(text: str) -> None:
    """Writes to standard output, all of it; or says why that failed and exits with 1."""
    try:
        # Not by typer, which takes an output that knows only ASCII for a mistake.
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # whoever read it has enough; typer sees to it that nothing is said of that
    except OSError as exc:
        typer.echo(f"bulwark: standard output was not written: {exc.strerror}", err=True)
        raise typer.Exit(1) from None
