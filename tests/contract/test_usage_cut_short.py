"""What an answer costs that is not complete, by who has ended it.

A client that leaves is charged what may have been generated for it. What we end, or the engine, is
charged what came: nobody has had more of it, and nobody could have waited longer.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.harness import usages
from tests.harness.client import RawClient, request_bytes
from tests.harness.running import BEARER, CHAT, JSON, Launch, Running
from tests.harness.upstream import COMPLETION, SSE_HEAD, End, Script, chunk, response

pytestmark = pytest.mark.both_ways

LIMIT, BOUND = 1_000_000, 4096
"""Tokens a minute of the key, and the output that each request may have."""

_BODY = b'"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":%d}' % BOUND
PLAIN, STREAM = b"{" + _BODY, b'{"stream":true,' + _BODY

SOON = 0.3

WORD = usages.event(usages.WORDS[0])
BEGUN: Script = [SSE_HEAD, *[chunk(WORD)] * 5]
HALF = COMPLETION[:-9]
PART = response(HALF, content_length=len(COMPLETION))
PART_TOKENS = -(-len(HALF) // 4)

NOTHING = None, None


class Buggy(httpx.AsyncBaseTransport):
    """A transport with a bug."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Fails in a way that nobody expects."""
        raise LookupError


async def drains(running: Running, _: RawClient) -> None:
    """The time of its drain is over."""
    running.stop.set()
    running.hurry.set()


async def waits(_: Running, __: RawClient) -> None:
    """Somebody else ends it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One end of one answer.

    Attributes:
        ends: What ends it once all of the reply is with the client.
        charged: The prompt, or whether there is one, and the output.
    """

    outcome: str
    body: bytes
    reply: Script
    charged: tuple[bool | None, int | None]
    ends: Any = waits
    settings: Mapping[str, Any] = field(default_factory=dict)


TOTAL = {"total_timeout_seconds": SOON}
# So that what is to come within it comes within it.
AMPLE = {"total_timeout_seconds": 1.0}
FIRST_BYTE = {"first_byte_timeout_seconds": SOON}
IDLE = {"idle_timeout_seconds": SOON}

DOWN, LATE, FAILED = "shutting_down", "upstream_timeout", "upstream_error"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(outcome=DOWN, body=PLAIN, reply=[End.SILENCE], charged=(True, 0), ends=drains),
            id="one piece, our end, before any of it",
        ),
        pytest.param(
            Case(
                outcome=DOWN,
                body=PLAIN,
                reply=[PART, End.SILENCE],
                charged=(True, PART_TOKENS),
                ends=drains,
            ),
            id="one piece, our end, within it",
        ),
        pytest.param(
            Case(outcome=DOWN, body=STREAM, reply=[End.SILENCE], charged=(True, 0), ends=drains),
            id="a stream, our end, before any of it",
        ),
        pytest.param(
            Case(
                outcome=DOWN,
                body=STREAM,
                reply=[*BEGUN, End.SILENCE],
                charged=(True, 5),
                ends=drains,
            ),
            id="a stream, our end, within it",
        ),
        pytest.param(
            Case(outcome=LATE, body=PLAIN, reply=[End.SILENCE], charged=(True, 0), settings=TOTAL),
            id="one piece, the time for all of it, before any of it",
        ),
        pytest.param(
            Case(
                outcome=LATE,
                body=PLAIN,
                reply=[PART, End.SILENCE],
                charged=(True, PART_TOKENS),
                settings=AMPLE,
            ),
            id="one piece, the time for all of it, within it",
        ),
        pytest.param(
            Case(
                outcome=LATE,
                body=STREAM,
                reply=[*BEGUN, End.SILENCE],
                charged=(True, 5),
                settings=AMPLE,
            ),
            id="a stream, the time for all of it",
        ),
        pytest.param(
            Case(
                outcome=LATE, body=PLAIN, reply=[End.SILENCE], charged=NOTHING, settings=FIRST_BYTE
            ),
            id="one piece, the time for its first byte",
        ),
        pytest.param(
            Case(
                outcome=LATE,
                body=PLAIN,
                reply=[PART, End.SILENCE],
                charged=(True, PART_TOKENS),
                settings=IDLE,
            ),
            id="one piece, the time between two chunks",
        ),
        pytest.param(
            Case(
                outcome=LATE,
                body=STREAM,
                reply=[*BEGUN, End.SILENCE],
                charged=(True, 5),
                settings=IDLE,
            ),
            id="a stream, the time between two chunks",
        ),
        pytest.param(
            Case(outcome=FAILED, body=PLAIN, reply=[End.RESET], charged=NOTHING),
            id="one piece, the engine dies before any of it",
        ),
        pytest.param(
            Case(outcome=FAILED, body=PLAIN, reply=[PART, End.FIN], charged=(True, PART_TOKENS)),
            id="one piece, the engine dies within it",
        ),
        pytest.param(
            Case(outcome=FAILED, body=STREAM, reply=[*BEGUN, End.FIN], charged=(True, 5)),
            id="a stream, the engine dies within it",
        ),
        pytest.param(
            Case(
                outcome="internal_error",
                body=PLAIN,
                reply=[],
                charged=(True, 0),
                settings={"transport": Buggy()},
            ),
            id="one piece, a bug of ours",
        ),
    ],
)
async def test_what_its_client_did_not_end_costs_what_came(proxy: Launch, case: Case) -> None:
    """The prompt where the engine was at work, and never more of the output than there was."""
    running = await proxy(key_tokens_per_minute=LIMIT, **case.settings)
    running.upstream.reply = case.reply
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, case.body))
    if case.ends is not waits:
        await running.upstream.request(0)
        if case.reply != [End.SILENCE]:
            await client.read_head()
            await read(client, len(HALF) if case.body is PLAIN else 5 * len(WORD))
    await case.ends(running, client)
    line = await running.log.nth(0)
    prompt, completion = line["prompt_tokens"], line["completion_tokens"]
    assert line["outcome"] == case.outcome
    assert (prompt and prompt > 0, completion) == case.charged
    assert line["usage"] == ("estimate" if prompt else None)


async def read(client: RawClient, size: int) -> None:
    """Returns once so much of the body has come."""
    async with asyncio.timeout(5):
        while size > 0:
            size -= len(await client.read_chunk())
