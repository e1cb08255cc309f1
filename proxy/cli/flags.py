"""Commands whose help shows a flag as one: typer writes ``--json <bool>``, and takes no value."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command of ours."""

    def get_params(self, ctx: Any) -> Any:
        """Its options, ``--help`` among them."""
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """Commands of ours."""

    def get_params(self, ctx: Any) -> Any:
        """Its options, ``--help`` among them."""
        return _plain(super().get_params(ctx))


def _plain(params: Any) -> Any:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params
