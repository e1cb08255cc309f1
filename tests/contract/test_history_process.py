"""``PROXY_USAGE_DB`` of processes that are stopped, killed, and not started."""

import asyncio
import contextlib
import json
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import upstream as upstreams
from tests.harness.keys import bearer, key_file
from tests.harness.process import Process, serving
from tests.harness.programs import started
from tests.harness.running import CHAT, CHAT_BODY, JSON, KEY
from tests.harness.upstream import Upstream, response

WRITTEN_WITHIN_SECONDS = 20


def whole() -> list[bytes]:
    """An answer that has used 40 tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 20, "completion_tokens": 20}
    return [response(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())]


async def status(process: Process, key: str) -> int:
    """What a chat gets."""
    client = await process.connect()
    return (await client.request("POST", CHAT, {**bearer(key), **JSON}, CHAT_BODY)).status


def rows(path: Path) -> list[tuple[Any, ...]]:
    """All that is in the file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT charged_tokens, requests FROM usage").fetchall()


async def used_up(upstream: Upstream, keys: Path, path: Path, key: str, end: int) -> None:
    """A process in which a key uses all that it has, and that is ended by a signal."""
    async with serving(upstream.url, keys_file=str(keys), usage_db=str(path)) as process:
        assert [await status(process, key) for _ in range(2)] == [200, 429]
        if end == signal.SIGTERM:
            await process.stop()
            return
        async with asyncio.timeout(WRITTEN_WITHIN_SECONDS):
            while rows(path) != [(40, 1)]:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.05)
        await process.kill()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(signal.SIGTERM, id="stopped at once"),
        pytest.param(signal.SIGKILL, id="killed once it was written"),
    ],
)
async def test_429_before_is_429_after(tmp_path: Path, end: int) -> None:
    """Of a real command that is started again, whatever ended it."""
    keys, (key,) = key_file(tmp_path, "tokens_per_day = 40")
    path = tmp_path / "usage.db"
    async with upstreams.serve() as upstream:
        upstream.reply = whole()
        await used_up(upstream, keys, path, key, end)
        async with serving(upstream.url, keys_file=str(keys), usage_db=str(path)) as process:
            assert await status(process, key) == 429
            assert await status(process, KEY) == 200
            said = await process.stop()
    assert '"usage_' not in said
    assert sorted(rows(path)) == [(0, 1), (40, 1)]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(lambda path: path.mkdir(), "is a folder", id="a folder"),
        pytest.param(lambda path: path.write_text("x" * 999), "is not a database", id="a text"),
    ],
)
async def test_a_file_that_is_none_is_a_reason_not_to_start(
    tmp_path: Path, make: Any, why: str
) -> None:
    """Exit status 2, the setting, the file and what is wrong with it; and nothing has listened."""
    path = tmp_path / "usage.db"
    make(path)
    env = {"PROXY_API_KEYS": KEY, "PROXY_USAGE_DB": str(path), "PROXY_PORT": "0"}
    env["PROXY_ADMIN_PORT"] = "0"
    async with started(sys.executable, "-m", "proxy", "serve", env=env) as process:
        output, errors = await process.communicate()
    assert (process.returncode, output) == (2, b"")
    assert errors.decode().splitlines() == [
        "bulwark: not started, the configuration is wrong:",
        f"  PROXY_USAGE_DB: {path} {errors.decode().strip().partition(f'{path} ')[2]}",
    ]
    assert why in errors.decode()
