"""Several people and one engine: nobody's burst starves the rest, and the engine is not overrun."""

import asyncio
import json
from typing import Any

import pytest

from tests.harness.client import RawClient, request_bytes
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, JSON, KEY, Launch, Running
from tests.harness.upstream import COMPLETION, ReceivedRequest, Script, response

MODEST = "sk-test-" + "m" * 40
TWO_KEYS = f"{KEY},{MODEST}"
WHO = {
    "g": BEARER,
    "m": {"Authorization": f"Bearer {MODEST}"},
    # Without a key, from three subscribers' networks of one provider, or of one man's /48.
    "s": {"CF-Connecting-IP": "2001:db8:0:1::7"},
    "t": {"CF-Connecting-IP": "2001:db8:0:2::7"},
    "u": {"CF-Connecting-IP": "2001:db8:0:3::7"},
}
"""Whose key a request carries, by the first letter of its name."""

SECONDS = 20.0
"""How long may be waited for what takes two of the monitor's readings."""


class Engine:
    """Answers each chat when it is let go; by its name, which is the model that it asks for.

    Attributes:
        asked: The chats that have come, in order.
        runs: How many it says that it runs at once, of those that it has.
    """

    def __init__(self, running: Running, runs: int = 1_000, pool: int = 100_000) -> None:
        self.asked: list[str] = []
        self.runs = runs
        self.pool = pool
        self.readings = 0
        self._there: set[str] = set()
        self._gates: dict[str, asyncio.Event] = {}
        self._running = running
        running.upstream.reply = self

    def __call__(self, request: ReceivedRequest) -> Script:
        """The answer, to a client or to the monitor."""
        if request.target == b"/health":
            return [response(b"")]
        if request.target == b"/metrics":
            self.readings += 1
            return [response(self._page())]
        name = json.loads(request.body)["model"]
        self.asked.append(name)
        self._there.add(name)
        return [self._gate(name), response(COMPLETION)]

    def _page(self) -> bytes:
        there = len(self._there)
        return (
            f"vllm:num_requests_running {min(self.runs, there)}\n"
            f"vllm:num_requests_waiting {max(0, there - self.runs)}\n"
            f"vllm:kv_cache_usage_perc 0.5\n"
            f'vllm:cache_config_info{{kv_cache_size_tokens="{self.pool}"}} 1\n'
        ).encode()

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def send(self, *names: str, output: int = 16, text: str = "hi") -> list[RawClient]:
        """Sends chats, each once the one before it is answered, waits or is asked upstream."""
        clients = []
        for name in names:
            message = [{"role": "user", "content": text}]
            body = {"model": name, "messages": message, "max_tokens": output}
            clients.append(await self._running.connect())
            fields, sent = {**WHO[name[0]], **JSON}, json.dumps(body).encode()
            before = self._met()
            await clients[-1].send(request_bytes("POST", CHAT, fields, sent))
            await until(lambda before=before: self._met() > before)  # type: ignore[misc]
        return clients

    def _met(self) -> int:
        """How many requests have got as far as they get for now, or are over."""
        waiting = int(self._running.metric("bulwark_queue_length"))
        return waiting + len(self.asked) + len(self._running.log.requests())

    async def finish(self, *names: str) -> None:
        """Has these answered."""
        over = len(self._running.log.requests()) + len(names)
        for name in names:
            self._there.discard(name)
            self._gate(name).set()
        await until(lambda: len(self._running.log.requests()) >= over)

    async def end(self, *clients: RawClient) -> None:
        """Everything is answered, nothing is left."""
        self._there.clear()
        for name in self.asked:
            self._gate(name).set()
        for client in clients:
            answer = asyncio.create_task(client.read_response())
            while not answer.done():
                for name in self.asked:
                    self._gate(name).set()
                await asyncio.sleep(0)
            assert (await answer).status == 200
        await self._running.idle()
        for gauge in ("slots_in_use", "queue_length", "kv_reserved_tokens"):
            assert self._running.metric(f"bulwark_{gauge}") == 0


