"""The command ``bulwark``: one module a command, put together here.

Exit statuses: 0 done, 1 something failed while it ran, 2 it was never started because the
configuration or the command line is wrong. A person never sees a traceback for the latter.
"""

import typer

from proxy import __version__
from proxy.cli import keys
from proxy.cli.capacity import capacity
from proxy.cli.check import check
from proxy.cli.demo import demo
from proxy.cli.serve import serve


def main() -> None:
    """Runs the command that the arguments name, and exits."""
    commands = typer.Typer(
        help="The hardened front door of a self-hosted, OpenAI-compatible inference server.",
        no_args_is_help=True,
        add_completion=False,
        # Its own traceback shows local variables, and with them keys and prompts.
        pretty_exceptions_enable=False,
    )
    commands.callback()(_options)
    commands.command()(serve)
    commands.command()(demo)
    commands.command()(check)
    commands.command()(capacity)
    commands.add_typer(keys.group(), name="keys")
    commands()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bulwark {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    pass
