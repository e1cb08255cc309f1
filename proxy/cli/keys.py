"""``bulwark keys``: the key file, from the side of whoever hands out keys.

A fresh key is the only thing on standard output, so that ``KEY=$(bulwark keys create …)`` has it;
everything else that is said goes to standard error.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Container, Iterator
from datetime import UTC, datetime
from pathlib import Path

import typer

from proxy.auth import keyedit, keyfile, keywrite
from proxy.auth.keyfile import KeyFileError
from proxy.auth.keys import KeyRecord, digest, generate, is_public_id, public_id
from proxy.cli import keylist, terms
from proxy.cli.failures import give_up, put_out
from proxy.cli.flags import Command, Group

_PIPE_WIDTH = 10_000
_PRIVATE, _READABLE = 0o600, 0o644
_NO_KEY = "no key was made"

_FILE = typer.Option(
    None,
    "--file",
    help="The key file; else the one of PROXY_KEYS_FILE.",
    readable=False,  # typer's own check, which says less than ours
)
_ID = typer.Argument(metavar="ID", help="The 8 characters of a key after sk-bw-.")
_EXPIRES = typer.Option(
    None, metavar="WHEN", help="90d, 24h, 30m, 45s from now, or a date as 2027-01-31 (UTC)."
)


def group() -> typer.Typer:
    """The commands, for the program to take in."""
    commands = typer.Typer(
        cls=Group,
        help="Make, list and withdraw keys. A running server takes the file's changes by itself.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    for command in (create, list_, rotate, disable, enable, delete):
        commands.command(command.__name__.rstrip("_"), cls=Command)(command)
    return commands


def create(
    *,
    name: str = typer.Option(..., help="Whose key it is, for your own list."),
    expires: str | None = _EXPIRES,
    models: str | None = typer.Option(None, metavar="A,B", help="The only models it may use."),
    rpm: str | None = typer.Option(None, metavar="N", help="Requests a minute."),
    tpm: str | None = typer.Option(None, metavar="N", help="Tokens a minute."),
    tokens_per_day: str | None = typer.Option(None, metavar="N", help="Tokens a day."),
    concurrency: str | None = typer.Option(None, metavar="N", help="Requests at one moment."),
    max_prompt_chars: str | None = typer.Option(
        None, metavar="N", help="Characters of one prompt, up to PROXY_MAX_PROMPT_CHARS_CEILING."
    ),
    max_output_tokens: str | None = typer.Option(
        None, metavar="N", help="Tokens of one output, up to PROXY_MAX_OUTPUT_TOKENS_CEILING."
    ),
    readable: bool = typer.Option(
        False,
        "--readable",
        help="Let everybody read a file that is new (mode 0644): for a server that is another "
        "user, such as the container's. It has hashes only.",
    ),
    file: Path | None = _FILE,
) -> None:
    """Make a key and print it, this once. The file has only its hash, and is made if need be."""
    options = {
        "--name": name,
        "--expires": expires,
        "--models": models,
        "--rpm": rpm,
        "--tpm": tpm,
        "--tokens-per-day": tokens_per_day,
        "--concurrency": concurrency,
        "--max-prompt-chars": max_prompt_chars,
        "--max-output-tokens": max_output_tokens,
    }
    problems: list[str] = []
    fields: dict[str, object] = {}
    try:
        fields = terms.entry(options, _now())
    except terms.TermsError as exc:
        problems += exc.problems
    path = _path(file, problems, failed=_NO_KEY)
    made: list[tuple[str, int]] = []

    def add(text: str) -> str:
        records = keyfile.parse(text)
        key = generate({record.key_id for record in records})
        made.append((key, sum(record.name == name for record in records)))
        return keyedit.append(text, {**_identity(key), **fields})

    with _complaining(path, _NO_KEY):
        mode = _READABLE if readable else _PRIVATE
        if keywrite.update(path, add, new_mode=mode, create=True):
            who = "everybody" if readable else f"only user {os.geteuid()}"
            _say(f"{path} is new; {who} can read it.")
    key, namesakes = made[-1]
    if namesakes:
        _say(f"Another key has the name {name}; if this one is in its place: bulwark keys rotate.")
    if hint := terms.hint(fields):
        _say(hint)
    _hand_over(key, name, fields.get("expires"))


def list_(
    as_json: bool = typer.Option(False, "--json", help="Print JSON, for scripts."),
    file: Path | None = _FILE,
) -> None:
    """List the keys: ids and terms, no key and no hash."""
    failed = "the keys cannot be listed"
    path = _path(file, failed=failed)
    with _complaining(path, failed):
        text = keyfile.read_text(path)
        keyfile.check_not_empty(text)
        records = keyfile.parse(text)
    only_ascii = not (sys.stdout.encoding or "").lower().startswith("utf")
    if as_json:
        rows = keylist.rows(records, _now())
        put_out(json.dumps(rows, indent=2, ensure_ascii=only_ascii) + "\n")
    else:
        # A pipe has no width: a line that were broken at 80 would hide a value from grep.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        lines = keylist.table(records, _now(), width=width, only_ascii=only_ascii)
        put_out("".join(f"{line}\n" for line in lines))


def rotate(
    key_id: str = _ID,
    overlap: str = typer.Option(
        "24h", metavar="DURATION", help="How long both keys work; 0 ends the old one now."
    ),
    expires: str | None = _EXPIRES,
    file: Path | None = _FILE,
) -> None:
    """Make a new key on the old one's terms, print it, and let the old one expire."""
    now = _now()
    problems: list[str] = []
    until = now
    fields: dict[str, object] = {}
    try:
        until = (now + terms.overlap(overlap)).replace(microsecond=0)
    except ValueError as exc:
        problems.append(f"--overlap must be {exc}")
    try:
        fields = terms.entry({"--expires": expires}, now)
    except terms.TermsError as exc:
        problems += exc.problems
    path = _path(file, problems, key_id)
    made: list[tuple[str, KeyRecord, datetime]] = []

    def turn(text: str) -> str:
        records = {record.key_id: record for record in keyfile.parse(text)}
        old = records[key_id]
        if obstacle := _no_turn(old, records, now, renewed=bool(fields)):
            raise KeyFileError(f"{key_id} {obstacle}")
        key = generate(records)
        last = until if old.expires is None else min(until, old.expires)
        made.append((key, old, last))
        text = keyedit.change(text, key_id, expires=last, replaced_by=public_id(key))
        return keyedit.append(text, {**_given(old), **_identity(key), **fields})

    with _complaining(path):
        keywrite.update(path, turn)
    key, old, last = made[-1]
    _say(f"{key_id} works until {keylist.shown(last)}.")
    _hand_over(key, old.name, fields.get("expires", old.expires))


