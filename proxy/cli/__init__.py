"""The command ``bulwark``: one module a command, put together here.

Exit statuses: 0 done, 1 something failed while it ran, 2 it was never started because the
configuration or the command line is wrong. A person never sees a traceback for the latter.
"""

import io
import sys

import typer

from proxy import __version__
from proxy.cli.failures import EXIT_USAGE
from proxy.cli.flags import Command, Group


def main() -> None:
    """Runs the command that the arguments name, and exits."""
    if sys.stdout is None:
        # A key, a log: each command has something to say that is said nowhere else.
        typer.echo("bulwark: not started:\n  standard output is closed", err=True)
        sys.exit(EXIT_USAGE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where it knows few characters, those of a name are no reason to say nothing.
        sys.stdout.reconfigure(errors="replace")
    commands = typer.Typer(
        cls=Group,
        help="The hardened front door of a self-hosted, OpenAI-compatible inference server.",
        no_args_is_help=True,
        add_completion=False,
        # Its own traceback shows local variables, and with them keys and prompts.
        pretty_exceptions_enable=False,
    )
    commands.callback()(_options)
    wanted = sys.argv[1:2]
    if wanted not in (["keys"], ["usage"], ["--version"]):
        _add_server_commands(commands)
    if wanted != ["keys"]:
        _add_usage(commands)
    _add_keys(commands)
    commands()


def _add_server_commands(commands: typer.Typer) -> None:
    # All of the server, which takes half a second that the others have no use for.
    from proxy.cli.capacity import capacity  # noqa: PLC0415
    from proxy.cli.check import check  # noqa: PLC0415
    from proxy.cli.demo import demo  # noqa: PLC0415
    from proxy.cli.serve import serve  # noqa: PLC0415

    for command in (serve, demo, check, capacity):
        commands.command(cls=Command)(command)


def _add_usage(commands: typer.Typer) -> None:
    from proxy.cli.usage import usage  # noqa: PLC0415 - reads the database, which keys have no use for

    commands.command(cls=Command)(usage)


def _add_keys(commands: typer.Typer) -> None:
    from proxy.cli import keys  # noqa: PLC0415 - what it reads files with is of no use to others

    commands.add_typer(keys.group(), name="keys")


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
