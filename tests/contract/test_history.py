"""A limit for a day outlives a restart: whole proxies with ``PROXY_USAGE_DB``, in process."""

import asyncio
import contextlib
import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from proxy.admission.history import History
from proxy.app import Clocks
from proxy.config import ConfigError
from tests.harness import usages
from tests.harness.client import RawResponse, request_bytes
from tests.harness.keys import bearer, key_file
from tests.harness.running import BEARER, CHAT, JSON, Launch, Running
from tests.harness.upstream import LAST_CHUNK, SSE_HEAD, End, chunk, response, sse

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
TODAY = (NOON - datetime(1970, 1, 1, tzinfo=UTC)).days
LIMIT = 40
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
BAD = "bulwark_usage_db_bad"


@dataclass
class Wall:
    """A clock on a wall, which the test sets."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        """The time."""
        return self.now

    @property
    def clocks(self) -> Clocks:
        """Of a proxy that goes by it."""
        return Clocks(now=self)


def whole(prompt: int = 30, completion: int = 10) -> list[bytes]:
    """An answer that has used so many tokens: all of the limit."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return [response(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())]


async def ask(front: Running, fields: dict[str, str] = BEARER, **members: Any) -> RawResponse:
    """A chat that may use a little more than ten tokens."""
    return await front.ask(
        "POST", CHAT, {**fields, **JSON}, json.dumps({**BODY, **members}).encode()
    )


async def ended(front: Running) -> None:
    """Its end, after a drain."""
    front.close_clients()
    front.stop.set()
    assert await front.served == 0


def history_of(front: Running) -> History:
    """What writes every 5 s, so that a test need not wait for that."""
    found: History = getattr(front.bulwark.closing[0], "__self__")  # noqa: B009 - of a method
    return found


def rows(path: Path) -> list[tuple[Any, ...]]:
    """All that is in the file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM usage ORDER BY day, key_id").fetchall()


def lines(front: Running, beginning: str = "usage") -> list[dict[str, Any]]:
    """What the log has of all this."""
    found = [json.loads(line) for line in front.log.text.splitlines()]
    return [line for line in found if line["event"].startswith(beginning)]


def put_in_place_of(path: Path) -> Path:
    """A folder, in which nothing can be kept; gives where the file went."""
    aside = path.rename(path.with_name("aside.db"))
    path.mkdir()
    return aside


def put_back(aside: Path, path: Path) -> None:
    """The file, in place of the folder."""
    path.rmdir()
    aside.rename(path)


def holds(path: Path, *texts: str) -> list[str]:
    """Those of these that are in a file."""
    content = path.read_bytes()
    return [text for text in texts if text.encode() in content]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is to be."""
    return tmp_path / "usage.db"


@pytest.mark.parametrize(
    ("file", "later", "status"),
    [
        pytest.param(True, timedelta(), 429, id="at once"),
        pytest.param(True, timedelta(hours=11, minutes=59), 429, id="before midnight"),
        pytest.param(True, timedelta(hours=17, minutes=59), 429, id="over a quarter of it counts"),
        pytest.param(True, timedelta(hours=36), 200, id="the day after tomorrow"),
        pytest.param(True, timedelta(hours=-13), 429, id="the clock was put back over midnight"),
        pytest.param(True, timedelta(days=-365), 200, id="the clock was put back a year"),
        pytest.param(False, timedelta(), 200, id="without a file"),
    ],
)
async def test_a_day_outlives_a_restart(
    proxy: Launch, path: Path, *, file: bool, later: timedelta, status: int
) -> None:
    """Who had used all of his tokens has used them after it, for as long as they count."""
    wall = Wall()
    settings: dict[str, Any] = {"key_tokens_per_day": LIMIT} | ({"usage_db": path} if file else {})
    before = await proxy(clocks=wall.clocks, **settings)
    before.upstream.reply = whole()
    assert (await ask(before)).status == 200
    assert (await ask(before)).status == 429
    await ended(before)
    wall.now += later
    after = await proxy(clocks=wall.clocks, **settings)
    after.upstream.reply = whole()
    answer = await ask(after, max_tokens=LIMIT - 15)
    assert answer.status == status
    if status == 429:
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert after.upstream.requests == []