def disable(key_id: str = _ID, file: Path | None = _FILE) -> None:
    """Refuse a key until it is enabled again."""
    _switch(_path(file, [], key_id), key_id, disabled=True)


def enable(key_id: str = _ID, file: Path | None = _FILE) -> None:
    """Accept a disabled key again, for as long as it has not expired."""
    _switch(_path(file, [], key_id), key_id, disabled=False)


def delete(
    key_id: str = _ID,
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    file: Path | None = _FILE,
) -> None:
    """Take a key out of the file, for ever."""
    path = _path(file, [], key_id)
    if not yes and not sys.stdin.isatty():
        give_up("nothing was changed", ["deleting a key without a terminal to ask on needs --yes"])
    with _complaining(path):
        record = _record(keyfile.read(path), key_id)
        if not (yes or _agreed(f"Delete {_called(record)}, for ever?")):
            _say("Nothing was changed.")
            raise typer.Exit(1)
        keywrite.update(path, lambda text: keyedit.remove(text, key_id))
    _say(f"{_called(record)} is deleted.")


def _switch(path: Path, key_id: str, *, disabled: bool) -> None:
    def turn(text: str) -> str:
        if _record(keyfile.parse(text), key_id).disabled == disabled:
            return text
        return keyedit.change(text, key_id, disabled=disabled)

    with _complaining(path):
        keywrite.update(path, turn)
        record = _record(keyfile.read(path), key_id)
    _say(f"{_called(record)} is {keylist.status(record, _now())}.")


def _no_turn(
    old: KeyRecord, records: Container[str], now: datetime, *, renewed: bool
) -> str | None:
    """Why a key has no successor; None if it can have one."""
    if old.disabled:
        return "is disabled; enable it first"
    if old.replaced_by in records:
        return f"was rotated already, to {old.replaced_by}; to end it now, disable it"
    if not (old.is_valid(now) or renewed):
        return "has expired, and so would what comes in its place; give --expires"
    return None


def _path(
    file: Path | None,
    problems: list[str] | None = None,
    key_id: str = "",
    *,
    failed: str = "nothing was changed",
) -> Path:
    """The key file; gives up with all that is wrong with the command line, if anything is."""
    problems = list(problems or ())
    if key_id and not is_public_id(key_id):
        problems.append(
            "ID must be the 8 lower-case letters and digits after sk-bw-, as bulwark keys list shows"
        )
    given = str(file) if file is not None else os.environ.get("PROXY_KEYS_FILE", "")
    # An empty --file is the folder that we are in.
    if given in ("", "."):
        problems.append("no key file: give --file, or set PROXY_KEYS_FILE")
    if problems:
        give_up(failed, problems)
    return Path(given)


@contextlib.contextmanager
def _complaining(path: Path, failed: str = "nothing was changed") -> Iterator[None]:
    """Says what is wrong with the file, and exits; then it is as it was."""
    try:
        yield
    except KeyFileError as exc:
        give_up(failed, [f"{path}: {error}" for error in exc.errors])
    except KeyError as exc:
        give_up(failed, [f"{path}: has no key with the id {exc.args[0]}"])
    except OSError as exc:
        why = keywrite.why_unwritable(exc, path)
        typer.echo(f"bulwark: {failed}: {path} was not written: {why}", err=True)
        raise typer.Exit(1) from None


def _agreed(question: str) -> bool:
    # typer's own writes a space to standard output.
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _record(records: list[KeyRecord], key_id: str) -> KeyRecord:
    return {record.key_id: record for record in records}[key_id]


def _identity(key: str) -> dict[str, object]:
    return {"id": public_id(key), "sha256": digest(key.encode()).hex()}


def _given(record: KeyRecord) -> dict[str, object]:
    """A key's name and terms, as the file has them."""
    (row,) = keylist.rows([record], _now())
    return {
        name: row[name] for name in ("name", "models", *terms.OPTIONS.values()) if name in row
    } | {"expires": record.expires}


def _hand_over(key: str, name: str, expires: object) -> None:
    until = f", which works until {keylist.shown(expires)}" if isinstance(expires, datetime) else ""
    _say(f"The key {public_id(key)} of {name}{until}, shown this once:")
    try:
        typer.echo(key)
        sys.stdout.flush()
    except OSError as exc:
        _say(f"bulwark: it could not be printed: {exc.strerror}; delete {public_id(key)}")
        raise typer.Exit(1) from None


def _called(record: KeyRecord) -> str:
    return f"{record.key_id} ({record.name})" if record.name else record.key_id


def _now() -> datetime:
    return datetime.now(UTC)


def _say(text: str) -> None:
    typer.echo(text, err=True)
