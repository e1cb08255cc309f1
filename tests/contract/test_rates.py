"""Limits of keys on the wired proxy: what is refused, what is told, what is charged in the end."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from proxy.app import Clocks
from tests.harness.client import RawResponse, request_bytes
from tests.harness.keys import bearer, key_file
from tests.harness.running import BEARER, CHAT, JSON, KEY, Launch, Running
from tests.harness.sdk import openai_client, say
from tests.harness.upstream import SSE_HEAD, End, chunk, response, sse

MESSAGES = "/v1/messages"
START = 864_000.0
"""A turn of minutes and of days."""


@dataclass
class Clock:
    """A clock that the test moves."""

    now: float = START

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def whole(prompt_tokens: int, completion_tokens: int) -> list[bytes]:
    """A whole answer that has used so many."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    said = {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}
    return [response(json.dumps(said).encode())]


def body(max_tokens: int, **members: Any) -> bytes:
    """A chat that may use a little more than so many."""
    messages = [{"role": "user", "content": "hi"}]
    asked = {"model": "m", "messages": messages, "max_tokens": max_tokens, **members}
    return json.dumps(asked).encode()


async def ask(front: Running, max_tokens: int = 10, target: str = CHAT) -> RawResponse:
    """One of them."""
    return await front.ask("POST", target, {**BEARER, **JSON}, body(max_tokens))


def told(answer: RawResponse, noun: str) -> list[str]:
    """Limit, remaining and reset."""
    fields = (answer.header(f"x-ratelimit-{it}-{noun}".encode()) for it in TOLD)
    return [(field or b"-").decode() for field in fields]


TOLD = ("limit", "remaining", "reset")


async def refused(front: Running, answer: RawResponse, *words: str) -> None:
    """A 429 in its four places: answer, upstream, log line, metric."""
    assert (answer.status, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    for word in words:
        assert word in answer.json()["error"]["message"]
    line = await front.log.of(answer)
    assert (line["status"], line["outcome"], line["level"]) == (
        429,
        "rate_limit_exceeded",
        "warning",
    )
    assert front.metric(
        "bulwark_refusals_total", endpoint=line["endpoint"], reason="rate_limit_exceeded"
    )


OVER_TIME = [
    pytest.param("requests_per_minute", 1, 60, "requests", id="requests a minute"),
    pytest.param("tokens_per_minute", 40, 60, "tokens", id="tokens a minute"),
    pytest.param("tokens_per_day", 40, 86_400, "tokens", id="tokens a day"),
]


@pytest.mark.parametrize(("name", "limit", "window", "noun"), OVER_TIME)
async def test_a_limit_over_time(
    proxy: Launch, name: str, limit: int, window: int, noun: str
) -> None:
    """The first passes, the second is told when it will, and then it does, and no second sooner."""
    clock = Clock()
    of_key: dict[str, Any] = {f"key_{name}": limit}
    front = await proxy(clocks=Clocks(monotonic=clock), **of_key)
    front.upstream.reply = whole(20, 20)
    assert (await ask(front)).status == 200
    second = await ask(front)
    await refused(front, second, f"{limit} {noun[:-1]}", name, f"PROXY_KEY_{name.upper()}")
    seconds = int(second.header(b"retry-after") or 0)
    assert window < seconds < 2 * window
    assert told(second, noun)[:2] == [str(limit), "0"]
    clock.now += seconds - 1
    early = await ask(front)
    assert (early.status, early.header(b"retry-after")) == (429, b"1")
    assert len(front.upstream.requests) == 1
    clock.now += 1
    assert (await ask(front)).status == 200


async def test_tokens_are_reserved_and_then_settled(proxy: Launch) -> None:
    """What may be used is taken at first, and what was not is there again after the answer."""
    front = await proxy(key_tokens_per_minute=1_000, clocks=Clocks(monotonic=Clock()))
    front.upstream.reply = whole(7, 3)
    first = await ask(front, 900)
    limit, remaining, reset = told(first, "tokens")
    assert (limit, reset) == ("1000", "2m0s")
    assert 0 < int(remaining) < 100
    second = await ask(front, 900)
    assert second.status == 200
    assert int(told(second, "tokens")[1]) == int(remaining) - 10
    line = await front.log.of(second)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (7, 3)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(response(b'{"error":{}}', status=500), id="an error of the engine"),
        pytest.param(response(b'{"error":{}}', status=400), id="a refusal of the engine"),
    ],
)
async def test_what_the_engine_did_not_do_is_not_charged(proxy: Launch, reply: bytes) -> None:
    """A reservation for nothing is given back whole."""
    front = await proxy(key_tokens_per_minute=1_000, clocks=Clocks(monotonic=Clock()))
    front.upstream.reply = [reply]
    one = await ask(front, 900)
    other = await ask(front, 900)
    assert one.status == other.status >= 400
    assert told(one, "tokens") == told(other, "tokens")


