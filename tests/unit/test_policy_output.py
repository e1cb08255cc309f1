"""The output cap, through every alias and multiplier."""

import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import InvalidValue, OutputTooLarge, TooManyChoices
from proxy.policy import Limits, Policy, Terms, Verdict

CHAT, COMPLETIONS = BodyKind.CHAT, BodyKind.COMPLETIONS
RESPONSES, MESSAGES = BodyKind.RESPONSES, BodyKind.MESSAGES


def check(kind: BodyKind, body: dict[str, Any] | bytes, **limits: Any) -> Verdict:
    """The policy's verdict."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Policy(Limits(**limits)).check(kind, raw, Terms())


@pytest.mark.parametrize(
    ("kind", "body", "expected", "clamped"),
    [
        # What is absent is inserted.
        pytest.param(CHAT, {}, {"max_tokens": 4096}, "", id="chat without a bound"),
        pytest.param(
            RESPONSES, {}, {"max_output_tokens": 4096}, "", id="responses without a bound"
        ),
        pytest.param(MESSAGES, {}, {"max_tokens": 4096}, "", id="messages without a bound"),
        pytest.param(COMPLETIONS, {}, {"max_tokens": 16}, "", id="completions default to 16"),
        pytest.param(CHAT, {"max_tokens": None}, {"max_tokens": 4096}, "", id="a lone null"),
        pytest.param(
            CHAT,
            {"max_tokens": None, "max_completion_tokens": None},
            {"max_tokens": 4096, "max_completion_tokens": None},
            "",
            id="two nulls",
        ),
        pytest.param(
            CHAT,
            {"max_completion_tokens": None},
            {"max_tokens": 4096, "max_completion_tokens": None},
            "",
            id="a null of the other name",
        ),
        # What is within the cap stays.
        pytest.param(CHAT, {"max_tokens": 1}, {"max_tokens": 1}, "", id="one token"),
        pytest.param(CHAT, {"max_tokens": 4096}, {"max_tokens": 4096}, "", id="exactly the cap"),
        pytest.param(
            CHAT,
            {"max_tokens": None, "max_completion_tokens": 5},
            {"max_tokens": None, "max_completion_tokens": 5},
            "",
            id="one of two is enough",
        ),
        # What is over is lowered, every name of it.
        pytest.param(
            CHAT,
            {"max_tokens": 4097},
            {"max_tokens": 4096},
            "max_tokens 4097 -> 4096",
            id="one over",
        ),
        pytest.param(
            CHAT,
            {"max_completion_tokens": 100, "max_tokens": 50_000},
            {"max_completion_tokens": 100, "max_tokens": 4096},
            "max_tokens 50000 -> 4096",
            id="a small and a large one",
        ),
        pytest.param(
            CHAT,
            {"max_completion_tokens": 50_000, "max_tokens": 200},
            {"max_completion_tokens": 4096, "max_tokens": 200},
            "max_completion_tokens 50000 -> 4096",
            id="a large and a small one",
        ),
        pytest.param(
            CHAT,
            {"max_tokens": 5, "n_predict": 99_999, "max_new_tokens": 99_999},
            {"max_tokens": 5, "n_predict": 4096, "max_new_tokens": 4096},
            "max_new_tokens 99999 -> 4096, n_predict 99999 -> 4096",
            id="names of other engines",
        ),
        pytest.param(
            CHAT,
            {"n_predict": 50},
            {"max_tokens": 50, "n_predict": 50},
            "",
            id="a smaller alias is not raised by what is inserted",
        ),
        pytest.param(
            COMPLETIONS,
            {"max_completion_tokens": 5_000, "max_tokens": 5},
            {"max_completion_tokens": 4096, "max_tokens": 5},
            "max_completion_tokens 5000 -> 4096",
            id="chat's name on completions",
        ),
        pytest.param(
            RESPONSES,
            {"max_output_tokens": 5_000},
            {"max_output_tokens": 4096},
            "max_output_tokens 5000 -> 4096",
            id="responses",
        ),
        # The cap is the request's.
        pytest.param(
            CHAT,
            {"n": 4, "max_tokens": 4096},
            {"n": 4, "max_tokens": 1024},
            "max_tokens 4096 -> 1024",
            id="four choices get a quarter each",
        ),
        pytest.param(CHAT, {"n": 8}, {"n": 8, "max_tokens": 512}, "", id="eight choices"),
        pytest.param(
            COMPLETIONS,
            {"prompt": ["a"] * 8, "max_tokens": 4096},
            {"prompt": ["a"] * 8, "max_tokens": 512},
            "max_tokens 4096 -> 512",
            id="eight prompts",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": ["a"] * 2, "n": 2, "best_of": 4, "max_tokens": 4096},
            {"prompt": ["a"] * 2, "n": 2, "best_of": 4, "max_tokens": 512},
            "max_tokens 4096 -> 512",
            id="prompts times the larger of n and best_of",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": [1, 2, 3], "max_tokens": 4096},
            {"prompt": [1, 2, 3], "max_tokens": 4096},
            "",
            id="ids are one prompt",
        ),
        # The response's size is bounded too.
        pytest.param(
            CHAT,
            {"logprobs": True, "top_logprobs": 20, "max_tokens": 4096},
            {"logprobs": True, "top_logprobs": 20, "max_tokens": 1560},
            "max_tokens 4096 -> 1560",
            id="log probabilities make it 32,768 // 21",
        ),
        pytest.param(
            CHAT,
            {"logprobs": True},
            {"logprobs": True, "max_tokens": 4096},
            "",
            id="a switch is one",
        ),
        pytest.param(
            COMPLETIONS,
            {"logprobs": 15, "max_tokens": 4096},
            {"logprobs": 15, "max_tokens": 2048},
            "max_tokens 4096 -> 2048",
            id="log probabilities of completions",
        ),
        pytest.param(
            COMPLETIONS,
            {"logprobs": False},
            {"logprobs": False, "max_tokens": 16},
            "",
            id="off is off",
        ),
        # What the clamp would make invalid goes with it.
        pytest.param(
            MESSAGES,
            {"max_tokens": 32_000, "thinking": {"type": "enabled", "budget_tokens": 31_999}},
            {"max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 4095}},
            "max_tokens 32000 -> 4096, thinking.budget_tokens 31999 -> 4095",
            id="thinking of 31,999 of 32,000",
        ),
        pytest.param(
            CHAT,
            {"max_tokens": 9_000, "min_tokens": 5_000, "thinking_token_budget": 8_000},
            {"max_tokens": 4096, "min_tokens": 4096, "thinking_token_budget": 4095},
            "max_tokens 9000 -> 4096, min_tokens 5000 -> 4096, thinking_token_budget 8000 -> 4095",
            id="min_tokens and the thinking budget",
        ),
        pytest.param(
            CHAT,
            {"min_tokens": 5_000},
            {"min_tokens": 4096, "max_tokens": 4096},
            "min_tokens 5000 -> 4096",
            id="min_tokens beside what was inserted",
        ),
        pytest.param(
            CHAT,
            {"max_tokens": 100, "min_tokens": 200},
            {"max_tokens": 100, "min_tokens": 200},
            "",
            id="the client's own mistake stays its own",
        ),
        pytest.param(
            COMPLETIONS,
            {"min_tokens": 200},
            {"min_tokens": 200, "max_tokens": 16},
            "",
            id="and so beside the API's default",
        ),
    ],
)
def test_the_bound(
    kind: BodyKind, body: dict[str, Any], expected: dict[str, Any], clamped: str
) -> None:
    """What the upstream gets, and what the client is told."""
    verdict = check(kind, body)
    assert json.loads(verdict.body) == expected
    assert verdict.clamped == clamped


GOVERNED = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
    "n",
    "best_of",
    "n_cmpl",
    "min_tokens",
    "top_logprobs",
    "n_probs",
    "thinking_token_budget",
    "thinking.budget_tokens",
]


def with_member(path: str, value: object) -> dict[str, Any]:
    """A body with one member, possibly of an object."""
    outer, _, inner = path.partition(".")
    return {outer: {inner: value} if inner else value}


@pytest.mark.parametrize("path", GOVERNED)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("7", id="a string"),
        pytest.param(True, id="true"),
        pytest.param(False, id="false"),
        pytest.param(1.5, id="a fraction"),
        pytest.param(float("1e30"), id="an integral float beyond 64 bits"),
        pytest.param(2**63, id="more than 64 bits"),
        pytest.param(-(2**63), id="more than 64 bits below zero"),
        pytest.param([7], id="a list"),
        pytest.param({}, id="an object"),
    ],
)
def test_governed_numbers_are_json_integers(path: str, value: object) -> None:
    """Others are read as numbers by some engine, and would slip past a comparison."""
    with pytest.raises(InvalidValue) as caught:
        check(CHAT, with_member(path, value))
    assert caught.value.param == path


@pytest.mark.parametrize("name", ["max_tokens", "n", "n_predict", "max_output_tokens"])
def test_numbers_beyond_any_are_refused(name: str) -> None:
    """1e400 is infinite for one parser and a number for another."""
    with pytest.raises(InvalidValue):
        check(CHAT, b'{"%b":1e400}' % name.encode())


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "max_new_tokens",
        "n",
        "best_of",
        "n_cmpl",
    ],
)
@pytest.mark.parametrize("value", [0, -1, -24, 0.0, -0.0])
def test_zero_and_less_are_refused(name: str, value: float) -> None:
    """Some engines take -1 for unlimited."""
    with pytest.raises(InvalidValue, match="at least 1"):
        check(CHAT, {name: value})


def test_an_integral_float_becomes_the_integer_and_nothing_else_changes() -> None:
    """As the engine would have read it."""
    body = b'{ "max_tokens" : 7.0 , "n":2e0, "min_tokens": 3.0,  "top_logprobs":1.0, "t": 1.0 }'
    assert check(CHAT, body).body == (
        b'{ "max_tokens" : 7 , "n":2, "min_tokens": 3,  "top_logprobs":1, "t": 1.0 }'
    )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(CHAT, {"n": 9}, id="nine choices"),
        pytest.param(CHAT, {"n": 64, "max_tokens": 1}, id="64 choices of one token"),
        pytest.param(COMPLETIONS, {"best_of": 9}, id="the best of nine"),
        pytest.param(CHAT, {"n": 1, "n_cmpl": 9}, id="llama.cpp's own name, which wins there"),
        pytest.param(COMPLETIONS, {"prompt": ["a"] * 3, "n": 3}, id="three prompts times three"),
        pytest.param(COMPLETIONS, {"prompt": [[1]] * 3, "n": 3}, id="three lists of ids"),
    ],
)
def test_too_many_sequences_are_refused(kind: BodyKind, body: dict[str, Any]) -> None:
    """Eight pass (above), nine do not."""
    with pytest.raises(TooManyChoices, match=r"9|64"):
        check(kind, body)


def test_sequences_that_leave_no_token_each_are_refused() -> None:
    """A bound of zero would be none."""
    assert check(CHAT, {"n": 4}, max_output_tokens=4).cost.output_tokens == 1
    with pytest.raises(TooManyChoices, match="PROXY_MAX_OUTPUT_TOKENS"):
        check(CHAT, {"n": 5}, max_output_tokens=4)


def test_more_log_probabilities_than_entries_are_refused() -> None:
    """On both sides of the bound."""
    assert check(CHAT, {"top_logprobs": 32_767}).cost.output_tokens == 1
    with pytest.raises(InvalidValue, match="32,767"):
        check(CHAT, {"top_logprobs": 32_768})


def test_a_switch_is_no_number_on_completions() -> None:
    """There logprobs is one."""
    with pytest.raises(InvalidValue):
        check(COMPLETIONS, {"logprobs": True})


def test_rejecting_instead_of_clamping() -> None:
    """The operator's choice; at the cap it passes."""
    assert check(CHAT, {"max_tokens": 4096}, output_overflow="reject").clamped == ""
    with pytest.raises(OutputTooLarge, match=r"4,097.*4,096.*PROXY_MAX_OUTPUT_TOKENS"):
        check(CHAT, {"max_tokens": 4097}, output_overflow="reject")
    with pytest.raises(OutputTooLarge, match="2 sequences"):
        check(CHAT, {"max_tokens": 4096, "n": 2}, output_overflow="reject")


