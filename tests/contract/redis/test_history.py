"""``PROXY_USAGE_DB`` beside Redis: it records, and the books are Redis's."""

import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from proxy.app import Clocks
from tests.harness.redis import Server
from tests.harness.running import Launch, Running
from tests.harness.upstream import COMPLETION, response


def rows(path: Path) -> list[tuple[Any, ...]]:
    """All that is in the file, but for the day."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT key_id, sum(charged_tokens), sum(requests), sum(prompt_tokens + output_tokens)"
            " FROM usage GROUP BY key_id"
        ).fetchall()


def left(path: Path, tokens: int) -> None:
    """A day on which the key had used so many, as another process would have left it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE usage SET charged_tokens = ?", (tokens,))
        connection.commit()


async def one_chat(proxy: Launch, **settings: Any) -> int:
    """What is left of the limit after it, in a proxy that ends then."""
    front: Running = await proxy(key_tokens_per_day=1_000, **settings)
    front.upstream.reply = [response(COMPLETION)]
    answer = await front.chat()
    assert answer.status == 200
    front.close_clients()
    front.stop.set()
    assert await front.served == 0
    return int(answer.header(b"x-ratelimit-remaining-tokens") or 0)


async def test_the_books_are_those_of_redis(
    own_server: Server, proxy: Launch, tmp_path: Path
) -> None:
    """What the file says does not count twice; without Redis it is what counts."""
    path = tmp_path / "usage.db"
    with_redis = {"usage_db": path, "redis_url": own_server.tcp_url}
    first = await one_chat(proxy, **with_redis)
    assert rows(path) == [("env-1", 5, 1, 5)]
    left(path, 900)
    assert await one_chat(proxy, **with_redis) == first - 5
    assert rows(path) == [("env-1", 905, 2, 10)]
    assert await one_chat(proxy, usage_db=path) == first - 905


async def test_what_was_counted_here_meanwhile_is_recorded(
    own_server: Server, proxy: Launch, tmp_path: Path
) -> None:
    """While Redis is away, and each request once; also if Redis has still to hear of its end."""
    path = tmp_path / "usage.db"
    await own_server.kill()
    await one_chat(proxy, usage_db=path, redis_url=own_server.tcp_url, key_concurrency=9)
    assert rows(path) == [("env-1", 5, 1, 5)]


async def test_a_day_is_one_of_whoever_keeps_the_books(
    own_server: Server, proxy: Launch, tmp_path: Path
) -> None:
    """Where this machine's clock is wrong, what Redis has charged is still in Redis's day."""
    path = tmp_path / "usage.db"
    clocks = Clocks(now=lambda: datetime.now(UTC) - timedelta(days=9))
    await one_chat(proxy, usage_db=path, redis_url=own_server.tcp_url, clocks=clocks)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        days = connection.execute("SELECT day, charged_tokens FROM usage ORDER BY day").fetchall()
    (ours, nothing), (theirs, charged) = days
    assert (theirs - ours, nothing, charged) == (9, 0, 5)