async def assert_overloaded(running: Running, client: RawClient, *said: str) -> None:
    """The refusal of a full queue, as its client, the log and the metrics see it."""
    answer = await client.read_response()
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (503, "overloaded")
    assert all(word in error["message"] for word in said)
    assert 1 <= int(answer.header(b"retry-after") or 0) <= 60
    line = await running.log.of(answer)
    assert (line["status"], line["outcome"], line["level"]) == (503, "overloaded", "warning")
    labels = {"endpoint": "chat.completions", "reason": "overloaded"}
    assert running.metric("bulwark_refusals_total", **labels) == 1


async def test_one_key_leaves_room_for_others(proxy: Launch) -> None:
    """Three quarters of the places are as many as it gets; another key comes in past its queue."""
    running = await proxy(api_keys=TWO_KEYS, max_inflight=4)
    engine = Engine(running)
    greedy = await engine.send("g1", "g2", "g3", "g4", "g5")
    assert engine.asked == ["g1", "g2", "g3"]
    modest = await engine.send("m1")
    assert engine.asked == ["g1", "g2", "g3", "m1"]
    await engine.finish("g2")
    await until(lambda: len(engine.asked) == 5)
    assert engine.asked[-1] == "g4"
    await engine.end(*greedy, *modest)


async def test_a_key_alone_has_all_places(proxy: Launch) -> None:
    """Nothing is kept for nobody."""
    running = await proxy(max_inflight=4)
    engine = Engine(running)
    clients = await engine.send("g1", "g2", "g3", "g4", "g5")
    assert engine.asked == ["g1", "g2", "g3", "g4"]
    await engine.end(*clients)


async def test_strangers_give_way_to_a_key(proxy: Launch) -> None:
    """From however many networks they come: their turn comes after the key's, having had one."""
    running = await proxy(
        allow_anonymous="true",
        trusted_proxies="127.0.0.1",
        client_ip_header="CF-Connecting-IP",
        max_inflight=1,
        queue_size=2,
    )
    engine = Engine(running)
    clients = await engine.send("s1", "t1", "u1", "g1")
    await assert_overloaded(running, clients.pop(2), "came without a key", "PROXY_QUEUE_SIZE")
    assert engine.asked == ["s1"]
    await engine.end(*clients)
    assert engine.asked == ["s1", "g1", "t1"]


async def test_keys_take_turns(proxy: Launch) -> None:
    """Whoever comes last waits behind one of each other key at most, not behind all."""
    running = await proxy(api_keys=TWO_KEYS, max_inflight=1)
    engine = Engine(running)
    clients = await engine.send("g1", "g2", "g3", "g4", "m1", "m2")
    assert engine.asked == ["g1"]
    await engine.end(*clients)
    assert engine.asked == ["g1", "m1", "g2", "m2", "g3", "g4"]


async def test_the_greedy_gives_way(proxy: Launch) -> None:
    """Of a full queue, its youngest: it is told at once, and the newcomer is served."""
    running = await proxy(api_keys=TWO_KEYS, max_inflight=1, queue_size=3)
    engine = Engine(running)
    *greedy, youngest = await engine.send("g1", "g2", "g3", "g4")
    modest = await engine.send("m1")
    await assert_overloaded(running, youngest, "gave way", "PROXY_QUEUE_SIZE")
    assert running.metric("bulwark_queue_length") == 3
    await engine.end(*greedy, *modest)
    assert engine.asked == ["g1", "m1", "g2", "g3"]


async def test_no_way_is_given_to_whoever_has_as_many(proxy: Launch) -> None:
    """Then it is the newcomer that is told, and nobody is thrown out for it."""
    running = await proxy(api_keys=TWO_KEYS, max_inflight=1, queue_size=2)
    engine = Engine(running)
    clients = await engine.send("g1", "g2", "m1")
    (refused,) = await engine.send("m2")
    await assert_overloaded(running, refused, "PROXY_MAX_INFLIGHT", "PROXY_QUEUE_SIZE")
    await engine.end(*clients)


@pytest.mark.parametrize("leaving", ["close", "reset"])
async def test_who_leaves_the_queue_frees_its_place(proxy: Launch, leaving: str) -> None:
    """At once, and the engine never hears of it."""
    running = await proxy(max_inflight=1, queue_size=1)
    engine = Engine(running)
    first, gone = await engine.send("g1", "g2")
    getattr(gone, leaving)()
    await until(lambda: running.metric("bulwark_queue_length") == 0)
    (next_one,) = await engine.send("g3")
    await running.log.nth(0)
    assert [line["outcome"] for line in running.log.requests()] == ["client_disconnected"]
    await engine.end(first, next_one)
    assert engine.asked == ["g1", "g3"]


