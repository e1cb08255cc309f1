"""RL: keys that change while the proxy serves."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import compose
from tests.harness.keys import bearer, key_file
from tests.harness.programs import run
from tests.harness.running import CHAT, CHAT_BODY, JSON, Launch, Running

PATIENCE_SECONDS = 20.0


def said(front: Running, event: str) -> int:
    """How often the log has this event."""
    return sum(json.loads(line)["event"] == event for line in front.log.text.splitlines())


async def heard(front: Running, event: str = "keys_reloaded", times: int = 1) -> None:
    """Returns once the log has it so many times."""
    await front.log.until(lambda: said(front, event) >= times, within=PATIENCE_SECONDS)


async def status(front: Running, key: str) -> int:
    """What a chat with this key gets, on a connection of its own."""
    return (await front.chat(**bearer(key))).status


def other(folder: Path) -> tuple[str, str]:
    """The text of a file with another key, and that key."""
    folder.mkdir()
    path, (key,) = key_file(folder, "")
    return path.read_text(), key


def as_vim_does(path: Path, text: str) -> None:
    """The old file becomes the backup; a new one takes its name and is written there."""
    path.rename(path.with_name("keys.toml~"))
    path.write_text(text)
    path.chmod(0o600)
    path.with_name("keys.toml~").unlink()


def by_rename(path: Path, text: str) -> None:
    """Written beside it, and renamed over it."""
    new = path.with_name("4913")
    new.write_text(text)
    new.chmod(0o600)
    new.rename(path)


def in_place(path: Path, text: str) -> None:
    """Emptied, then written."""
    path.write_text(text)


@pytest.mark.case("RL-01")
@pytest.mark.parametrize("write", [as_vim_does, by_rename, in_place])
async def test_a_file_that_an_editor_replaces(
    proxy: Launch, tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    """Whatever number the file has afterwards, it is its name that is looked at."""
    path, (old,) = key_file(tmp_path, "")
    front = await proxy(keys_file=path, api_keys=None)
    text, new = other(tmp_path / "new")
    write(path, text)
    await heard(front)
    assert (await status(front, old), await status(front, new)) == (403, 200)


@pytest.mark.case("RL-01")
async def test_a_file_that_sed_replaces(proxy: Launch, tmp_path: Path) -> None:
    """By rename, too."""
    path, (key,) = key_file(tmp_path, "")
    front = await proxy(keys_file=path, api_keys=None)
    number = path.stat().st_ino
    assert (await run("sed", "-i", "$a disabled = true", path)).status == 0
    assert path.stat().st_ino != number
    await heard(front)
    assert await status(front, key) == 403


@pytest.mark.case("RL-01")
def test_the_container_has_the_folder() -> None:
    """A file that were mounted by itself would stay the one that it was when the container started."""
    volumes = compose.files()["compose.yaml"]["services"]["proxy"]["volumes"]
    assert [(each["source"], each["target"]) for each in volumes] == [("./keys", "/etc/bulwark")]


def empty(path: Path) -> None:
    """Cut to nothing."""
    os.truncate(path, 0)


def forbid(path: Path) -> None:
    """No right for anybody; root, who needs none, gets one that answers with an error."""
    path.chmod(0o000)
    if os.geteuid() == 0:
        path.unlink()
        path.symlink_to("/proc/self/mem")


def fill_with_junk(path: Path) -> None:
    """Bytes that are no text."""
    path.write_bytes(bytes(range(256)) * 16)


def delete(path: Path) -> None:
    """Away."""
    path.unlink()


def replace_by_a_folder(path: Path) -> None:
    """As a container engine does with what it cannot find."""
    path.unlink()
    path.mkdir()


@pytest.mark.case("RL-02")
@pytest.mark.parametrize("spoil", [empty, forbid, fill_with_junk, delete, replace_by_a_folder])
async def test_a_file_that_nothing_can_be_read_from(
    proxy: Launch, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """The last good keys are in force, and no others; loud in the log and in the metrics."""
    path, (key,) = key_file(tmp_path, "")
    front = await proxy(keys_file=path, api_keys=None)
    spoil(path)
    await heard(front, "keys_not_reloaded")
    assert front.metric("bulwark_keys_file_bad") == 1
    assert await status(front, key) == 200
    assert await status(front, other(tmp_path / "new")[1]) == 403
    assert (await front.ask("POST", CHAT, JSON, CHAT_BODY)).status == 401


@pytest.mark.case("RL-05")
async def test_one_key_after_the_other(proxy: Launch, tmp_path: Path) -> None:
    """Both work until one is taken out, and nobody waits meanwhile."""
    path, (old,) = key_file(tmp_path, "")
    front = await proxy(keys_file=path, api_keys=None)
    text, new = other(tmp_path / "new")
    by_rename(path, path.read_text() + text)
    await heard(front)
    assert (await status(front, old), await status(front, new)) == (200, 200)
    by_rename(path, text)
    await heard(front, times=2)
    assert (await status(front, old), await status(front, new)) == (403, 200)


@pytest.mark.case("RL-07")
async def test_every_request_after_a_reload_finds_the_same_keys(
    proxy: Launch, tmp_path: Path
) -> None:
    """There is one process; two of them with one file both look at it."""
    path, (old,) = key_file(tmp_path, "")
    fronts = [await proxy(keys_file=path, api_keys=None) for _ in range(2)]
    text, new = other(tmp_path / "new")
    by_rename(path, text)
    for front in fronts:
        await heard(front)
    # Not ten wrong ones, after which it is for guessing that they are refused.
    asked = [old] * 8 + [new] * 22
    found = await asyncio.gather(*(status(front, key) for front in fronts for key in asked))
    assert found == ([403] * 8 + [200] * 22) * 2