async def test_a_stream_that_is_left_is_charged(proxy: Launch) -> None:
    """Who leaves before the figures come has used what was sent, and never nothing."""
    front = await proxy(key_tokens_per_minute=1_000, clocks=Clocks(monotonic=Clock()))
    events = [sse('{"choices":[{"delta":{"content":"' + "word " * 40 + '"}}]}')] * 3
    front.upstream.script.append([SSE_HEAD, *map(chunk, events), End.SILENCE])
    client = await front.connect()
    stream = body(900, stream=True)
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, stream))
    await client.read_head()
    # What comes in one packet goes on in one chunk.
    left_bytes = sum(map(len, events))
    while left_bytes:
        left_bytes -= len(await client.read_chunk())
    client.close()
    await front.idle()
    front.upstream.reply = whole(1, 1)
    left = int(told(await ask(front, 1), "tokens")[1])
    # 600 characters, in tokens of four.
    assert 1_000 - 150 - 60 < left < 1_000 - 150


async def test_a_request_larger_than_its_limit(proxy: Launch) -> None:
    """It is told that waiting will not help, and how much it is too large."""
    front = await proxy(key_tokens_per_minute=100, key_requests_per_minute=5)
    answer = await ask(front, 200)
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (400, "request_exceeds_rate_limit")
    assert "100 tokens a minute" in error["message"]
    assert "PROXY_KEY_TOKENS_PER_MINUTE" in error["message"]
    assert answer.header(b"retry-after") is None
    assert told(answer, "requests")[:2] == ["5", "4"]
    assert front.upstream.requests == []
    line = await front.log.of(answer)
    assert (line["outcome"], line["level"]) == ("request_exceeds_rate_limit", "warning")
    front.assert_counted(line)


async def test_concurrency(proxy: Launch, tmp_path: Path) -> None:
    """One runs; a second of the same key is refused and not queued; another key is served."""
    path, (key, other) = key_file(tmp_path, "concurrency = 1", "concurrency = 1")
    front = await proxy(keys_file=path)
    gate = asyncio.Event()
    front.upstream.script.append([gate, *whole(1, 1)])
    running = asyncio.create_task(front.ask("POST", CHAT, {**bearer(key), **JSON}, body(5)))
    await front.upstream.request(0)
    second = await front.ask("POST", CHAT, {**bearer(key), **JSON}, body(5))
    await refused(front, second, "1 request at once", "PROXY_KEY_CONCURRENCY")
    assert second.header(b"retry-after") == b"1"
    assert len(front.upstream.requests) == 1
    front.upstream.reply = whole(1, 1)
    assert (await front.ask("POST", CHAT, {**bearer(other), **JSON}, body(5))).status == 200
    gate.set()
    assert (await running).status == 200
    assert (await front.ask("POST", CHAT, {**bearer(key), **JSON}, body(5))).status == 200


async def test_who_leaves_no_longer_runs(proxy: Launch) -> None:
    """A client that is gone gives its place back, in whatever phase it left."""
    front = await proxy(key_concurrency=1)
    front.upstream.script.append([End.SILENCE])
    running = asyncio.create_task(ask(front))
    await front.upstream.request(0)
    running.cancel()
    front.close_clients()
    await front.idle()
    front.upstream.reply = whole(1, 1)
    assert (await ask(front)).status == 200


async def test_on_anthropics_routes(proxy: Launch) -> None:
    """The same limits, in the shape that its SDKs parse."""
    front = await proxy(key_requests_per_minute=1, clocks=Clocks(monotonic=Clock()))
    await ask(front)
    answer = await ask(front, target=MESSAGES)
    assert answer.status == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert answer.header(b"retry-after") == b"61"


