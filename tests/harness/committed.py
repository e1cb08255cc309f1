"""A stream that is begun in the upstream's place, as its client gets it."""

import json
from typing import Any

import pytest

from proxy.keepalive import COMMENT
from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.running import BEARER, CHAT, JSON, Running

SOON = 0.02
COMMITTING: dict[str, Any] = {"sse_keepalive_seconds": SOON, "sse_commit_seconds": SOON}

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/completions": {"model": "m", "prompt": "hi", "max_tokens": 5},
    RESPONSES: {"model": "m", "input": "hi", "max_output_tokens": 5},
    MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}


async def ask(running: Running, path: str = CHAT, **fields: object) -> RawClient:
    """A client that has sent a request for a stream, which has reached the upstream."""
    client = await running.connect()
    body = json.dumps({**BODIES[path], "stream": True, **fields}).encode()
    await client.send(request_bytes("POST", path, {**BEARER, **JSON}, body))
    await running.upstream.request(0)
    return client


async def committed(running: Running, path: str = CHAT, **fields: object) -> RawClient:
    """A client that has the head of a committed answer and its first comment."""
    client = await ask(running, path, **fields)
    head = await client.read_head()
    assert head.status == 200
    assert head.header(b"content-type") == b"text/event-stream; charset=utf-8"
    assert head.header(b"cache-control") == b"no-cache"
    assert head.header(b"x-accel-buffering") == b"no"
    assert head.header(b"x-content-type-options") == b"nosniff"
    assert head.header(b"content-length") is None
    assert await client.read_chunk() == COMMENT
    return client


def told(answer: RawResponse) -> tuple[str, dict[str, Any]]:
    """The name and the data of the one event of an answer; there is nothing else but comments."""
    assert answer.complete
    text = answer.body.replace(COMMENT, b"").decode()
    assert text.endswith("\n\n")
    # By the widest notion of a line that a reader may have.
    *name, data = text[:-2].splitlines()
    return "".join(name).removeprefix("event: "), json.loads(
        data.removeprefix("data: "), parse_constant=pytest.fail
    )
