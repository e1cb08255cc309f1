"""``bulwark check``: what would be in force, without serving."""

import json
import os
import sys

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy import app
from proxy.auth.keys import KeyStore
from proxy.cli.failures import EXIT_USAGE, give_up
from proxy.config import ConfigError, Settings
from proxy.config.describe import descriptions, shown

_PIPE_WIDTH = 10_000


def check(
    as_json: bool = typer.Option(False, "--json", help="Print JSON, for scripts."),
) -> None:
    """Print the effective settings, secrets redacted, or everything that is wrong with them.

    Nothing is made, changed or connected to.
    """
    try:
        settings, keys = _configured()
    except ConfigError as exc:
        if not as_json:
            give_up("the configuration is wrong", exc.problems)
        typer.echo(json.dumps({"ok": False, "problems": exc.problems}, indent=2))
        raise typer.Exit(EXIT_USAGE) from None
    values, warnings = _values(settings), list(keys.capped())
    warnings += app.exposed(settings)
    if app.is_forgetful(settings, keys):
        warnings.append(app.FORGETFUL)
    if as_json:
        found = {"ok": True, "keys": len(keys), "warnings": warnings, "settings": values}
        typer.echo(json.dumps(found, indent=2))
    else:
        # A pipe has no width: a line that were broken at 80 would hide a value from grep.
        Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(_table(values))
        for warning in warnings:
            typer.echo(f"* {warning}")
        typer.echo(f"Keys: {len(keys)}. The configuration is right.")


def _configured() -> tuple[Settings, KeyStore]:
    """What ``serve`` would begin with; raises for what would keep it from that, but for ports."""
    settings, keys = app.configure(os.environ)
    if problems := app.usage_problems(settings):
        raise ConfigError(problems)
    return settings, keys


def _values(settings: Settings) -> dict[str, str]:
    """Each setting by its name, as one would write it in the environment."""
    return {row.name: shown(getattr(settings, row.field)) for row in descriptions()}


def _table(values: dict[str, str]) -> Table:
    # A name or a value that is cut off is of no use, however narrow the terminal or the pipe is.
    table = Table(title="Effective settings")
    table.add_column("setting", no_wrap=True, min_width=max(map(len, values)))
    table.add_column("value", overflow="fold")
    table.add_column("unit", overflow="fold")
    table.add_column("from", overflow="fold")
    for row in descriptions():
        given = row.name in os.environ or f"{row.name}_FILE" in os.environ
        table.add_row(
            row.name, Text(values[row.name]), row.unit, "environment" if given else "default"
        )
    return table
