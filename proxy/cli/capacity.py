"""``bulwark capacity``: what the engine can really hold, which is not what its context says."""

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.table import Table

from proxy.cli.arithmetic import SEEN, Capacity, work_out
from proxy.cli.failures import give_up
from proxy.config import ConfigError, Settings, load
from proxy.upstream import target as targets
from proxy.upstream import transport as transports
from proxy.upstream.survey import CannotTell, Facts, survey
from proxy.upstream.target import Target

_EXIT_FAILED = 1
_PIPE_WIDTH = 10_000
_MAX_SEQUENCES = 1_000_000
_LEGEND = (
    "fit: how many the KV cache holds at once. let in: how many are let in at once, by the budget "
    "and by PROXY_MAX_INFLIGHT. The median is that of what the engine has answered.\n"
)
_NO_TOKENS = "not seen yet"


def _sequences(text: str) -> int:
    """What was given to ``--max-num-seqs``."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= _MAX_SEQUENCES):
        raise typer.BadParameter(f"a whole number from 1 to {_MAX_SEQUENCES:,} is expected.")
    return int(text)


def capacity(
    upstream: str | None = typer.Option(
        None, metavar="URL", help="The engine, in place of the one of PROXY_UPSTREAM_URL."
    ),
    max_num_seqs: int | None = typer.Option(
        None,
        metavar="N",
        parser=_sequences,
        help="What vLLM was started with, which it does not tell.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, for scripts."),
) -> None:
    """Ask the engine what it holds, and say which settings do not agree with that.

    The table has a row for each kind of request. At the caps: as large as PROXY_MAX_PROMPT_CHARS and
    PROXY_MAX_OUTPUT_TOKENS let one be. At the median seen: as large as the middle one of those that
    the engine has answered since it was started. At its full context: as large as the model allows.

    Fit is how many of them the engine's KV cache holds at once, and let in is how many Bulwark lets
    in at once: no more than PROXY_KV_BUDGET_TOKENS and PROXY_MAX_INFLIGHT allow.

    The exit status is 0 if the engine told what it holds, whatever disagrees with it; 1 if it did
    not; 2 if the command line or a setting is wrong. In JSON, "ok" is true for 0, and false for 1,
    with the reason as "problem"; what disagrees is in "findings", and what to set instead in "set".
    """
    settings, target = _given(upstream)
    try:
        facts = asyncio.run(_ask(target, settings))
    except CannotTell as exc:
        where = "PROXY_UPSTREAM_URL" if upstream is None else "--upstream"
        problem = f"{target.origin} ({where}): {exc}"
        if as_json:
            typer.echo(json.dumps({"ok": False, "problem": problem}, indent=2))
        else:
            typer.echo(f"bulwark: what the engine holds cannot be told by {problem}", err=True)
        raise typer.Exit(_EXIT_FAILED) from None
    found = work_out(dataclasses.replace(facts, seats=max_num_seqs or facts.seats), settings)
    if as_json:
        typer.echo(json.dumps(_as_json(found, settings), indent=2))
    else:
        _print(found, settings)


def _given(upstream: str | None) -> tuple[Settings, Target]:
    try:
        settings = _settings()
    except ConfigError as exc:
        give_up("the configuration is wrong", exc.problems)
    try:
        return settings, targets.parse(settings.upstream_url if upstream is None else upstream)
    except ValueError as exc:
        where = "PROXY_UPSTREAM_URL" if upstream is None else "--upstream"
        give_up("the engine cannot be asked", [f"{where} {exc}"])


def _settings() -> Settings:
    """Those of the environment, in which no key has to be: nobody is served here."""
    try:
        return load(os.environ)
    except ConfigError:
        return load({**os.environ, "PROXY_ALLOW_ANONYMOUS": "true"})


async def _ask(target: Target, settings: Settings) -> Facts:
    key = settings.upstream_api_key
    transport = transports.build(target)
    try:
        return await survey(
            transport, target, None if key is None else key.get_secret_value().encode()
        )
    finally:
        await transport.aclose()


def _as_json(found: Capacity, settings: Settings) -> dict[str, object]:
    facts, reading = found.facts, found.facts.reading
    return {
        "ok": True,
        "engine": reading.engine if reading is not None else "llamacpp",
        "pool_tokens": facts.pool_tokens,
        "budget_tokens": found.budget_tokens,
        "context_tokens": facts.context_tokens,
        "max_num_seqs": facts.seats,
        "max_inflight": settings.max_inflight,
        "running": reading.running if reading is not None else None,
        "waiting": reading.waiting if reading is not None else None,
        "requests": [dataclasses.asdict(row) for row in found.rows],
        "findings": list(found.findings),
        "set": found.set,
    }


def _print(found: Capacity, settings: Settings) -> None:
    # A pipe has no width, for which see `check`.
    console = Console(
        width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False
    )
    for line in _head(found, settings):
        console.print(line)
    console.print(_table(found))
    console.print(_LEGEND)
    for finding in found.findings or ("Nothing here disagrees, as far as the engine tells.",):
        console.print(f"* {finding}")
    if found.set:
        console.print("\nTo set:\n")
        for name, value in found.set.items():
            console.print(f"{name}={value}")


def _head(found: Capacity, settings: Settings) -> Iterator[str]:
    facts = found.facts
    yield f"KV cache        {_tokens(facts.pool_tokens)}"
    yield f"budget          {_tokens(found.budget_tokens)} (PROXY_KV_BUDGET_TOKENS={settings.kv_budget_tokens})"
    yield f"context         {_tokens(facts.context_tokens)}"
    yield f"runs at once    {facts.seats or 'not told; --max-num-seqs says it here'}"
    yield f"let in at once  {settings.max_inflight} (PROXY_MAX_INFLIGHT)"


def _tokens(tokens: int | None) -> str:
    return "not told" if tokens is None else f"{tokens:,} tokens"


def _table(found: Capacity) -> Table:
    table = Table(title="Requests that it holds")
    table.add_column("a request", no_wrap=True)
    for name in ("tokens", "fit", "let in"):
        table.add_column(name, justify="right")
    table.add_column("tokens are", overflow="fold")
    for row in found.rows:
        fit = "?" if row.fit is None else f"{row.fit:,}"
        table.add_row(row.kind, f"{row.tokens:,}", fit, f"{row.admitted:,}", row.sum)
    if not any(row.kind == SEEN for row in found.rows):
        table.add_row(SEEN, "", "", "", _NO_TOKENS)
    return table
