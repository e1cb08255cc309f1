"""``bulwark usage``: who used how much, from the file that a server keeps of it; it is only read."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import typer

from proxy.admission.history import HistoryError, Sums, sums_by_day, sums_by_key
from proxy.auth import keyfile
from proxy.auth.keyfile import KeyFileError
from proxy.cli import columns
from proxy.cli.columns import Column
from proxy.cli.failures import give_up, put_out

_PIPE_WIDTH = 10_000
_MOST_DAYS = 100_000
_FIRST_DAY = date(1970, 1, 1)
_SETTING = "PROXY_USAGE_DB"
_FAILED = "what was used cannot be shown"

_NUMBERS = ("requests", "prompt tokens", "output tokens", "charged")


class By(StrEnum):
    """What a row is of."""

    DAY = "day"
    KEY = "key"


_BY = typer.Option(By.KEY, metavar="day|key", help="What a row is of.")


def usage(
    days: int = typer.Option(
        30, metavar="N", min=1, max=_MOST_DAYS, help="Of so many days, today's among them (UTC)."
    ),
    by: By = _BY,
    as_json: bool = typer.Option(False, "--json", help="Print JSON, for scripts."),
) -> None:
    """Show who used how much, by the file of PROXY_USAGE_DB.

    Charged is what counted against the tokens_per_day of keys that have one.

    Names are those in the file of PROXY_KEYS_FILE.

    A running server adds to its file every 5 seconds.
    """
    path = _path()
    try:
        sums = (sums_by_day if by is By.DAY else sums_by_key)(path, first(days, datetime.now(UTC)))
    except HistoryError as exc:
        give_up(_FAILED, [f"{_SETTING}: {path} {exc}"])
    names = _names() if by is By.KEY and sums else {}
    rows = list(_rows(by, sums, names))
    if as_json:
        put_out(json.dumps(rows, indent=2, ensure_ascii=_only_ascii()) + "\n")
    elif rows:
        put_out("".join(f"{line}\n" for line in _table(by, rows)))
    else:
        when = "today" if days == 1 else f"in the last {days} days"
        put_out(f"No key has used anything {when} (UTC).\n")


def first(days: int, now: datetime) -> int:
    """The number of the first of so many days, of which the last is today."""
    return (now.date() - _FIRST_DAY).days - days + 1


def _path() -> Path:
    given = os.environ.get(_SETTING, "")
    if not given:
        give_up(_FAILED, [f"no file: set {_SETTING} to the one that the server has"])
    return Path(given)


def _names() -> Mapping[str, str]:
    """Of keys, by id; none where the key file does not tell."""
    if not (path := os.environ.get("PROXY_KEYS_FILE", "")):
        return {}
    try:
        return {record.key_id: record.name for record in keyfile.read(Path(path))}
    except KeyFileError as exc:
        for error in exc.errors:
            typer.echo(f"bulwark: without names: PROXY_KEYS_FILE: {path}: {error}", err=True)
        return {}


def _rows(by: By, sums: Iterable[Sums], names: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """For JSON: days from the first on, and keys from the one that used most."""
    if by is By.KEY:
        sums = sorted(sums, key=lambda each: each.prompt_tokens + each.output_tokens, reverse=True)
    for each in sums:
        if isinstance(each.of, int):
            of: dict[str, object] = {"day": str(_FIRST_DAY + timedelta(days=each.of))}
        else:
            of = {"key_id": each.of, "name": names.get(each.of, "")}
        yield of | {
            "requests": each.requests,
            "prompt_tokens": each.prompt_tokens,
            "output_tokens": each.output_tokens,
            "charged_tokens": each.charged_tokens,
        }


def _table(by: By, rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """For people: figures to the right, thousands with commas."""
    titles = (*(("day",) if by is By.DAY else ("key", "name")), *_NUMBERS)
    texts = [
        [f"{cell:,}" if isinstance(cell, int) else _printable(str(cell)) for cell in row.values()]
        for row in rows
    ]
    for place in range(len(titles) - len(_NUMBERS), len(titles)):
        widest = max(len(each) for each in (titles[place], *(row[place] for row in texts)))
        for row in texts:
            row[place] = row[place].rjust(widest)
    # A pipe has no width: a line that were broken at 80 would hide a value from grep.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
    shown = [Column(title, whole=title != "name") for title in titles]
    return columns.lines(shown, texts, width=width, only_ascii=_only_ascii())


def _printable(text: str) -> str:
    """Ids in a file that somebody has written by hand may be anything."""
    return text if text.isprintable() else ascii(text)


def _only_ascii() -> bool:
    return not (sys.stdout.encoding or "").lower().startswith("utf")
