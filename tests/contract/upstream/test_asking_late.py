"""A process that was held up while it connected, or asked the engine how it is: who was in time?"""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from proxy.names import Names
from proxy.upstream import target, transport
from proxy.upstream.asking import Questions
from proxy.upstream.exposition import PageRefused
from proxy.upstream.states import Health
from tests.harness.forwarding import until
from tests.harness.heldup import hold_up
from tests.harness.upstream import End, Upstream, response

BOUND_SECONDS = 0.1
HELD_UP_SECONDS = BOUND_SECONDS + 0.1
PAGE = b"vllm:num_requests_running 1\n"


@pytest.mark.parametrize("answers", [True, False], ids=["it answers", "it says nothing"])
async def test_a_name_that_is_answered_while_we_are_held_up(
    upstream: Upstream, *, answers: bool
) -> None:
    """It was in time, and there is a little more for the connection; silence is late all the same."""
    answered, asked = threading.Event(), threading.Event()

    def look_up(_: str) -> list[str]:
        asked.set()
        answered.wait(5)
        return ["127.0.0.1"]

    upstream.reply = [response(b"{}")]
    engine = replace(target.parse(upstream.url), host="engine")
    seconds = {"connect": BOUND_SECONDS}
    request = httpx.Request("GET", engine.url, extensions={"timeout": seconds})
    async with transport.build(engine, Names(look_up)) as made:
        asking = asyncio.create_task(made.handle_async_request(request))
        await until(asked.is_set)
        await hold_up(HELD_UP_SECONDS, answered.set if answers else lambda: None)
        if answers:
            assert (await asking).status_code == 200
        else:
            with pytest.raises(httpx.ConnectTimeout):
                await asking
    answered.set()


@pytest.fixture
def questions(upstream: Upstream) -> Questions:
    """Those to an engine that says nothing by itself."""
    upstream.reply = [End.SILENCE]
    engine = target.parse(upstream.url)
    return Questions(
        transport.build(engine), engine, health_seconds=BOUND_SECONDS, metrics_seconds=BOUND_SECONDS
    )


def says(upstream: Upstream, answer: bytes) -> Callable[[], object]:
    """The engine says this, past the loop."""

    def act() -> None:
        sock = upstream.connections[0].transport.get_extra_info("socket")
        os.write(sock.fileno(), answer)

    return act


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(response(b""), (Health.WELL, ""), id="that it is well"),
        pytest.param(response(b"")[:9], (Health.FAILING, "silent"), id="a part of that"),
        pytest.param(b"", (Health.FAILING, "silent"), id="nothing"),
    ],
)
async def test_what_the_engine_says_of_its_health(
    upstream: Upstream, questions: Questions, answer: bytes, expected: tuple[Health, str]
) -> None:
    """What came while we were held up was in time."""
    asking = asyncio.create_task(questions.health())
    await upstream.request(0)
    await hold_up(HELD_UP_SECONDS, says(upstream, answer))
    assert await asking == expected


async def test_the_figures_that_came(upstream: Upstream, questions: Questions) -> None:
    """They are read, as if they had been read at once."""
    asking = asyncio.create_task(questions.metrics())
    await upstream.request(0)
    await hold_up(HELD_UP_SECONDS, says(upstream, response(PAGE)))
    assert (await asking).running == 1


async def test_the_figures_that_did_not_come(upstream: Upstream, questions: Questions) -> None:
    """They are late, if a little later."""
    asking = asyncio.create_task(questions.metrics())
    await upstream.request(0)
    await hold_up(HELD_UP_SECONDS, says(upstream, response(PAGE)[:-1]))
    with pytest.raises(PageRefused, match="late"):
        await asking
