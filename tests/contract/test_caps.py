"""Promise 2: no request costs more than its caps, on real sockets.

The tables of every place and every name are in ``tests/unit/test_policy_*``; here a row of each kind
goes through the whole server, and is refused in four ways: said, not forwarded, logged, counted.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.tables.caps import (
    AT_THE_CAP,
    CAP,
    CONTENT_TYPES,
    ENCODINGS,
    NO_STRICT_JSON,
    PATHS,
    WAYS_AROUND,
    user,
)
from tests.harness import upstream as upstreams
from tests.harness.running import BEARER, JSON, Launch


@pytest.mark.parametrize(
    ("endpoint", "place"),
    AT_THE_CAP,
)
async def test_ten_thousand_characters_pass_and_one_more_does_not(
    proxy: Launch, endpoint: str, place: Callable[[int], dict[str, Any]]
) -> None:
    """The refusal names the measure, the limit and the setting."""
    over, within = await proxy(), await proxy()
    headers = {**BEARER, **JSON}
    body = json.dumps(place(CAP + 1)).encode()
    refused = await over.ask("POST", PATHS[endpoint], headers, body)
    code = "context_length_exceeded"
    await over.assert_refused(refused, 400, code)
    message = refused.json()["error"]["message"]
    assert "10,001" in message
    assert "10,000" in message
    assert "PROXY_MAX_PROMPT_CHARS" in message
    assert ("prompt is too long" in message) == endpoint.startswith("messages")
    body = json.dumps(place(CAP)).encode()
    passed = await within.ask("POST", PATHS[endpoint], headers, body)
    assert passed.status == 200
    assert len(within.upstream.requests) == 1


@pytest.mark.parametrize(
    ("endpoint", "body", "code"),
    WAYS_AROUND,
)
async def test_ways_around_the_caps_are_closed(
    proxy: Launch, endpoint: str, body: dict[str, Any], code: str
) -> None:
    """Each was open somewhere once."""
    running = await proxy()
    raw = json.dumps(body).encode()
    refused = await running.ask("POST", PATHS[endpoint], {**BEARER, **JSON}, raw)
    await running.assert_refused(refused, 400, code)


@pytest.mark.parametrize(
    ("body", "code", "status"),
    NO_STRICT_JSON,
)
async def test_bodies_that_are_no_strict_json_or_too_long(
    proxy: Launch, body: bytes, code: str, status: int
) -> None:
    """And the same connection or the next one works."""
    running = await proxy()
    refused = await running.chat(body)
    await running.assert_refused(refused, status, code)
    assert (await running.chat()).status == 200


async def test_two_mebibytes_pass(proxy: Launch) -> None:
    """2,097,152 bytes exactly, with a prompt cap that lets them."""
    body = b'{"max_tokens":1,"a":"' + b"x" * (2_097_152 - 23) + b'"}'
    assert len(body) == 2_097_152
    running = await proxy(max_prompt_chars=3_000_000)
    assert (await running.chat(body)).status == 200
    assert running.upstream.requests[0].body == body


@pytest.mark.parametrize(
    ("encoding", "status"),
    ENCODINGS,
)
async def test_compressed_bodies_are_refused_by_name(
    proxy: Launch, encoding: str, status: int
) -> None:
    """Whether the bytes are compressed or not: nobody looks."""
    running = await proxy()
    response = await running.chat(**{"Content-Encoding": encoding})
    if status == 200:
        assert response.status == 200
        assert running.upstream.requests[0].header(b"content-encoding") is None
        return
    code = "unsupported_media_type"
    await running.assert_refused(response, 415, code)
    message = response.json()["error"]["message"]
    assert encoding in message


@pytest.mark.parametrize(
    ("content_type", "status"),
    CONTENT_TYPES,
)
async def test_only_json_is_read(proxy: Launch, content_type: str | None, status: int) -> None:
    """The caps cannot be skipped by calling the body something else."""
    running = await proxy()
    headers = {**BEARER, **({"Content-Type": content_type} if content_type else {})}
    body = b'{"messages":[],"max_tokens":99999}'
    response = await running.ask("POST", "/v1/chat/completions", headers, body)
    assert response.status == status
    if status == 200:
        assert running.upstream.requests[0].body == body.replace(b"99999", b"4096")
    else:
        code = "unsupported_media_type"
        await running.assert_refused(response, 415, code)


async def test_a_tool_with_a_property_called_input_ids_passes(proxy: Launch) -> None:
    """Names are refused where they are dangerous, not where they are data."""
    running = await proxy()
    schema = {"type": "object", "properties": {"input_ids": {"type": "array"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = json.dumps({**user("input_ids"), "tools": [tool], "max_tokens": 1}).encode()
    assert (await running.chat(body)).status == 200
    assert running.upstream.requests[0].body == body


async def test_eight_prompts_share_the_cap(proxy: Launch) -> None:
    """8 times 4,096 tokens do not get through: each gets an eighth."""
    running = await proxy()
    body = json.dumps({"prompt": ["a"] * 8, "max_tokens": 4_096}).encode()
    headers = {**BEARER, **JSON}
    response = await running.ask("POST", "/v1/completions", headers, body)
    assert response.header(b"x-bulwark-clamped") == b"max_tokens 4096 -> 512"
    assert running.upstream.requests[0].body == body.replace(b"4096", b"512")
    line = await running.log.of(response)
    assert (line["output_tokens_bound"], line["clamped"]) == (4_096, "max_tokens 4096 -> 512")
    assert running.metric("bulwark_clamped_requests_total", endpoint="completions") == 1


async def test_an_answer_beyond_the_cap_is_refused_or_broken_off(proxy: Launch) -> None:
    """Refused where it is announced, broken off where it is not; at the cap it passes."""
    running = await proxy(max_response_bytes=2_000)
    running.upstream.reply = [upstreams.response(b"x" * 2_000)]
    assert (await running.chat()).body == b"x" * 2_000
    running.upstream.reply = [upstreams.response(b"x" * 2_001)]
    refused = await running.chat()
    assert (refused.status, refused.json()["error"]["code"]) == (502, "upstream_error")
    assert "PROXY_MAX_RESPONSE_BYTES" in refused.json()["error"]["message"]
    running.upstream.reply = [
        upstreams.SSE_HEAD,
        upstreams.chunk(b"x" * 1_200),
        upstreams.chunk(b"x" * 1_200),
        upstreams.LAST_CHUNK,
    ]
    broken = await running.chat()
    assert (broken.status, broken.complete) == (200, False)
    assert (await running.log.of(broken))["outcome"] == "upstream_error"
