"""Whole proxies that share a server: one limit for all of them, and what they say of it."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from proxy.app import Clocks
from tests.harness.awake import counting
from tests.harness.client import RawResponse
from tests.harness.forwarding import until
from tests.harness.process import serving as process
from tests.harness.redis import Server
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch, Running
from tests.harness.upstream import COMPLETION, End, response, serve

LEFT = b"x-ratelimit-remaining-requests"


def clocks() -> Clocks:
    """As fast as the machine's, with a minute that has just begun."""
    began = time.monotonic()
    return Clocks(monotonic=lambda: 864_000 + time.monotonic() - began)


def events(front: Running) -> list[str]:
    """What it has said that is about Redis."""
    found = [name for name in ("redis_away", "redis_back") if f'"{name}"' in front.log.text]
    return sorted(found, key=lambda name: front.log.text.index(f'"{name}"'))


async def statuses(fronts: list[Running], each: int) -> list[int]:
    """Those of so many chats at once by each."""
    answers = await asyncio.gather(*(front.chat() for front in fronts for _ in range(each)))
    return sorted(answer.status for answer in answers)


@pytest.mark.parametrize(
    ("limits", "granted"),
    [
        pytest.param({"key_requests_per_minute": 7}, 7, id="requests a minute"),
        pytest.param({"key_concurrency": 5}, 5, id="at once"),
    ],
)
async def test_one_limit_for_two_proxies(
    own_server: Server, proxy: Launch, limits: dict[str, Any], granted: int
) -> None:
    """Twenty at once by either: as many as one proxy would have let through."""
    await own_server.early_in_a_minute()
    fronts = [await proxy(redis_url=own_server.tcp_url, **limits) for _ in range(2)]
    gate = asyncio.Event()
    for front in fronts:
        front.upstream.reply = [gate, response(COMPLETION)]
    asked = asyncio.create_task(statuses(fronts, 20))
    await until(lambda: sum(len(front.log.requests()) for front in fronts) == 40 - granted)
    gate.set()
    assert await asked == [200] * granted + [429] * (40 - granted)
    assert sum(len(front.upstream.requests) for front in fronts) == granted
    assert [events(front) for front in fronts] == [[], []]
    assert all(front.metric("bulwark_redis_away") == 0 for front in fronts)


async def test_tokens_that_one_did_not_use_the_other_has(own_server: Server, proxy: Launch) -> None:
    """Reserved here, settled here, and there for requests over there."""
    fronts = [await proxy(redis_url=own_server.url, key_tokens_per_minute=100) for _ in range(2)]
    async with own_server.client() as redis:
        for turn in range(8):
            front = fronts[turn % 2]
            front.upstream.reply = [response(COMPLETION)]
            answer = await front.chat()
            assert answer.status == 200
            assert int(answer.header(b"x-ratelimit-remaining-tokens") or 0) < 95 - 5 * turn
            async with asyncio.timeout(5):
                while await counted(redis) != 5 * (turn + 1):  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.001)


async def counted(redis: Redis) -> int:
    """The tokens that are charged in this minute or the one before."""
    counter = await redis.get("bulwark:{env-1}:tokens_per_minute")
    _, current, previous = str(counter).split()
    return int(current) + int(previous)


async def test_killed_and_started_again(own_server: Server, proxy: Launch) -> None:
    """Nobody is refused for it and nobody waits; it is told in the log, in metrics and in /status."""
    await own_server.early_in_a_minute()
    front = await proxy(
        redis_url=own_server.tcp_url, key_requests_per_minute=1_000, clocks=clocks()
    )
    assert (await front.chat()).header(LEFT) == b"999"
    await own_server.kill()
    async with counting() as awake:
        answer = await front.chat()
        assert (answer.status, answer.header(LEFT)) == (200, b"998")
        assert awake() < 0.5
    assert (await front.chat()).status == 200
    assert events(front) == ["redis_away"]
    assert front.metric("bulwark_redis_away") == 1
    assert front.metric("bulwark_redis_failures_total") >= 1
    status = await front.ask_admin("GET", "/status")
    assert status.json()["redis"] == "away"
    # Not even in the log: the address may have a password in it.
    assert str(own_server.port) not in front.log.text
    await own_server.start()
    await front.log.until(lambda: "redis_back" in front.log.text, within=10)
    assert front.metric("bulwark_redis_away") == 0
    # It has forgotten all, and is asked again.
    assert (await front.chat()).header(LEFT) == b"999"
    assert front.log.text.count('"redis_away"') == front.log.text.count('"redis_back"') == 1


async def test_frozen(own_server: Server, proxy: Launch) -> None:
    """Twenty clients at once wait a tenth of a second, once, and get the same figures."""
    await own_server.early_in_a_minute()
    front = await proxy(redis_url=own_server.tcp_url, key_requests_per_minute=10, clocks=clocks())
    for _ in range(4):
        await front.chat()
    own_server.freeze()
    async with counting() as awake:
        assert await statuses([front], 20) == [200] * 6 + [429] * 14
        assert awake() < 1
    async with counting() as awake:
        assert (await front.chat()).status == 429
        assert awake() < 0.1
    assert front.metric("bulwark_redis_away") == 1
    own_server.thaw()


async def test_closed(own_server: Server, proxy: Launch) -> None:
    """Where nobody may guess, whoever has a limit is told to come back; it counts as a fault."""
    front = await proxy(
        redis_url=own_server.tcp_url, redis_failure="closed", key_requests_per_minute=10
    )
    await own_server.kill()
    answer: RawResponse = await front.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (503, "limits_unavailable")
    assert answer.header(b"retry-after") == b"5"
    assert front.upstream.requests == []
    line = await front.log.of(answer)
    assert (line["outcome"], line["level"]) == ("limits_unavailable", "error")
    # Keys without limits are served, so it is ready.
    ready = await front.ask_admin("GET", "/readyz")
    assert (ready.status, ready.json()["redis"]) == (200, "away")


async def test_a_server_that_is_not_there_at_the_start(own_server: Server, proxy: Launch) -> None:
    """The proxy serves all the same, says so, and uses it once it is there."""
    await own_server.kill()
    front = await proxy(redis_url=own_server.tcp_url, key_requests_per_minute=10)
    await front.log.until(lambda: "redis_away" in front.log.text)
    assert (await front.chat()).status == 200
    await own_server.start()
    await front.log.until(lambda: "redis_back" in front.log.text, within=10)
    assert (await front.chat()).header(LEFT) == b"9"


async def test_a_proxy_that_is_killed_leaves_no_lease_for_long(own_server: Server) -> None:
    """What it had running ends in Redis by itself, within 30 s."""
    async with serve() as upstream:
        upstream.reply = [End.SILENCE]
        async with process(
            upstream.url, redis_url=own_server.tcp_url, key_concurrency="5"
        ) as front:
            clients = [await front.connect() for _ in range(3)]
            asked = [
                asyncio.create_task(client.request("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
                for client in clients
            ]
            await upstream.request(2)
        for task in asked:
            task.cancel()
    async with own_server.client() as redis:
        (name,) = await redis.keys("*leases")
        now, _ = await redis.time()
        ends = [await redis.zscore(name, str(it)) for it in await redis.zrange(name, 0, -1)]
        # Where the machine is busy, Redis may be too late for one, which is counted here then.
        assert 1 <= len(ends) <= 3
        assert all(end is not None and end / 10 - now <= 31 for end in ends)
        assert 0 < await redis.ttl(name) <= 30