async def test_the_cache_is_not_overbooked(proxy: Launch) -> None:
    """What does not fit waits though slots are free, and keeps nobody waiting who fits."""
    running = await proxy(api_keys=TWO_KEYS, kv_budget_tokens=5_000)
    engine = Engine(running)
    clients = await engine.send("g1", "g2", output=2_000)
    assert running.metric("bulwark_kv_budget_tokens") == 5_000
    # "hi" and 32 bytes for the message, at three bytes a token, each.
    assert running.metric("bulwark_kv_reserved_tokens") == 2 * (2_000 + 12)
    clients += await engine.send("g3", output=2_000)
    clients += await engine.send("m1", "g4", output=100)
    assert engine.asked == ["g1", "g2", "m1", "g4"]
    await engine.finish("g1")
    await until(lambda: len(engine.asked) == 5)
    assert engine.asked[-1] == "g3"
    await engine.end(*clients)


async def test_estimates_learn(proxy: Launch) -> None:
    """A prompt that came to far less than a third of its bytes makes the next one's guess smaller."""
    running = await proxy(kv_budget_tokens=5_000)
    engine = Engine(running)
    clients = await engine.send("g1", text="x" * 1_000)
    assert running.metric("bulwark_kv_reserved_tokens") == 344 + 16
    await engine.finish("g1")
    clients += await engine.send("g2", text="x" * 1_000)
    assert running.metric("bulwark_kv_reserved_tokens") == 323 + 16
    await engine.end(*clients)


@pytest.mark.parametrize(
    ("setting", "limit"),
    [
        pytest.param({"kv_budget_tokens": 2_000}, "2,000 tokens", id="a number"),
        pytest.param(
            {"monitor_transport": None},
            "nine tenths of the model server's KV cache of 2,222",
            id="as the engine shows it",
        ),
    ],
)
async def test_what_an_empty_engine_could_not_hold(
    proxy: Launch, setting: dict[str, Any], limit: str
) -> None:
    """Is refused at once and for good, naming the pool, the need and the setting."""
    running = await proxy(**setting)
    engine = Engine(running, pool=2_222)
    await until(lambda: running.metric("bulwark_kv_budget_tokens") > 0, within=SECONDS)
    (client,) = await engine.send("g1", output=2_000, text="x" * 588)
    answer = await client.read_response()
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (400, "request_exceeds_capacity")
    assert "needs 2,104 tokens, about 104 for its prompt" in error["message"]
    assert limit in error["message"]
    assert "PROXY_KV_BUDGET_TOKENS" in error["message"]
    assert answer.header(b"retry-after") is None
    line = await running.log.of(answer)
    assert (line["status"], line["outcome"]) == (400, "request_exceeds_capacity")
    running.assert_counted(line)
    clients = await engine.send("g2", output=800)
    assert engine.asked == ["g2"]
    await engine.end(*clients)


async def test_the_engines_own_queue_is_kept_short(proxy: Launch) -> None:
    """One that runs two and shows the rest as waiting is sent no more until it has worked them off."""
    running = await proxy(api_keys=TWO_KEYS, monitor_transport=None, key_max_inflight=31)
    engine = Engine(running, runs=2)
    clients = await engine.send(*(f"g{number}" for number in range(6)))
    assert len(engine.asked) == 6
    seen = engine.readings
    await until(lambda: engine.readings >= seen + 4, within=SECONDS)
    clients += await engine.send("m1", "m2")
    assert running.metric("bulwark_slots_in_use") == 6
    assert running.metric("bulwark_queue_length") == 2
    # Three are left, which is one more than it runs.
    await engine.finish("g0", "g1", "g2")
    seen = engine.readings
    await until(lambda: engine.readings >= seen + 2, within=SECONDS)
    assert len(engine.asked) == 6
    await engine.finish("g3")
    await until(lambda: "m1" in engine.asked)
    await engine.end(*clients)