@pytest.mark.parametrize("engine", ["transformers", "llamacpp"])
def test_engines_that_read_one_name_get_it(engine: Any) -> None:
    """Under theirs too."""
    body = {"max_completion_tokens": 9_000}
    assert json.loads(check(CHAT, body, engine=engine).body) == {
        "max_completion_tokens": 4096,
        "max_tokens": 4096,
    }
    assert json.loads(check(CHAT, body, engine="vllm").body) == {"max_completion_tokens": 4096}


@pytest.mark.parametrize("kind", [BodyKind.EMBEDDINGS, BodyKind.COUNT_TOKENS, BodyKind.RERANK])
def test_where_nothing_is_generated_nothing_is_governed(kind: BodyKind) -> None:
    """The very same bytes."""
    body = b'{"max_tokens": "odd", "n": 99}'
    verdict = check(kind, body)
    assert verdict.body is body
    assert verdict.cost.sequences == 0


def test_the_cost_is_what_to_reserve() -> None:
    """Sequences, and the most that each may generate."""
    cost = check(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 100, "n": 2}).cost
    assert (cost.sequences, cost.output_tokens) == (4, 100)


def test_only_a_true_stream_is_a_stream() -> None:
    """What else an engine makes of it, its answer will show."""
    assert check(CHAT, {"stream": True}).stream
    for value in (False, None, 1, "true"):
        assert not check(CHAT, {"stream": value}).stream


@pytest.mark.parametrize(
    ("body", "spare", "expected"),
    [
        pytest.param({}, None, 4096, id="a key without limits of tokens"),
        pytest.param({}, 500, 500, id="one with few"),
        pytest.param({"n": 4}, 500, 125, id="over all sequences"),
        pytest.param({"n": 8}, 5, 1, id="and never none"),
        pytest.param({}, 9_000, 4096, id="one with more than the cap"),
        pytest.param({"max_tokens": 900}, 500, 900, id="what the client says counts"),
    ],
)
def test_what_a_key_with_few_tokens_gets_without_a_bound(
    body: dict[str, Any], spare: int | None, expected: int
) -> None:
    """All of the cap would be more than it may have in a minute."""
    terms = Terms(default_output_tokens=spare)
    verdict = Policy(Limits()).check(CHAT, json.dumps(body).encode(), terms)
    assert json.loads(verdict.body)["max_tokens"] == expected
    assert verdict.clamped == ""
