"""What a request is taken to need: reserved before the engine is asked."""

import json
from typing import Any

import pytest

from tests.harness.running import BEARER, CHAT_BODY, JSON, Launch

CHAT = json.loads(CHAT_BODY)
COUNT = "/v1/messages/count_tokens"


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        pytest.param(4_000, 400, id="the prompt does not fit beside eight answers"),
        pytest.param(4_100, 200, id="and does"),
    ],
)
async def test_every_sequence_counts(proxy: Launch, limit: int, status: int) -> None:
    """Eight of 500 tokens are 4,000, and the prompt a few more."""
    front = await proxy(key_tokens_per_minute=limit)
    body = json.dumps({**CHAT, "max_tokens": 500, "n": 8}).encode()
    answer = await front.chat(body)
    assert answer.status == status
    if status == 400:
        await front.assert_refused(answer, 400, "request_exceeds_rate_limit")


async def test_counting_tokens_uses_none(proxy: Launch) -> None:
    """It is answered without the model: not even a limit of one token is in its way."""
    front = await proxy(key_tokens_per_minute=1, kv_budget_tokens=1_024, max_inflight=1)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 9_000}]})
    answer = await front.ask("POST", COUNT, {**BEARER, **JSON}, body.encode())
    assert answer.status == 200
    assert (await front.log.of(answer))["usage"] is None


@pytest.mark.parametrize(
    ("settings", "inserted"),
    [
        pytest.param({}, 4_096, id="without a limit of tokens: the cap"),
        pytest.param({"key_tokens_per_minute": 1_000}, 500, id="with few: half of them"),
        pytest.param(
            {"key_tokens_per_minute": 9_000, "key_tokens_per_day": 600}, 300, id="of the least"
        ),
    ],
)
async def test_a_key_with_few_tokens_can_leave_the_bound_out(
    proxy: Launch, settings: dict[str, Any], inserted: int
) -> None:
    """It would be refused for ever otherwise: no request of the default size is ever within."""
    front = await proxy(**settings)
    body = json.dumps({"model": "m", "messages": CHAT["messages"]}).encode()
    assert (await front.chat(body)).status == 200
    assert json.loads(front.upstream.requests[0].body)["max_tokens"] == inserted