@dataclass
class Waits:
    """What an SDK was told to wait, and what it waited; the hooks of its HTTP client.

    Its first request comes two seconds before a turn of the clock, which then stands: what was
    asked late because the machine was busy is told the same. The turn comes once that was told.

    Attributes:
        told: The seconds of its Retry-After.
        waited: The seconds from there to its next request, on the machine's clock.
    """

    clock: Clock = field(default_factory=lambda: Clock(START + 58.5))
    told: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    _refused: float | None = None

    async def asks(self, request: object) -> None:
        """About to be sent."""
        if self._refused is not None:
            self.waited.append(time.monotonic() - self._refused)
            self._refused = None

    async def hears(self, response: Any) -> None:
        """Its head is there."""
        if response.status_code == 429:
            self.told.append(float(response.headers["retry-after"]))
            self.clock.now += self.told[-1]
            self._refused = time.monotonic()

    @property
    def hooks(self) -> dict[str, list[Callable[..., Any]]]:
        """For its client."""
        return {"request": [self.asks], "response": [self.hears]}

    def assert_as_told(self) -> None:
        """Once, and not less; what it waited more is a busy machine's, and no back-off of its own."""
        assert self.told == [2]
        (waited,) = self.waited
        # Timers may be early by a tick of the loop's clock.
        assert 2 - 0.01 <= waited < 2 + OWN_SECONDS


OWN_SECONDS = 5
"""More than a busy machine adds."""


async def test_openais_sdk_waits_as_long_as_it_is_told(proxy: Launch) -> None:
    """Its first retry would come after half a second; told two seconds, after two."""
    waits = Waits()
    front = await proxy(key_requests_per_minute=1, clocks=Clocks(monotonic=waits.clock))
    front.upstream.reply = whole(1, 1)
    http_client = openai.DefaultAsyncHttpxClient(event_hooks=waits.hooks)
    async with openai_client(front.port, max_retries=1, http_client=http_client) as client:
        for _ in range(2):
            await say(client)
    await front.log.nth(2)
    assert [line["status"] for line in front.log.requests()] == [200, 429, 200]
    waits.assert_as_told()


async def test_anthropics_sdk_waits_as_long_as_it_is_told(proxy: Launch) -> None:
    """As above."""
    waits = Waits()
    front = await proxy(key_requests_per_minute=1, clocks=Clocks(monotonic=waits.clock))
    front.upstream.reply = whole(1, 1)
    http_client = anthropic.DefaultAsyncHttpxClient(event_hooks=waits.hooks)
    base_url = f"http://127.0.0.1:{front.port}"
    async with anthropic.AsyncAnthropic(
        base_url=base_url, api_key=KEY, max_retries=1, http_client=http_client
    ) as client:
        for _ in range(2):
            await client.messages.create(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
            )
    await front.log.nth(2)
    assert [line["status"] for line in front.log.requests()] == [200, 429, 200]
    waits.assert_as_told()


async def test_openais_sdk_does_not_repeat_what_is_too_large(proxy: Launch) -> None:
    """No 429, so that it says so at once."""
    front = await proxy(key_tokens_per_minute=100)
    async with openai_client(front.port, max_retries=5) as client:
        with pytest.raises(openai.BadRequestError) as told_so:
            await say(client, max_tokens=500)
    assert told_so.value.code == "request_exceeds_rate_limit"
    assert len(front.log.requests()) == 1


async def test_no_sdk_sleeps_until_tomorrow(proxy: Launch) -> None:
    """With the day's tokens gone both raise at once; Anthropic's would wait for 20 hours else."""
    front = await proxy(key_tokens_per_day=500, clocks=Clocks(monotonic=Clock()))
    front.upstream.reply = whole(250, 240)
    await ask(front, max_tokens=240)
    base_url = f"http://127.0.0.1:{front.port}"
    async with (
        asyncio.timeout(10),
        openai_client(front.port, max_retries=3) as client,
        anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=3) as other,
    ):
        with pytest.raises(openai.RateLimitError):
            await say(client, max_tokens=50)
        with pytest.raises(anthropic.RateLimitError):
            await other.messages.create(
                model="m", max_tokens=50, messages=[{"role": "user", "content": "hi"}]
            )
    assert [line["status"] for line in front.log.requests()] == [200, 429, 429]


async def test_less_output_passes_at_once_and_its_client_is_told(proxy: Launch) -> None:
    """With the number in the refusal, and not with one more."""
    front = await proxy(key_tokens_per_minute=200, clocks=Clocks(monotonic=Clock()))
    # The prompt is taken for what it was, from then on.
    front.upstream.reply = whole(20, 60)
    assert (await ask(front, 60)).status == 200
    refused = await ask(front, 150)
    assert refused.status == 429
    found = re.search(r"with at most ([0-9]+) tokens of output", refused.json()["error"]["message"])
    assert found is not None
    fits = int(found[1])
    assert (await ask(front, fits + 1)).status == 429
    assert (await ask(front, fits)).status == 200
