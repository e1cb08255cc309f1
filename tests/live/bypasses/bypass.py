"""A way around a cap, and what becomes of it: past the proxy, which is the control, and through it.

Past the proxy it shows that the way is one, by what the engine itself says that it did, or that this
version of this engine has closed it by now. Through the proxy the request is refused before the
engine hears of it, or stays within the caps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.engines import Engine
from tests.harness.running import BEARER, CHAT, JSON
from tests.harness.tap import tap_of
from tests.live.conftest import Live

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"

PROMPT_CAP, SCHEMA_CAP, OUTPUT_CAP = 200, 1_000, 32
MARKUP = 64
"""Tokens of the template around the one message that most of these bodies have."""

LIMITS = {
    "max_prompt_chars": PROMPT_CAP,
    "max_schema_chars": SCHEMA_CAP,
    "max_output_tokens": OUTPUT_CAP,
}
TITLE = f"Bypasses (caps: {PROMPT_CAP} characters, {OUTPUT_CAP} tokens)"

OVER, ENDLESS, TAKEN, CLOSED = "over", "endless", "taken", "closed"
"""What the engine does with it directly: exceeds a cap; does not end; obeys; refuses it itself."""

USER = {"role": "user", "content": "hi"}
LEAST: Mapping[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": [USER], "max_tokens": 1},
}
"""What an endpoint wants besides the model."""

TEXT = "x" * 1_000
IDS = [65] * 1_000


@dataclass(frozen=True)
class Bypass:
    """One body and what becomes of it.

    Attributes:
        fields: Its members besides the model and the least that the endpoint wants; or raw JSON.
        direct: What the engine does with it: one of the four words above.
        through: The code of the refusal; None where it goes through and stays within the caps.
        settings: Of the proxy, besides the caps.
        most: Tokens of output, where it is not the cap that bounds them.
    """

    fields: dict[str, Any] | bytes
    direct: str
    through: str | None
    path: str = CHAT
    settings: Mapping[str, Any] = field(default_factory=dict)
    most: int = OUTPUT_CAP

    @property
    def body(self) -> bytes:
        """What is sent, both times."""
        if type(self.fields) is bytes:
            return self.fields
        members = {"model": "m", **LEAST.get(self.path, {}), **self.fields}  # type: ignore[dict-item] # no bytes
        return json.dumps(members, separators=(",", ":")).encode()


def row(
    id: str,  # noqa: A002 - as pytest calls it
    fields: dict[str, Any] | bytes,
    direct: str,
    through: str | None,
    path: str = CHAT,
    *,
    most: int = OUTPUT_CAP,
    **settings: Any,
) -> Any:
    """A row of a table."""
    return pytest.param(Bypass(fields, direct, through, path, settings, most), id=id)


def chat(max_tokens: str) -> bytes:
    """A chat without an end, with max_tokens spelled like this."""
    return (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"ignore_eos":true,"max_tokens":'
        + max_tokens.encode()
        + b"}"
    )


def tool(**function: Any) -> dict[str, Any]:
    """A tool, as chats have them."""
    return {"type": "function", "function": {"name": "f", **function}}


ENDLESS_FIELDS = {"ignore_eos": True}
TAKES_ALL = {"max_tokens": 100, "ignore_eos": True}
CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": json.dumps({TEXT: 1})},
}


def used(response: RawResponse) -> tuple[int, int]:
    """What the engine says it did: tokens of prompt, and of output over all choices."""
    answer = response.json()
    if type(answer) is list:  # llama.cpp's answer to several choices on responses
        answer = answer[0]
    usage = answer["usage"]
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    choices = len(answer.get("choices", [])) or 1
    if "cache_read_input_tokens" in usage:
        prompt += usage["cache_read_input_tokens"]
    # llama.cpp counts the first choice; nobody counts less than one token a choice.
    return prompt, max(output, output * choices if "timings" in answer else choices)


async def tokens_before_hanging_up(engine: Engine, bypass: Bypass) -> int:
    """Events of a stream that has no end, up to many more than the cap."""
    body = bypass.body.replace(b"{", b'{"stream":true,', 1)
    enough = 3 * OUTPUT_CAP
    async with await RawClient.open("127.0.0.1", engine.port, timeout=60) as client:
        await client.send(request_bytes("POST", bypass.path, JSON, body))
        response = await client.read_head(method="POST")
        assert response.status == 200, await client.read_rest()
        events = 0
        while events < enough and (piece := await client.read_chunk()):
            events += piece.count(b"\ndata: ") + piece.startswith(b"data: ")
    await engine.idle()
    return events


async def directly(engine: Engine, bypass: Bypass) -> str:
    """The control: what the engine does with it, which must be what the table says."""
    if bypass.direct == ENDLESS:
        events = await tokens_before_hanging_up(engine, bypass)
        assert events > OUTPUT_CAP
        return f"output > {OUTPUT_CAP}"
    response = await engine.ask("POST", bypass.path, bypass.body)
    if bypass.direct == CLOSED:
        assert 400 <= response.status < 500, response
        return f"{response.status}"
    assert response.status == 200, response.body
    prompt, output = used(response)
    assert (prompt > PROMPT_CAP + MARKUP or output > OUTPUT_CAP) == (bypass.direct == OVER)
    return f"prompt {prompt:,}" if prompt > PROMPT_CAP + MARKUP else f"output {output:,}"


async def through(live: Live, bypass: Bypass, behind: Engine | None = None) -> str:
    """What the proxy makes of it, which must be what the table says."""
    running = await live(behind=behind, **LIMITS, **bypass.settings)
    response = await running.ask("POST", bypass.path, {**BEARER, **JSON}, bypass.body)
    if bypass.through is not None:
        line = await running.log.of(response)
        assert 400 <= response.status < 500, response.body
        assert line["outcome"] == bypass.through, response.body
        assert tap_of(running).heard_nothing
        return f"{response.status} {bypass.through}"
    assert response.status == 200, response.body
    prompt, output = used(response)
    assert prompt <= PROMPT_CAP + MARKUP
    assert output <= bypass.most
    return f"output {output:,}"


def structured(schema: dict[str, Any]) -> dict[str, Any]:
    """An output schema."""
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    }


def nested(levels: int) -> str:
    """A pattern that doubles so often."""
    return "^" + "(" * levels + "a?a?" + "){2}" * levels + "$"
