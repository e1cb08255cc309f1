"""How a command says that it cannot start: every reason at once, no traceback, no value."""

from typing import NoReturn

import typer

EXIT_USAGE = 2


def give_up(what: str, problems: list[str]) -> NoReturn:
    """Prints why to standard error and exits with 2."""
    typer.echo(f"bulwark: {what}:", err=True)
    for problem in problems:
        typer.echo(f"  {problem}", err=True)
    raise typer.Exit(EXIT_USAGE)
