"""Sampling parameters far outside of what anybody uses are refused, everything else passes."""

import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import InvalidValue
from proxy.policy import Limits, Policy, Terms, Verdict

SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"enum": ["a"]}}}


def check(body: dict[str, Any], kind: BodyKind = BodyKind.CHAT) -> Verdict:
    """The policy's verdict."""
    return Policy(Limits()).check(kind, json.dumps(body).encode(), Terms())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"temperature": 1e-38}, "temperature", id="logits divided by nothing"),
        pytest.param({"temperature": 9e-7}, "temperature", id="just below the least temperature"),
        pytest.param({"temperature": 1e39}, "temperature", id="an infinite temperature"),
        pytest.param({"frequency_penalty": -1e39}, "frequency_penalty", id="infinite frequency"),
        pytest.param({"presence_penalty": -3e38}, "presence_penalty", id="a presence of -3e38"),
        pytest.param({"presence_penalty": 1000001}, "presence_penalty", id="just over, an integer"),
        pytest.param({"repeat_penalty": 1e7}, "repeat_penalty", id="llama.cpp's penalty"),
        pytest.param({"repetition_penalty": 10**400}, "repetition_penalty", id="400 digits"),
        pytest.param({"dry_multiplier": -2e6}, "dry_multiplier", id="a negative multiplier"),
        pytest.param({"logit_bias": {"5": 3.4e38}}, "logit_bias", id="a bias of 3.4e38"),
        pytest.param({"logit_bias": {"1": 1, "2": -1e7}}, "logit_bias", id="the second bias"),
        pytest.param({"logit_bias": [[5, 1], [6, 1e39]]}, "logit_bias", id="llama.cpp's pairs"),
        pytest.param({"repeat_last_n": 2**31 - 1}, "repeat_last_n", id="8 GB of last tokens"),
        pytest.param({"dry_penalty_last_n": 131073}, "dry_penalty_last_n", id="just over, DRY"),
        pytest.param({"samplers": ["penalties"] * 65}, "samplers", id="65 samplers by name"),
        pytest.param({"samplers": "d" * 65}, "samplers", id="65 samplers by letter"),
        pytest.param({"ignore_eos": True, "response_format": SCHEMA}, "ignore_eos", id="no end"),
        pytest.param(
            {"ignore_eos": 1, "response_format": {"type": "json_object"}},
            "ignore_eos",
            id="no end of an object",
        ),
        pytest.param({"ignore_eos": True, "json_schema": {}}, "ignore_eos", id="a bare schema"),
    ],
)
@pytest.mark.parametrize("kind", [BodyKind.CHAT, BodyKind.COMPLETIONS, BodyKind.RESPONSES])
def test_what_has_ended_a_server_is_refused(
    kind: BodyKind, body: dict[str, Any], param: str
) -> None:
    """Naming the field."""
    with pytest.raises(InvalidValue) as caught:
        check(body, kind)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"temperature": 0}, id="greedy"),
        pytest.param({"temperature": 1e-6}, id="the least temperature"),
        pytest.param({"temperature": -1}, id="a negative one, which the engine refuses"),
        pytest.param({"temperature": "0.7"}, id="a string, which some engines read"),
        pytest.param({"temperature": True, "presence_penalty": None}, id="no numbers at all"),
        pytest.param({"frequency_penalty": -2, "presence_penalty": 2.0}, id="OpenAI's range"),
        pytest.param({"repeat_penalty": 1e6, "dry_multiplier": -1e6}, id="the bound itself"),
        pytest.param({"logit_bias": {"5": 100, "6": -100}}, id="OpenAI's biases"),
        pytest.param({"logit_bias": [[5, False], ["x", -1.0], 3, []]}, id="llama.cpp's biases"),
        pytest.param({"logit_bias": "odd"}, id="a bias of another type"),
        pytest.param({"repeat_last_n": 131072, "dry_penalty_last_n": -1}, id="a whole context"),
        pytest.param({"samplers": ["top_k"] * 64}, id="64 samplers"),
        pytest.param({"samplers": "edskypmxt"}, id="the usual ones by letter"),
        pytest.param({"samplers": 9}, id="samplers of another type"),
        pytest.param({"ignore_eos": True}, id="an end that is ignored"),
        pytest.param({"ignore_eos": False, "response_format": SCHEMA}, id="an end that is not"),
        pytest.param({"ignore_eos": True, "response_format": {"type": "text"}}, id="plain text"),
        pytest.param(
            {"ignore_eos": True, "structured_outputs": {"json": {}}}, id="vLLM's own name"
        ),
        pytest.param({"ignore_eos": True, "response_format": None}, id="no format"),
    ],
)
def test_everything_else_passes_untouched(body: dict[str, Any]) -> None:
    """Also what only the engine can judge."""
    sent = {**body, "max_tokens": 1}
    assert json.loads(check(sent).body) == sent
