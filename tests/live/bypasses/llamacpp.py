"""The ways into llama.cpp's server, as rows, and what ends it."""

import pytest

from tests.harness.running import CHAT
from tests.live.bypasses.bypass import (
    COMPLETIONS,
    ENDLESS,
    ENDLESS_FIELDS,
    OVER,
    RESPONSES,
    TAKEN,
    TAKES_ALL,
    TEXT,
    chat,
    nested,
    row,
    structured,
)

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
