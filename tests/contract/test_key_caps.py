"""A key's own caps: lower than everybody's, or higher as far as a ceiling lets them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import RawResponse
from tests.harness.keys import bearer, key_file
from tests.harness.running import BEARER, CHAT, JSON, Launch, Running

CAPS: dict[str, Any] = {"max_prompt_chars": 1_000, "max_output_tokens": 100}


async def chat(front: Running, key: dict[str, str], chars: int = 10, **members: Any) -> RawResponse:
    """A chat of so many characters."""
    messages = [{"role": "user", "content": "x" * chars}]
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": messages, **members}).encode()
    return await front.ask("POST", CHAT, {**key, **JSON}, body)


PROMPTS = [
    pytest.param({}, "", 1_000, "PROXY_MAX_PROMPT_CHARS", id="none of its own"),
    pytest.param({}, "max_prompt_chars = 10", 10, "of this key", id="lower"),
    pytest.param({}, "max_prompt_chars = 1000", 1_000, "of this key", id="the same"),
    pytest.param({}, "max_prompt_chars = 1001", 1_000, "of this key", id="higher, no ceiling set"),
    pytest.param(
        {"max_prompt_chars_ceiling": 5_000},
        "max_prompt_chars = 5000",
        5_000,
        "of this key",
        id="as high as the ceiling",
    ),
    pytest.param(
        {"max_prompt_chars_ceiling": 5_000},
        "max_prompt_chars = 5001",
        5_000,
        "of this key",
        id="over the ceiling",
    ),
    pytest.param(
        {"max_prompt_chars_ceiling": 5_000},
        "",
        1_000,
        "PROXY_MAX_PROMPT_CHARS",
        id="a ceiling, and none of its own",
    ),
]


@pytest.mark.parametrize(("settings", "own", "cap", "whose"), PROMPTS)
async def test_the_prompt_cap_of_a_key(
    proxy: Launch, tmp_path: Path, settings: dict[str, Any], own: str, *, cap: int, whose: str
) -> None:
    """At the cap it passes, one more does not; the refusal says how much, and whose cap it is."""
    path, (key,) = key_file(tmp_path, own)
    over = await proxy(keys_file=path, **CAPS, **settings)
    within = await proxy(keys_file=path, **CAPS, **settings)
    refused = await chat(over, bearer(key), cap + 1)
    await over.assert_refused(refused, 400, "context_length_exceeded")
    message = refused.json()["error"]["message"]
    assert f"{cap:,}" in message
    assert f"{cap + 1:,}" in message
    assert whose in message
    assert (await chat(within, bearer(key), cap)).status == 200
    # Nobody else's: the environment's key has nothing of its own.
    assert (await chat(within, BEARER, 1_000)).status == 200
    assert (await chat(within, BEARER, 1_001)).status == 400


OUTPUTS = [
    pytest.param({}, "", 100, "PROXY_MAX_OUTPUT_TOKENS", id="none of its own"),
    pytest.param({}, "max_output_tokens = 8", 8, "of this key", id="lower"),
    pytest.param({}, "max_output_tokens = 101", 100, "of this key", id="higher, no ceiling set"),
    pytest.param(
        {"max_output_tokens_ceiling": 500},
        "max_output_tokens = 500",
        500,
        "of this key",
        id="as high as the ceiling",
    ),
    pytest.param(
        {"max_output_tokens_ceiling": 500},
        "max_output_tokens = 501",
        500,
        "of this key",
        id="over the ceiling",
    ),
    pytest.param(
        {"max_output_tokens_ceiling": 500},
        "",
        100,
        "PROXY_MAX_OUTPUT_TOKENS",
        id="a ceiling, and none of its own",
    ),
]


@pytest.mark.parametrize(("settings", "own", "cap", "whose"), OUTPUTS)
async def test_the_output_cap_of_a_key(
    proxy: Launch, tmp_path: Path, settings: dict[str, Any], own: str, *, cap: int, whose: str
) -> None:
    """At the cap it passes; one more is lowered and told, or refused; none is given the cap."""
    path, (key,) = key_file(tmp_path, own)
    settings = {"keys_file": path, "max_choices": 4, **CAPS, **settings}
    lowers, refuses = await proxy(**settings), await proxy(output_overflow="reject", **settings)
    untouched = await chat(lowers, bearer(key), max_tokens=cap)
    assert untouched.header(b"x-bulwark-clamped") is None
    lowered = await chat(lowers, bearer(key), max_tokens=cap + 1)
    assert lowered.header(b"x-bulwark-clamped") == f"max_tokens {cap + 1} -> {cap}".encode()
    absent = await chat(lowers, bearer(key), max_tokens=None)
    assert [answer.status for answer in (untouched, lowered, absent)] == [200] * 3
    for request in lowers.upstream.requests:
        assert cap in json.loads(request.body).values()
    line = await lowers.log.of(lowered)
    assert (line["output_tokens_bound"], line["outcome"]) == (cap, "ok")
    # Nobody else's: the environment's key has nothing of its own.
    everybodys = await chat(lowers, BEARER, max_tokens=101)
    assert everybodys.header(b"x-bulwark-clamped") == b"max_tokens 101 -> 100"

    refused = await chat(refuses, bearer(key), max_tokens=cap + 1)
    await refuses.assert_refused(refused, 400, "output_too_large")
    message = refused.json()["error"]["message"]
    assert f"{cap:,}" in message
    assert whose in message
    assert (await chat(refuses, bearer(key), max_tokens=cap)).status == 200


async def test_choices_share_the_keys_cap(proxy: Launch, tmp_path: Path) -> None:
    """As they share everybody's; where there is not one token for each, it says whose cap it is."""
    path, (key,) = key_file(tmp_path, "max_output_tokens = 3")
    front = await proxy(keys_file=path, max_choices=4, **CAPS)
    refused = await chat(front, bearer(key), n=4)
    await front.assert_refused(refused, 400, "too_many_choices")
    assert "max_output_tokens of this key" in refused.json()["error"]["message"]
    passed = await chat(front, bearer(key), n=3, max_tokens=100)
    assert passed.header(b"x-bulwark-clamped") == b"max_tokens 100 -> 1"


@pytest.mark.parametrize(
    ("chars", "status"),
    [pytest.param(50, 200, id="at the key's cap"), pytest.param(51, 400, id="one more")],
)
async def test_every_input_is_held_to_the_keys_cap(
    proxy: Launch, tmp_path: Path, chars: int, status: int
) -> None:
    """Each of an embedding's, and ten times it together."""
    path, (key,) = key_file(tmp_path, "max_prompt_chars = 50")
    front = await proxy(keys_file=path, **CAPS)
    body = json.dumps({"model": "m", "input": ["y", "x" * chars]}).encode()
    answer = await front.ask("POST", "/v1/embeddings", {**bearer(key), **JSON}, body)
    assert answer.status == status


async def test_a_higher_cap_reads_a_body_of_as_much_structure(
    proxy: Launch, tmp_path: Path
) -> None:
    """What guards the parser grows with the cap of the key, not with everybody's."""
    path, (key,) = key_file(tmp_path, "max_prompt_chars = 200000")
    front = await proxy(keys_file=path, max_prompt_chars_ceiling=200_000, **CAPS)
    messages = [{"role": "user", "content": [1] * 100_000}]
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": messages}).encode()
    codes = []
    for who in (BEARER, bearer(key)):
        answer = await front.ask("POST", CHAT, {**who, **JSON}, body)
        codes.append(answer.json()["error"]["code"] if answer.status == 400 else answer.status)
    assert codes[0] == "body_too_complex"
    assert codes[1] != "body_too_complex"