async def test_what_is_in_it(proxy: Launch, path: Path, tmp_path: Path) -> None:
    """Numbers under ids of keys; neither keys nor texts, nor anything of who has no key."""
    keys, (one, other) = key_file(tmp_path, "tokens_per_day = 1000", "")
    front = await proxy(usage_db=path, keys_file=keys, allow_anonymous="true", clocks=Wall().clocks)
    front.upstream.reply = whole(30, 10)
    for fields in (bearer(one), bearer(one), bearer(other), BEARER, {}):
        assert (await ask(front, fields)).status == 200
    front.upstream.reply = [response(b'{"error":{}}', status=500)]
    await ask(front, bearer(one))
    await ended(front)
    assert rows(path) == sorted(
        [
            (TODAY, one[6:14], 80, 2, 60, 20),
            (TODAY, other[6:14], 0, 1, 30, 10),
            (TODAY, "env-1", 0, 1, 30, 10),
        ]
    )
    secrets = one[15:], BEARER["Authorization"][7:]
    assert holds(path, one[6:14], *secrets, "hi", "127.0.0.1", "anonymous") == [one[6:14]]
    assert lines(front) == []


@pytest.mark.parametrize(
    ("file", "fields", "asked"),
    [
        pytest.param(True, BEARER, True, id="a key and a file"),
        pytest.param(False, BEARER, False, id="a key and no file"),
        pytest.param(True, {}, False, id="a file and no key"),
    ],
)
async def test_a_key_without_a_limit_is_counted_by_the_engine(
    proxy: Launch, path: Path, fields: dict[str, str], *, file: bool, asked: bool
) -> None:
    """Where there is a file; and the client gets the stream that it asked for."""
    # A budget, or nobody would count anything where there is no file.
    settings: dict[str, Any] = {"allow_anonymous": "true", "kv_budget_tokens": 1_000_000}
    if file:
        settings["usage_db"] = path
    front = await proxy(clocks=Wall().clocks, **settings)
    figures = usages.VLLM_CHAT if asked else usages.VLLM_CHAT_UNASKED
    front.upstream.reply = [SSE_HEAD, chunk(figures), LAST_CHUNK]
    answer = await ask(front, fields, stream=True)
    assert answer.body == usages.VLLM_CHAT_UNASKED
    (request,) = front.upstream.requests
    assert (b'"include_usage":true' in request.body) is asked
    line = await front.log.of(answer)
    assert line["usage"] == ("engine" if asked else "estimate")
    await ended(front)
    assert (rows(path) if file else []) == ([(TODAY, "env-1", 0, 1, 21, 3)] if asked else [])


async def test_a_stream_that_was_left_is_in_it(proxy: Launch, path: Path) -> None:
    """As it was charged, for the engine had said nothing of it."""
    front = await proxy(usage_db=path, key_tokens_per_day=10_000, clocks=Wall().clocks)
    text = sse('{"choices":[{"delta":{"content":"' + "word " * 40 + '"}}]}')
    front.upstream.script.append([SSE_HEAD, chunk(text), End.SILENCE])
    client = await front.connect()
    stream = json.dumps({**BODY, "max_tokens": 900, "stream": True}).encode()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, stream))
    await client.read_head()
    await client.read_chunk()
    client.close()
    await front.idle()
    (line,) = front.log.requests()
    await ended(front)
    ((_, _, charged, requests, prompt, output),) = rows(path)
    assert (requests, line["usage"]) == (1, "estimate")
    assert (prompt, output) == (line["prompt_tokens"], line["completion_tokens"])
    assert charged == prompt + output >= 50


async def test_a_key_that_comes_with_another_file(
    proxy: Launch, path: Path, tmp_path: Path
) -> None:
    """It was not known at the start, and what it had used is not forgotten for that."""
    keys, (key,) = key_file(tmp_path, f"tokens_per_day = {LIMIT}")
    settings: dict[str, Any] = {"usage_db": path, "keys_file": keys, "clocks": Wall().clocks}
    before = await proxy(**settings)
    before.upstream.reply = whole()
    assert (await ask(before, bearer(key))).status == 200
    await ended(before)
    text = keys.read_text()
    keys.write_text("# none\n")
    after = await proxy(**settings)
    after.upstream.reply = whole()
    assert (await ask(after, bearer(key))).status == 403
    keys.write_text(text)
    after.bulwark.reload()
    await after.log.until(lambda: bool(lines(after, "keys_reloaded")))
    assert (await ask(after, bearer(key))).status == 429


