"""Refused fields: where they are dangerous they are refused, and inside a tool's schema they pass."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.endpoints import BodyKind
from proxy.errors import FieldRefused, Refusal
from proxy.policy import Limits, Policy, Terms, Verdict
from proxy.policy.fields import HOSTILE, HOSTILE_BY_KIND, STRICT, TEMPLATE_ARGUMENTS, is_known


def check(body: dict[str, Any], kind: BodyKind = BodyKind.CHAT, **limits: Any) -> Verdict:
    """The policy's verdict."""
    return Policy(Limits(**limits)).check(kind, json.dumps(body).encode(), Terms())


HOSTILE_NAMES = [*HOSTILE, "image_embeds", "new_embeds", "bootstrap_host", "bootstrap_room"]
STRICT_NAMES = [*STRICT, "return_token_ids", "return_hidden_states", "routed_experts_start"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_field_is_refused_at_the_top_and_among_template_variables(name: str) -> None:
    """The message names the field, the reason and the setting that allows it."""
    for body, path in (
        ({name: [1]}, name),
        ({"chat_template_kwargs": {name: [1]}}, f"chat_template_kwargs.{name}"),
    ):
        with pytest.raises(FieldRefused) as caught:
            check(body)
        assert caught.value.param == path
        assert f"PROXY_ALLOW_FIELDS={name}" in caught.value.message


@pytest.mark.parametrize("value", [-1, 0, 2**31 - 1])
def test_a_field_that_overflows_the_heap_of_llama_cpp_is_refused(value: int) -> None:
    """Negative (CVE-2026-21869) or huge, one number ended the server."""
    with pytest.raises(FieldRefused, match="crashed engines"):
        check({"n_discard": value})


def test_a_grammar_is_refused_where_vllm_takes_it() -> None:
    """Beside it, schemas and choices pass; so does a property of that name."""
    for kind in (BodyKind.CHAT, BodyKind.COMPLETIONS, BodyKind.RESPONSES):
        with pytest.raises(FieldRefused, match="hold the engine") as caught:
            check({"structured_outputs": {"grammar": "root ::= a"}}, kind)
        assert caught.value.param == "structured_outputs.grammar"
    allowed = frozenset({"grammar"})
    assert check({"structured_outputs": {"grammar": "x"}}, allow_fields=allowed).body
    schema = {"type": "object", "properties": {"grammar": {"type": "string"}}}
    for fine in ({"grammar": None, "json": schema}, {"choice": ["grammar"]}, None, "odd"):
        assert check({"structured_outputs": fine}).body


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, *STRICT_NAMES])
def test_the_same_name_passes_where_it_is_data(name: str) -> None:
    """A tool may have a property called input_ids."""
    schema = {"type": "object", "properties": {name: {"type": "array"}}, "required": [name]}
    body = {
        "messages": [
            {"role": "user", "content": f"what is {name}?"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "name": "f", "input": {name: [1]}}],
                "tool_calls": [
                    {"function": {"name": "f", "arguments": {name: [1]}}},
                    {"function": {"name": "f", "arguments": json.dumps({name: [1]})}},
                ],
            },
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }
    assert check(body, profile="strict").cost.schema_chars > 0


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, *STRICT_NAMES])
def test_null_and_false_are_as_good_as_absent(name: str) -> None:
    """SDKs send them for what they do not use."""
    for value in (None, False):
        assert check({name: value}, profile="strict").body


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_the_operator_can_allow_a_name(name: str) -> None:
    """That one, and no other."""
    assert check({name: [1]}, allow_fields=frozenset({name})).body
    with pytest.raises(FieldRefused):
        check({name: [1]}, allow_fields=frozenset({"something_else"}))


@pytest.mark.parametrize("name", STRICT_NAMES)
def test_the_second_tier_is_refused_in_the_strict_profile_only(name: str) -> None:
    """Among friends it passes."""
    assert check({name: [1]}).body
    with pytest.raises(FieldRefused):
        check({name: [1]}, profile="strict")
    assert check({name: [1]}, profile="strict", allow_fields=frozenset({name})).body


def test_echo_with_logprobs_is_refused_in_the_strict_profile_only() -> None:
    """Together they return log probabilities of the whole prompt."""
    kind = BodyKind.COMPLETIONS
    body = {"prompt": "x", "echo": True, "logprobs": 1}
    assert check(body, kind).body
    with pytest.raises(FieldRefused, match="echo"):
        check(body, kind, profile="strict")
    assert check({**body, "logprobs": None}, kind, profile="strict").body
    assert check({**body, "echo": False}, kind, profile="strict").body
    assert check(body, kind, profile="strict", allow_fields=frozenset({"echo"})).body


@pytest.mark.parametrize("name", TEMPLATE_ARGUMENTS)
def test_arguments_of_the_renderer_are_no_template_variables(name: str) -> None:
    """CVE-2025-62426; at the top level they are something else, or nothing."""
    with pytest.raises(FieldRefused):
        check({"chat_template_kwargs": {name: True}})


