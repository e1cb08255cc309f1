"""``bulwark keys``: what each command does to the file, and what it prints where."""

import json
import os
import pty
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from proxy.auth import keyfile
from proxy.auth.keys import KeyRecord, KeyStore, generate, is_public_id
from proxy.cli import keys, terms
from proxy.principal import Allowance
from tests.harness.keycommands import SECONDS, Run, command, id_of, made

TERMS = (
    "--models=small, large --rpm=60 --tpm=1000 --tokens-per-day=2000 --concurrency=3 "
    "--max-prompt-chars=4000 --max-output-tokens=500"
).replace(", ", ",")
ALLOWANCE = Allowance(
    requests_per_minute=60,
    tokens_per_minute=1000,
    tokens_per_day=2000,
    concurrency=3,
    max_prompt_chars=4000,
    max_output_tokens=500,
    models=frozenset({"small", "large"}),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is to be."""
    return tmp_path / "keys.toml"


def records(path: Path) -> dict[str, KeyRecord]:
    """What the file has, by id."""
    return {record.key_id: record for record in keyfile.read(path)}


def listed(path: Path) -> dict[str, dict[str, Any]]:
    """What ``list`` says, by id."""
    run = Run(path, "list", "--json")
    assert run.status == 0
    return {row["id"]: row for row in json.loads(run.out)}


def test_a_key_is_all_that_is_printed(path: Path) -> None:
    """On standard output; the file is made, and has no more than its hash."""
    run = Run(path, "create", "--name", "alice")
    key = run.out.removesuffix("\n")
    assert re.fullmatch(r"sk-bw-[a-z0-9]{8}-[A-Za-z0-9_-]{43}", key)
    assert f"The key {id_of(key)} of alice, shown this once:" in run.err
    assert f"{path} is new; only user {os.geteuid()} can read it." in run.err
    assert key not in run.err
    assert key[15:] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert KeyStore([], keyfile.read(path)).authenticate(key.encode()).key_id == id_of(key)


def test_a_file_for_a_server_that_is_another_user(path: Path) -> None:
    """As in the container. A file that is there keeps its mode."""
    made(path, "--readable")
    assert path.stat().st_mode & 0o777 == 0o644
    made(path)
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    assert "is new" not in Run(path, "create", "--name", "x", "--readable").err
    assert path.stat().st_mode & 0o777 == 0o600


def test_all_terms(path: Path) -> None:
    """Each option is in the file, and in the list."""
    key = made(path, *TERMS.split(), "--expires=2099-01-31", name="Zoë")
    record = records(path)[id_of(key)]
    assert (record.name, record.allowance) == ("Zoë", ALLOWANCE)
    assert record.expires == datetime(2099, 1, 31, tzinfo=UTC)
    row = listed(path)[id_of(key)]
    assert (row["status"], row["expires"]) == ("active", "2099-01-31T00:00:00Z")
    assert (row["requests_per_minute"], row["models"]) == (60, ["large", "small"])


def test_the_file_of_the_setting(path: Path) -> None:
    """PROXY_KEYS_FILE, where no --file is given."""
    assert Run(path, "create", "--name", "alice", environ=True).status == 0
    assert len(records(path)) == 1
    run = Run(path, "list", "--file", "", environ=True)
    assert (run.status, "no key file: give --file" in run.err) == (2, True)


def test_what_the_operator_wrote_stays(path: Path) -> None:
    """Comments and order, through every command."""
    first, second = made(path), made(path, name="bob")
    path.write_text("# mine\n" + path.read_text().replace("\n[[", "\n# this one\n[["))
    made(path, name="carol")
    Run(path, "disable", id_of(first))
    Run(path, "enable", id_of(first))
    Run(path, "rotate", id_of(second))
    Run(path, "delete", id_of(first), "--yes")
    text = path.read_text()
    assert text.startswith("# mine\n")
    assert text.count("# this one\n") == 2
    assert [record.name for record in keyfile.read(path)] == ["bob", "carol", "bob"]


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    """With exit status 2, no value, and no file."""
    run = Run(
        tmp_path / "no" / "keys.toml",
        "create",
        "--name=\n",
        "--expires=yesterday-canary",
        "--models=a,,b",
        "--rpm=0",
        "--tpm=-1",
        "--tokens-per-day=1.5",
        "--concurrency=many-canary",
        "--max-prompt-chars=1e3",
        "--max-output-tokens=99999999999999",
    )
    assert (run.status, run.out) == (2, "")
    for option in terms.OPTIONS:
        assert f"  {option} must" in run.err
    assert "canary" not in run.err
    run = Run(Path(), "rotate", "canary", "--overlap=soon", "--expires=0s", environ=True)
    assert run.status == 2
    for wrong in ("--overlap must", "--expires must", "ID must", "no key file"):
        assert wrong in run.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param(["create", "--name=a"], "no folder to be in", id="create"),
        pytest.param(["list"], "No such file", id="list"),
        pytest.param(["rotate", "aaaaaaaa"], "no folder to be in", id="rotate"),
        pytest.param(["disable", "aaaaaaaa"], "no folder to be in", id="disable"),
        pytest.param(["enable", "aaaaaaaa"], "no folder to be in", id="enable"),
        pytest.param(["delete", "aaaaaaaa", "--yes"], "No such file", id="delete"),
    ],
)
def test_a_folder_that_is_not_there(tmp_path: Path, arguments: list[str], error: str) -> None:
    """Exit status 2, and it is not made."""
    run = Run(tmp_path / "no" / "keys.toml", *arguments)
    assert (run.status, run.out) == (2, "")
    assert error in run.err
    assert not (tmp_path / "no").exists()


COMMANDS = [
    ["create", "--name=a"],
    ["list"],
    ["rotate", "aaaaaaaa"],
    ["disable", "aaaaaaaa"],
    ["enable", "aaaaaaaa"],
    ["delete", "aaaaaaaa", "--yes"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_a_file_that_a_server_would_refuse_is_not_written_over(
    path: Path, arguments: list[str]
) -> None:
    """Its errors are told, all of them with their lines."""
    path.write_text('[[key]]\nid = "aaaaaaaa"\n\n[[key]]\nsha256 = 1\n')
    path.chmod(0o600)
    before = path.read_bytes(), path.stat()
    run = Run(path, *arguments)
    assert (run.status, run.out) == (2, "")
    assert f"{path}: the key at line 1: sha256 is missing\n" in run.err
    assert f"{path}: the key at line 4: sha256 must be" in run.err
    assert (path.read_bytes(), path.stat().st_ino) == (before[0], before[1].st_ino)


@pytest.mark.parametrize("arguments", COMMANDS[2:], ids=lambda arguments: arguments[0])
def test_a_key_that_is_not_there(path: Path, arguments: list[str]) -> None:
    """Exit status 2, and the file is as it was."""
    made(path)
    before = path.read_bytes()
    run = Run(path, *arguments)
    assert (run.status, run.out) == (2, "")
    assert "has no key with the id aaaaaaaa" in run.err
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", ["rotate", "disable", "enable", "delete"])
def test_a_key_for_an_id_is_not_repeated(path: Path, command: str) -> None:
    """Somebody will paste the whole of it."""
    key = made(path)
    run = Run(path, command, key)
    assert (run.status, "ID must be the 8" in run.err) == (2, True)
    assert key not in run.err + run.out


def test_a_key_is_switched_off_and_on(path: Path) -> None:
    """Twice is no harm."""
    key = made(path)
    for verb, status in (("disable", "disabled"), ("enable", "active")):
        for _ in range(2):
            run = Run(path, verb, id_of(key))
            assert (run.status, run.out) == (0, "")
            assert run.err == f"{id_of(key)} (alice) is {status}.\n"
        assert listed(path)[id_of(key)]["status"] == status


def test_a_key_is_rotated(path: Path) -> None:
    """The new one has its name and its terms; the old one works for a day more."""
    old = made(path, *TERMS.split(), "--expires=2099-01-31")
    run = Run(path, "rotate", id_of(old))
    new = run.out.removesuffix("\n")
    assert id_of(new) != id_of(old)
    assert f"{id_of(old)} works until 20" in run.err
    found = records(path)
    assert found[id_of(new)].allowance == ALLOWANCE
    assert found[id_of(new)].name == "alice"
    assert found[id_of(new)].expires == datetime(2099, 1, 31, tzinfo=UTC)
    assert found[id_of(old)].replaced_by == id_of(new)
    expires = found[id_of(old)].expires
    assert expires is not None
    assert timedelta(hours=23) < expires - datetime.now(UTC) <= timedelta(hours=24)
    rows = listed(path)
    assert [rows[id_of(key)]["status"] for key in (old, new)] == ["rotating", "active"]
    store = KeyStore([], keyfile.read(path))
    assert {store.authenticate(key.encode()).key_id for key in (old, new)} == set(found)


def test_a_rotation_without_an_overlap(path: Path) -> None:
    """The old key ends now."""
    old = made(path)
    Run(path, "rotate", id_of(old), "--overlap", "0")
    assert listed(path)[id_of(old)]["status"] == "expired"


def test_a_rotation_never_lengthens_the_old_keys_life(path: Path) -> None:
    """It ends when it would have ended; the new one may be given longer."""
    old = made(path, "--expires=1h")
    before = records(path)[id_of(old)].expires
    run = Run(path, "rotate", id_of(old), "--overlap=2h", "--expires=2099-01-01")
    found = records(path)
    assert found[id_of(old)].expires == before
    assert found[id_of(run.out)].expires == datetime(2099, 1, 1, tzinfo=UTC)


def test_what_is_not_rotated(path: Path) -> None:
    """What would be of no use: a disabled key, one that has a successor, one that has expired."""
    old = made(path)
    Run(path, "disable", id_of(old))
    assert "is disabled; enable it first" in Run(path, "rotate", id_of(old)).err
    Run(path, "enable", id_of(old))
    new = Run(path, "rotate", id_of(old), "--overlap=0").out
    again = Run(path, "rotate", id_of(old))
    assert (again.status, again.out) == (2, "")
    assert f"was rotated already, to {id_of(new)}" in again.err
    Run(path, "delete", id_of(new), "--yes")
    assert "has expired" in Run(path, "rotate", id_of(old)).err
    assert Run(path, "rotate", id_of(old), "--expires=1d").status == 0


def test_a_deleted_key_is_gone(path: Path) -> None:
    """And the file, without any, is not an empty one."""
    key = made(path)
    run = Run(path, "delete", id_of(key), "--yes")
    assert (run.status, run.out, run.err) == (0, "", f"{id_of(key)} (alice) is deleted.\n")
    assert records(path) == {}
    assert path.read_text().strip()


def test_deleting_asks_for_a_terminal(path: Path) -> None:
    """Without one, and without --yes, nothing is deleted."""
    key = made(path)
    run = Run(path, "delete", id_of(key))
    assert (run.status, "needs --yes" in run.err) == (2, True)
    assert len(records(path)) == 1


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1), ("", 1)])
def test_deleting_asks_on_a_terminal(path: Path, answer: str, left: int) -> None:
    """No is the answer unless it is yes."""
    key = made(path)
    ours, theirs = pty.openpty()
    run = subprocess.Popen(  # noqa: S603 - our own command
        command("delete", id_of(key), "--file", str(path)),
        stdin=theirs,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.write(ours, answer.encode() + b"\n")
    out, err = run.communicate(timeout=SECONDS)
    os.close(ours)
    os.close(theirs)
    assert f"Delete {id_of(key)} (alice), for ever?" in err
    assert (run.returncode, out) == (int(bool(left)), "")
    assert len(records(path)) == left


def test_the_table(path: Path) -> None:
    """Whole ids and values in a pipe, names as they are, and no hash."""
    first = made(path, *TERMS.split(), name="[red]alice[/red]")
    key = made(path, "--expires=2099-01-31", name="b" * 100)
    run = Run(path, "list")
    assert (run.status, run.err) == (0, "")
    for shown in (id_of(first), id_of(key), "[red]alice[/red]", "b" * 100, "2099-01-31T00:00:00Z"):
        assert shown in run.out
    assert "rpm 60, tpm 1000, tokens/day 2000, concurrency 3" in run.out
    assert "large, small" in run.out
    for record in keyfile.read(path):
        assert record.sha256.hex()[:12] not in run.out


def test_an_empty_name_is_refused(path: Path) -> None:
    """Whose key would it be?"""
    run = Run(path, "create", "--name", " ")
    assert (run.status, "--name must not be empty" in run.err) == (2, True)


def test_a_disk_that_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has failed while it ran: exit status 1, and no key."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    run = Run(path, "create", "--name", "alice")
    assert (run.status, run.out) == (1, "")
    assert f"{path} was not written: No space left on device" in run.err
    assert not path.exists()


def test_a_key_that_cannot_be_printed_is_told(path: Path) -> None:
    """It is in the file, and nobody has it."""
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(  # noqa: S603 - our own command
            command("create", "--name", "alice", "--file", str(path)),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    (key_id,) = records(path)
    assert run.returncode == 1
    assert f"could not be printed: No space left on device; delete {key_id}" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_key_that_could_not_be_shown_is_not_made(path: Path) -> None:
    """Without a standard output nothing is written."""
    run = subprocess.run(  # noqa: S603 - our own command
        [
            "/bin/sh",
            "-c",
            'exec "$@" >&-',
            "sh",
            *command("create", "--name", "a", "--file"),
            str(path),
        ],
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (run.returncode, "standard output is closed" in run.stderr) == (2, True)
    assert "Traceback" not in run.stderr
    assert not path.exists()


def test_an_output_that_knows_few_characters(path: Path) -> None:
    """A name is shown as far as it goes; in JSON it is whole."""
    made(path, name="Zoé")
    for arguments, shown in (([], "Zo?"), (["--json"], "Zo\\u00e9")):
        run = subprocess.run(  # noqa: S603 - our own command
            command("list", *arguments, "--file", str(path)),
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (run.returncode, run.stderr, shown in run.stdout) == (0, "", True)


def test_a_name_that_another_key_has_is_told(path: Path) -> None:
    """It may be meant; the key is made."""
    made(path)
    run = Run(path, "create", "--name", "alice")
    assert (run.status, "Another key has the name alice" in run.err) == (0, True)
    assert "Another key" not in Run(path, "create", "--name", "bob").err


def test_a_limit_that_the_usual_output_does_not_fit_into_is_told(path: Path) -> None:
    """The key is made; see the terms for when."""
    run = Run(path, "create", "--name", "alice", "--tpm=1000")
    assert (run.status, "gets 500 tokens of output" in run.err) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "failed"),
    [
        pytest.param(["list"], "the keys cannot be listed", id="list"),
        pytest.param(["create", "--name=a"], "no key was made", id="create"),
        pytest.param(["disable", "aaaaaaaa"], "nothing was changed", id="disable"),
    ],
)
def test_what_has_failed(path: Path, arguments: list[str], failed: str) -> None:
    """In the words of the command, whether the file is wrong or there is none."""
    path.write_text("?")
    path.chmod(0o600)
    assert Run(path, *arguments).err.startswith(f"bulwark: {failed}:\n  {path}: is not TOML")
    run = Run(Path(), *arguments, environ=True)
    assert run.err.startswith(f"bulwark: {failed}:\n  no key file")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_of_nothing_is_told_as_the_server_does(path: Path, text: str) -> None:
    """One without keys that says so is a table without rows."""
    path.write_text(text)
    path.chmod(0o600)
    run = Run(path, "list")
    assert (run.status, run.out) == (2, "")
    assert f"{path}: is empty, which is taken for a slip" in run.err
    path.write_text("# nobody\n")
    assert Run(path, "list").status == 0


def test_processes_that_make_keys_at_once_lose_none(path: Path) -> None:
    """Every key that was printed is in the file."""
    runs = [
        subprocess.Popen(  # noqa: S603 - our own command
            command("create", "--name", f"user {number}", "--file", str(path)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(8)
    ]
    printed = [run.communicate(timeout=SECONDS)[0].removesuffix("\n") for run in runs]
    store = KeyStore([], keyfile.read(path))
    assert {store.authenticate(key.encode()).key_id for key in printed} == set(records(path))
    assert len(records(path)) == 8


def test_ids_that_are_taken_are_not_given_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where chance would."""
    given: list[set[str]] = []

    def note(taken: set[str]) -> str:
        given.append(set(taken))
        return generate(taken)

    monkeypatch.setattr(keys, "generate", note)
    first, second = made(path), made(path)
    Run(path, "rotate", id_of(second))
    assert given == [set(), {id_of(first)}, {id_of(first), id_of(second)}]
    assert all(map(is_public_id, records(path)))