async def test_a_file_that_cannot_be_written_for_a_while(proxy: Launch, path: Path) -> None:
    """Requests go on; it is told once, shown, and told once when it is over; nothing is lost."""
    front = await proxy(usage_db=path, key_tokens_per_day=10_000, clocks=Wall().clocks)
    front.upstream.reply = whole()
    history = history_of(front)
    aside = put_in_place_of(path)
    for _ in range(3):
        assert (await ask(front)).status == 200
        await front.idle()
        await history.flush()
    (line,) = lines(front)
    assert (line["event"], line["level"]) == ("usage_db_bad", "warning")
    assert line["problem"] == "is a folder"
    assert front.metric(BAD) == 1
    status = (await front.ask_admin("GET", "/status")).json()
    assert status["usage_db_problem"] == "is a folder"
    put_back(aside, path)
    await history.flush()
    assert front.metric(BAD) == 0
    assert [line["event"] for line in lines(front)] == ["usage_db_bad", "usage_db_back"]
    assert rows(path) == [(TODAY, "env-1", 120, 3, 90, 30)]


async def test_what_could_not_be_written_at_the_end_is_told(proxy: Launch, path: Path) -> None:
    """How many rows are lost; and the proxy ends as it should."""
    front = await proxy(usage_db=path, key_tokens_per_day=10_000, clocks=Wall().clocks)
    front.upstream.reply = whole()
    assert (await ask(front)).status == 200
    put_in_place_of(path)
    await ended(front)
    told = [(line["event"], line["level"], line.get("rows")) for line in lines(front)]
    assert told == [("usage_db_bad", "warning", None), ("usage_lost", "error", 1)]


async def test_days_to_come_are_told(proxy: Launch, path: Path) -> None:
    """The clock was wrong, or is."""
    wall = Wall()
    settings: dict[str, Any] = {"usage_db": path, "key_tokens_per_day": LIMIT}
    before = await proxy(clocks=wall.clocks, **settings)
    before.upstream.reply = whole()
    await ask(before)
    await ended(before)
    wall.now -= timedelta(days=9)
    after = await proxy(clocks=wall.clocks, **settings)
    (line,) = lines(after)
    assert (line["event"], line["level"], line["days"]) == ("usage_db_ahead", "warning", 9)


async def test_a_file_that_is_none(proxy: Launch, path: Path) -> None:
    """Nothing is put together; what is said names the setting, the file, and what is wrong."""
    path.mkdir()  # noqa: ASYNC240 - before all else
    with pytest.raises(ConfigError) as caught:
        await proxy(usage_db=path)
    assert caught.value.problems == [f"PROXY_USAGE_DB: {path} is a folder"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param({"key_tokens_per_day": 9}, True, id="a limit for a day"),
        pytest.param({"key_tokens_per_minute": 9}, False, id="only others"),
        pytest.param({"key_tokens_per_day": 9, "usage_db": "usage.db"}, False, id="a file"),
        pytest.param(
            {"key_tokens_per_day": 9, "redis_url": "redis://127.0.0.1:9"}, False, id="Redis"
        ),
    ],
)
async def test_what_a_restart_forgets_is_told(
    proxy: Launch, tmp_path: Path, settings: dict[str, Any], told: bool
) -> None:
    """Once, where there is a limit for a day and nothing that remembers it."""
    if "usage_db" in settings:
        settings = {**settings, "usage_db": tmp_path / "usage.db"}
    front = await proxy(**settings)
    assert [line["event"] for line in lines(front)] == ["usage_not_kept"] * told
    if told:
        assert "PROXY_USAGE_DB" in lines(front)[0]["problem"]


async def test_two_proxies_on_one_file(proxy: Launch, path: Path) -> None:
    """What both have charged is in it, and a third begins with that."""
    settings: dict[str, Any] = {
        "usage_db": path,
        "key_tokens_per_day": LIMIT + 40,
        "clocks": Wall().clocks,
    }
    both = [await proxy(**settings) for _ in range(2)]
    for front in both:
        front.upstream.reply = whole()
        assert (await ask(front)).status == 200
    await asyncio.gather(*map(ended, both))
    assert rows(path) == [(TODAY, "env-1", 80, 2, 60, 20)]
    third = await proxy(**settings)
    assert (await ask(third)).status == 429
    assert third.upstream.requests == []
