"""The short ways that usual bodies take through the policy say what the long ones do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import policy
from proxy.endpoints import BodyKind
from proxy.errors import ProxyError
from proxy.policy import Limits, Policy, Terms, conversation, output, prompt, sampling

numbers = st.sampled_from(
    [None, True, 0, 0.0, 1, 1.0, 1.5, -1, 2, 3, 7, 8, 100, 101, 1e-7, -1e-7, 1e6, 2e6, 10**25, "1"]
)
contents = st.sampled_from(
    ["", "hi", "a\n", "é\u200b'\\\"", None, 5, [], ["a"], [{"type": "text", "text": "a"}]]
)
messages: st.SearchStrategy[Any] = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "system", "tool", "x", None, 1, [], {}]),
                "content": contents,
            },
            optional={"name": contents},
        ),
        st.dictionaries(st.sampled_from(["role", "content", "name", "x"]), contents, max_size=3),
        st.sampled_from([None, "a", []]),
    ),
    max_size=4,
)
options = st.dictionaries(
    st.sampled_from(["include_usage", "continuous_usage_stats", "x"]), numbers, max_size=2
)
members: dict[str, st.SearchStrategy[Any]] = {
    "messages": messages,
    "model": contents,
    "input": contents,
    "prompt": contents,
    "stream": st.sampled_from([True, False, None, 1]),
    "stream_options": st.one_of(options, st.none(), numbers),
    "tools": st.sampled_from([None, [], [{"type": "function"}], [{"type": "mcp"}], {"a": None}]),
    "response_format": st.sampled_from([None, {"type": "text"}, {"type": "grammar"}]),
    "text": st.sampled_from([None, {"format": {"type": "ebnf"}}, "a"]),
    "structured_outputs": st.sampled_from([None, {"grammar": "a"}, {"json": {}}]),
    "chat_template_kwargs": st.sampled_from([None, {"tokenize": True}, {"a": 1}]),
    "thinking": st.sampled_from([None, {"budget_tokens": 200}, {"budget_tokens": 1}]),
    "logit_bias": st.sampled_from([None, {"1": 2e6}, {"1": 1}]),
    "samplers": st.sampled_from(["a" * 65, []]),
    **dict.fromkeys(
        (
            *("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "n"),
            *("best_of", "logprobs", "top_logprobs", "min_tokens", "temperature", "top_k"),
            *("presence_penalty", "repeat_last_n", "ignore_eos", "echo", "priority", "input_ids"),
            *("bootstrap_x", "x_embeds", "unknown", "padding", "cache_salt"),
        ),
        numbers,
    ),
}
rare = st.sampled_from(sorted(members)).flatmap(
    lambda name: st.tuples(st.just(name), members[name])
)
usual = st.fixed_dictionaries(
    {"messages": messages},
    optional={
        name: members[name]
        for name in ("model", "temperature", "max_tokens", "max_completion_tokens", "stream")
    },
)
bodies = st.builds(lambda body, more: {**body, **dict(more)}, usual, st.lists(rare, max_size=3))
limits = st.builds(
    Limits,
    max_output_tokens=st.sampled_from([1, 100]),
    max_choices=st.sampled_from([1, 8]),
    output_overflow=st.sampled_from(["clamp", "reject"]),
    profile=st.sampled_from(["standard", "strict"]),
    engine=st.sampled_from(["vllm", "llamacpp"]),
    default_output_tokens=st.sampled_from([None, 7]),
    allow_fields=st.sampled_from([frozenset(), frozenset({"input_ids", "echo"})]),
    deny_fields=st.sampled_from([frozenset(), frozenset({"temperature", "model"})]),
    cache_salt=st.sampled_from(["off", "per-key"]),
)


def said(of: Policy, kind: BodyKind, body: bytes, terms: Terms) -> object:
    """Its verdict, or its refusal."""
    try:
        return of.check(kind, body, terms)
    except ProxyError as exc:
        return type(exc), str(exc), getattr(exc, "param", None)


def said_the_long_way(of: Limits, kind: BodyKind, body: bytes, terms: Terms) -> object:
    """The same with every short way shut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "check_sampling", sampling._check_all)
        patch.setattr(output, "_usual", lambda *_: None)
        patch.setattr(conversation, "_PLAIN_MEMBERS", -1)
        judge = Policy(of)
        patch.setattr(judge._fields, "_usual", dict.fromkeys(BodyKind, frozenset()))
        return said(judge, kind, body, terms)


@given(
    kind=st.sampled_from(list(BodyKind)),
    body=bodies,
    limits=limits,
    terms=st.builds(Terms, want_usage=st.booleans(), cache_salt=st.just("s")),
)
def test_both_ways_say_the_same(
    kind: BodyKind, body: dict[str, Any], limits: Limits, terms: Terms
) -> None:
    """Whatever a body is made of."""
    written = json.dumps(body).encode()
    assert said(Policy(limits), kind, written, terms) == said_the_long_way(
        limits, kind, written, terms
    )


def test_what_is_sampling_has_no_other_meaning() -> None:
    """Such names are looked up first, on all endpoints."""
    for handlers in prompt._HANDLERS.values():
        assert prompt._SAMPLING.isdisjoint(handlers)
