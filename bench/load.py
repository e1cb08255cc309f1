"""Who asks what and when, and what became of it: an open loop of streaming clients on real sockets.

Arrivals are a Poisson process out of a seed and the key's own name, so that the same key sends the same
requests at the same moments in every run, whoever else is there. Nobody waits for an answer before the
next request is sent, and what is refused is not sent again, unless retries are asked for: these wait
for as long as ``Retry-After`` says, as the OpenAI SDKs do.
"""

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx

from bench.engine import BYTES_PER_TOKEN, MODEL

_WORD = "word "


@dataclass(frozen=True, slots=True)
class Spread:
    """Sizes of one kind of request: log-normal, with bounds that only keep out the absurd."""

    median: int
    p95: int
    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        """One size."""
        sigma = math.log(self.p95 / self.median) / 1.645
        size = int(source.lognormvariate(math.log(self.median), sigma))
        return min(max(size, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Mix:
    """What somebody sends: tokens of the prompts and of the answers to them."""

    prompt: Spread
    output: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        at: Seconds after the start of the run.
        key: Whose it is.
    """

    at: float
    key: str
    prompt_tokens: int
    output_tokens: int

    def body(self, max_tokens: int | None) -> dict[str, object]:
        """What is sent: a prompt of that many tokens, which asks for that many."""
        end = f"count to {self.output_tokens}"
        filler = max(0, self.prompt_tokens * BYTES_PER_TOKEN - len(end))
        words = (_WORD * (filler // len(_WORD) + 1))[:filler]
        body: dict[str, object] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": words + end}],
            "stream": True,
        }
        return body if max_tokens is None else {**body, "max_tokens": max_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer that was not the one asked for.

    Attributes:
        after: Seconds since it was sent, this time.
        retry_after: What the head said, in seconds; None if it said nothing.
    """

    status: int
    code: str
    message: str
    after: float
    retry_after: float | None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a request. Seconds count from when it was first sent.

    Attributes:
        sent_at: Seconds after the start of the run at which it really was.
        refusals: One for each time that it was sent and refused.
        first_byte: Until the first event; comments that keep a connection alive are none.
        done: Until the last event; None if it never came.
        cut: Whether the run ended before it did.
        error: What broke the connection off, if anything did.
    """

    ask: Ask
    sent_at: float = 0.0
    refusals: list[Refusal] = field(default_factory=list)
    first_byte: float | None = None
    done: float | None = None
    cut: bool = False
    error: str = ""


def arrivals(key: str, per_second: float, seconds: float, mix: Mix, seed: int) -> list[Ask]:
    """What one key sends in that time."""
    source = random.Random(f"{seed} {key}")  # noqa: S311 - a load, not a secret
    asks = []
    at = source.expovariate(per_second)
    while at < seconds:
        prompt, output = mix.prompt.draw(source), mix.output.draw(source)
        asks.append(Ask(at=at, key=key, prompt_tokens=prompt, output_tokens=output))
        at += source.expovariate(per_second)
    return asks


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """How the clients behave.

    Attributes:
        url: Whom they ask.
        secrets: The API key of each key's name.
        until_seconds: When the run ends, whatever is still waiting for its answer.
        max_tokens: What they ask for at most; None leaves it out, as most do.
        retries: How often a request is sent again when it is refused with a ``Retry-After``.
    """

    url: str
    secrets: Mapping[str, str]
    until_seconds: float
    max_tokens: int | None = None
    retries: int = 0

    async def run(
        self, asks: Iterable[Ask], on_end: Callable[[Outcome], None] = lambda _: None
    ) -> list[Outcome]:
        """Sends each at its time; ends when all have ended, or the run has."""
        async with AsyncExitStack() as stack:
            # One pool of connections a key, without a bound: a queue of the client's own would be
            # counted as the server's.
            pools = {
                key: await stack.enter_async_context(self._pool(secret))
                for key, secret in self.secrets.items()
            }
            start = asyncio.get_running_loop().time()

            async def one(ask: Ask) -> Outcome:
                outcome = await self._send(pools[ask.key], ask, start)
                on_end(outcome)
                return outcome

            return await asyncio.gather(*map(one, asks))

    def _pool(self, secret: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
            timeout=httpx.Timeout(None, connect=5.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def _send(self, pool: httpx.AsyncClient, ask: Ask, start: float) -> Outcome:
        outcome = Outcome(ask=ask)
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, start + ask.at - now()))
        body = json.dumps(ask.body(self.max_tokens)).encode()
        outcome.sent_at = now() - start
        try:
            async with asyncio.timeout_at(start + self.until_seconds):
                for left in range(self.retries, -1, -1):
                    refusal = await _once(pool, body, outcome, now)
                    if refusal is None:
                        break
                    outcome.refusals.append(refusal)
                    if refusal.retry_after is None or not left:
                        break
                    await asyncio.sleep(refusal.retry_after)
        except TimeoutError:
            outcome.cut = True
        except httpx.HTTPError as exc:
            outcome.error = type(exc).__name__
        return outcome


async def _once(
    pool: httpx.AsyncClient, body: bytes, outcome: Outcome, now: Callable[[], float]
) -> Refusal | None:
    """Sends it once, and reads its answer to the end."""
    sent = now()
    # Seconds since it was first sent, of which this may be the second time.
    start = sent - sum(refusal.after + (refusal.retry_after or 0) for refusal in outcome.refusals)
    async with pool.stream("POST", "/v1/chat/completions", content=body) as response:
        if response.status_code != httpx.codes.OK:
            return _refusal(response, await response.aread(), now() - sent)
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            if outcome.first_byte is None:
                outcome.first_byte = now() - start
            if line == "data: [DONE]":
                outcome.done = now() - start
    if outcome.done is None:
        outcome.error = "NoDone"
    return None


def _refusal(response: httpx.Response, content: bytes, after: float) -> Refusal:
    try:
        error = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": content[:200].decode(errors="replace")}
    retry_after = response.headers.get("retry-after")
    return Refusal(
        status=response.status_code,
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
        after=after,
        retry_after=None if retry_after is None else float(retry_after),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank; of no values, not a number."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