def test_ordinary_template_variables_pass() -> None:
    """The ones that people use."""
    kwargs = {"enable_thinking": False, "thinking": True, "custom": "x"}
    assert check({"chat_template_kwargs": kwargs}).body
    assert check({"chat_template_kwargs": None}).body
    assert check({"chat_template_kwargs": "odd"}).body


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, names in HOSTILE_BY_KIND.items() for name in names],
)
def test_some_names_are_refused_on_one_endpoint(kind: BodyKind, name: str) -> None:
    """Elsewhere they mean nothing."""
    with pytest.raises(FieldRefused):
        check({name: "x"}, kind)
    assert check({name: "x"}, BodyKind.CHAT).body


@pytest.mark.parametrize(
    "kind", ["function", "custom", "web_search", "web_search_preview", "local_shell"]
)
def test_tools_that_the_client_runs_pass(kind: str) -> None:
    """On the Responses API a tool's type decides who acts."""
    assert check({"tools": [{"type": kind, "name": "f"}]}, BodyKind.RESPONSES).body


@pytest.mark.parametrize(
    "kind",
    ["mcp", "code_interpreter", "container", "shell", "image_generation", None, 1, "FUNCTION"],
)
def test_tools_that_the_server_would_run_are_refused(kind: object) -> None:
    """And those that nobody knows; on chat nobody runs anything."""
    body = {"tools": [{"type": "function"}, {"type": kind}]}
    with pytest.raises(FieldRefused) as caught:
        check(body, BodyKind.RESPONSES)
    assert caught.value.param == "tools[1].type"
    assert check(body, BodyKind.CHAT).body


def test_a_server_tool_can_be_allowed() -> None:
    """By its type."""
    body = {"tools": [{"type": "mcp"}]}
    assert check(body, BodyKind.RESPONSES, allow_fields=frozenset({"tools.mcp"})).body


def test_the_operator_can_deny_a_name() -> None:
    """Any, a governed one too; and is not told how to allow it."""
    deny = frozenset({"tools", "zz"})
    for name in deny:
        with pytest.raises(FieldRefused, match="PROXY_DENY_FIELDS") as caught:
            check({name: [1]}, deny_fields=deny)
        assert "PROXY_ALLOW_FIELDS" not in caught.value.message
    assert check({"zzz": [1]}, deny_fields=deny).body


def test_a_long_name_is_not_repeated_at_length() -> None:
    """It comes back in a response header's neighbourhood and in the client's terminal."""
    with pytest.raises(FieldRefused) as caught:
        check({"x" * 9_000 + "_embeds": 1})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, *STRICT_NAMES, "tools.mcp", "video_url", "echo"])
def test_names_that_can_be_allowed_are_known(name: str) -> None:
    """So that a misspelt one is an error at start."""
    assert is_known(name)
    assert not is_known(name[:-1] + "?") or name.startswith(
        ("bootstrap_", "return_", "routed", "tools.")
    )


@pytest.mark.parametrize("mode", ["off", "per-key"])
@pytest.mark.parametrize("sent", ["", '"cache_salt":"mine",'])
def test_a_salt_of_our_own(mode: Any, sent: str) -> None:
    """Put in or put in place of the client's, so that keys share no prefix cache."""
    body = b'{%b"max_tokens":1}' % sent.encode()
    verdict = Policy(Limits(cache_salt=mode)).check(BodyKind.CHAT, body, Terms(cache_salt="5a17"))
    if mode == "off":
        assert verdict.body is body
    else:
        assert json.loads(verdict.body) == {"cache_salt": "5a17", "max_tokens": 1}


UNTOUCHED = (
    b'{ "model":"m",\r\n "messages" :[{"role":"user","content":"a\\/b caf\\u00e9 \xc3\xa9 <&>"}],'
    b'"max_tokens":7, "temperature":1.0e+00,"seed":9007199254740993,"top_p":0.10,'
    + b",".join(b'"unknown_%d":{"a":[%d, null ,true]}' % (n, n) for n in range(30))
    + b',"tools":[{"function":{"z":1,"a":18446744073709551617},"type":"function"}],'
    b'"tool_choice":"auto"}'
)


def test_an_unchanged_body_is_the_very_same_object() -> None:
    """30 unknown fields, odd white space, escapes and numbers."""
    assert Policy(Limits()).check(BodyKind.CHAT, UNTOUCHED, Terms()).body is UNTOUCHED


KEYS = st.sampled_from(
    ["messages", "input", "prompt", "content", "role", "type", "text", "tool_calls", "function",
     "arguments", "image_url", "url", "source", "data", "media_type", "input_audio", "format",
     "tools", "max_tokens", "n", "thinking", "budget_tokens", "logprobs", "system", "documents",
     "chat_template_kwargs", "stop", "model", "uuid", "x"]
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.sampled_from(
        ["user", "text", "image_url", "base64", "image/png", "data:image/png;base64,"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(BodyKind), body=st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_json_is_judged_and_nothing_crashes(kind: BodyKind, body: dict[str, Any]) -> None:
    """A verdict whose bound holds, or a refusal: never another exception."""
    try:
        verdict = check(body, kind)
    except Refusal:
        return
    passed = json.loads(verdict.body)
    assert verdict.cost.prompt_chars <= 100_000
    assert verdict.cost.sequences * verdict.cost.output_tokens <= 4_096
    assert {name: passed[name] for name in body if name not in {"max_tokens", "n", "thinking"}} == {
        name: value for name, value in body.items() if name not in {"max_tokens", "n", "thinking"}
    }
