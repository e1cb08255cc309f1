"""``bulwark serve``."""

import os

import typer

from proxy import app
from proxy.cli.failures import give_up
from proxy.config import ConfigError
from proxy.server.listeners import ListenError


def serve() -> None:
    """Serve in front of PROXY_UPSTREAM_URL until SIGTERM or Ctrl-C, then drain."""
    try:
        settings, keys = app.configure(os.environ)
        status = app.run(settings, keys)
    except ConfigError as exc:
        give_up("not started, the configuration is wrong", exc.problems)
    except ListenError as exc:
        give_up("not started", [str(exc)])
    raise typer.Exit(status)
