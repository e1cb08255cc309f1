"""The prompt cap: never less than what an upstream can render from a body."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints import BodyKind
from proxy.errors import (
    ContextLengthExceeded,
    InvalidValue,
    ParametersTooLarge,
    Refusal,
    ToolsTooLarge,
    TooManyInputs,
)
from proxy.policy import Limits, Policy, Terms, Verdict, lengths
from proxy.policy.lengths import compact_chars, shape

CAP = 10_000
INVISIBLE = "\U000e0001"  # one character, and ten as Python prints it
FREE = 64  # messages, items, parts and tool calls that count nothing themselves


def check(kind: BodyKind, body: dict[str, Any], **limits: Any) -> Verdict:
    """The policy's verdict on a body."""
    policy = Policy(Limits(**limits))
    return policy.check(kind, json.dumps(body).encode(), Terms(cache_salt="salt"))


def chat(*messages: object, **more: object) -> dict[str, Any]:
    """A chat body."""
    return {"model": "m", "messages": list(messages), **more}


def user(content: object) -> dict[str, object]:
    """A user's message."""
    return {"role": "user", "content": content}


def split(total: int, pieces: int) -> list[str]:
    """So many characters in so many texts."""
    texts = ["x" * (total // pieces)] * pieces
    return [texts[0] + "x" * (total % pieces), *texts[1:]]


ROLES = ["system", "developer", "user", "assistant", "tool", "function"]

# How to place a number of characters in a body: each must pass with 10,000 and not with 10,001.
PLACES = [
    pytest.param(BodyKind.CHAT, lambda n: chat(user("x" * n)), id="one message"),
    pytest.param(BodyKind.CHAT, lambda n: chat(user("é" * n)), id="two bytes a character"),
    pytest.param(BodyKind.CHAT, lambda n: chat(user("😀" * n)), id="surrogate pairs count once"),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(
            *({"role": r, "content": t} for r, t in zip(ROLES, split(n, 6), strict=True))
        ),
        id="spread over six roles",
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat({"role": "system", "content": "x" * n}), id="a system message"
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(user([{"type": "text", "text": t} for t in split(n, 11)])),
        id="eleven text parts",
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat(user(split(n, 7))), id="parts that are bare strings"
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat(user([{"text": "x" * n}])), id="a part without a type"
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat(user({"text": "x" * n})), id="a part that is the content"
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(user([{"type": "refusal", "refusal": "x" * n}])),
        id="a refusal part",
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat({"role": "x" * n, "content": ""}), id="a custom role"
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(user([{"type": "x" * n, "text": ""}])),
        id="an unknown part type",
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat({"role": "user", "name": "x" * n, "content": ""}), id="a name"
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat({"role": "tool", "tool_call_id": "x" * n, "content": ""}),
        id="a tool call id",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat({"role": "assistant", "reasoning_content": "x" * n}),
        id="reasoning",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": "x" * (n - 1)}}],
            }
        ),
        id="arguments as text",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(
            {"role": "assistant", "tool_calls": [{"function": {"name": "x" * n, "arguments": ""}}]}
        ),
        id="the name of a called function",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat({"role": "assistant", "tool_calls": [{"id": "x" * n, "type": "function"}]}),
        id="the id of a call",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(
            {
                "role": "assistant",
                # {"a": "…"} has nine characters besides the text
                "tool_calls": [{"function": {"arguments": {"a": "x" * (n - 9)}}}],
            }
        ),
        id="arguments as an object",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(
            {"role": "assistant", "function_call": {"name": "f", "arguments": "x" * (n - 1)}}
        ),
        id="a legacy function call",
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat(zz="x" * (n - 10)), id='an unknown field ({"zz": "…"})'
    ),
    pytest.param(
        BodyKind.CHAT, lambda n: chat(**{"z" * (n - 7): 1}), id="the name of an unknown field"
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat({"role": "user", "zz": "x" * (n - 10)}),
        id="an unknown field of a message",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(user([{"type": "text", "zz": "x" * (n - 10)}])),
        id="an unknown field of a part",
    ),
    pytest.param(BodyKind.CHAT, lambda n: chat(documents=[{"t": "x" * (n - 26)}]), id="documents"),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(chat_template_kwargs={"t": "x" * (n - 35)}),
        id="template variables",
    ),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(tool_choice={"type": "x" * (n - 29)}),
        id="a tool choice that is an object",
    ),
    pytest.param(BodyKind.CHAT, lambda n: chat(model="x" * n), id="a routing word beyond 256"),
    pytest.param(
        BodyKind.CHAT,
        lambda n: chat(*[{}] * (FREE + 199), user("x" * (n - 200 * 32))),
        id="empty messages count 32 beyond the first 64",
    ),
    pytest.param(BodyKind.COMPLETIONS, lambda n: {"prompt": "x" * n}, id="a prompt"),
    pytest.param(BodyKind.COMPLETIONS, lambda n: {"prompt": split(n, 8)}, id="a list of prompts"),
    pytest.param(
        BodyKind.COMPLETIONS, lambda n: {"prompt": "a", "suffix": "x" * (n - 1)}, id="a suffix"
    ),
    pytest.param(BodyKind.RESPONSES, lambda n: {"input": "x" * n}, id="a response's input"),
    pytest.param(
        BodyKind.RESPONSES,
        lambda n: {"instructions": "x" * (n // 2), "input": "x" * (n - n // 2)},
        id="instructions and input",
    ),
    pytest.param(
        BodyKind.RESPONSES,
        lambda n: {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "x" * n}]}]
        },
        id="an input item's part",
    ),
    pytest.param(
        BodyKind.RESPONSES,
        lambda n: {
            "input": [{"type": "function_call_output", "call_id": "c", "output": "x" * (n - 1)}]
        },
        id="a function's output",
    ),
    pytest.param(
        BodyKind.RESPONSES,
        lambda n: {
            "input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * n}]}]
        },
        id="a reasoning summary",
    ),
    pytest.param(
        BodyKind.RESPONSES,
        lambda n: {"input": [{"type": "reasoning", "encrypted_content": "x" * n}]},
        id="encrypted reasoning",
    ),
    pytest.param(
        BodyKind.RESPONSES,
        lambda n: {"text": {"format": {"type": "text"}, "zz": "x" * (n - 10)}},
        id="text besides its format",
    ),
    pytest.param(
        BodyKind.MESSAGES,
        lambda n: {"system": "x" * (n // 2), "messages": [user("x" * (n - n // 2))]},
        id="an Anthropic system prompt and message",
    ),
    pytest.param(
        BodyKind.MESSAGES,
        lambda n: {"system": [{"type": "text", "text": "x" * n}], "messages": []},
        id="system blocks",
    ),
    pytest.param(
        BodyKind.MESSAGES,
        lambda n: {
            "messages": [
                user([{"type": "tool_result", "tool_use_id": "t", "content": "x" * (n - 1)}])
            ]
        },
        id="a tool result",
    ),
    pytest.param(
        BodyKind.MESSAGES,
        lambda n: {
            "messages": [
                user([{"type": "tool_result", "content": [{"type": "text", "text": "x" * n}]}])
            ]
        },
        id="a tool result's part",
    ),
    pytest.param(
        BodyKind.MESSAGES,
        lambda n: {
            "messages": [
                user(
                    [
                        {
                            "type": "tool_result",
                            # nested twice is no known form: a structure of 52 characters and the text
                            "content": [
                                {"type": "tool_result", "content": [{"text": "x" * (n - 27)}]}
                            ],
                        }
                    ]
                )
            ]
        },
        id="a tool result within a tool result",
    ),
    pytest.param(
        BodyKind.MESSAGES,
        lambda n: {
            "messages": [user([{"type": "tool_use", "name": "f", "input": {"a": "x" * (n - 10)}}])]
        },
        id="a tool's input",
    ),
    pytest.param(
        BodyKind.MESSAGES,
        lambda n: {
            "messages": [user([{"type": "thinking", "thinking": "x" * (n - 1), "signature": "s"}])]
        },
        id="thinking",
    ),
    pytest.param(
        BodyKind.COUNT_TOKENS, lambda n: {"messages": [user("x" * n)]}, id="counting tokens"
    ),
    pytest.param(BodyKind.EMBEDDINGS, lambda n: {"input": "x" * n}, id="an embedding's input"),
    pytest.param(
        BodyKind.EMBEDDINGS, lambda n: {"input": ["a", "x" * n, "b"]}, id="one of several inputs"
    ),
    pytest.param(
        BodyKind.EMBEDDINGS, lambda n: {"messages": [user("x" * n)]}, id="an embedded conversation"
    ),
    pytest.param(
        BodyKind.RERANK,
        lambda n: {"query": "q", "documents": ["x" * n]},
        id="a document to rank",
    ),
]


@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_ten_thousand_characters_pass_and_one_more_does_not(kind: BodyKind, place: Any) -> None:
    """However they are split; the message names the cap, the measure and the setting."""
    within, over = place(CAP), place(CAP + 1)
    assert check(kind, within).cost.prompt_chars >= CAP
    with pytest.raises(ContextLengthExceeded) as caught:
        check(kind, over)
    message = caught.value.message
    assert "PROXY_MAX_PROMPT_CHARS" in message
    assert "10,000" in message
    assert "10,001" in message


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(BodyKind.COMPLETIONS, {"prompt": [1] * 2_500}, id="a list of ids"),
        pytest.param(BodyKind.COMPLETIONS, {"prompt": [[1] * 1_250] * 2}, id="lists of ids"),
        pytest.param(BodyKind.EMBEDDINGS, {"input": [1] * 2_500}, id="ids to embed"),
        pytest.param(BodyKind.RESPONSES, {"input": [1] * 2_500}, id="ids as a response's input"),
    ],
)
def test_a_token_id_counts_four(kind: BodyKind, body: dict[str, Any]) -> None:
    """2,500 ids are 10,000 characters; one more is over."""
    assert check(kind, body).cost.prompt_chars == CAP
    name, ids = next(iter(body.items()))
    more = [ids[0] + [1], *ids[1:]] if type(ids[0]) is list else [*ids, 1]
    with pytest.raises(ContextLengthExceeded, match="10,004"):
        check(kind, {name: more})


@pytest.mark.parametrize("name", ["prompt", "input"])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param([1.0, 2.0], id="floats"),
        pytest.param([1, True], id="a boolean among ids"),
        pytest.param([True], id="booleans"),
        pytest.param([1, None], id="a null among ids"),
        pytest.param([1, "1"], id="a string among ids"),
        pytest.param([-1], id="a negative id"),
        pytest.param([[1, -1]], id="a negative id in a list of lists"),
        pytest.param([2**63], id="an id of more than 64 bits"),
        pytest.param([[1], [1.0]], id="a float in a list of lists"),
        pytest.param([[1], [True]], id="a boolean in a list of lists"),
        pytest.param([["a"]], id="strings in a list of lists"),
        pytest.param([[[1]]], id="three levels"),
        pytest.param(["a", [1]], id="a text and a list of ids"),
        pytest.param([None], id="null in a list"),
        pytest.param(5, id="a number"),
        pytest.param(True, id="a boolean"),
        pytest.param({"a": 1}, id="an object"),
    ],
)
def test_other_forms_of_prompts_are_refused(name: str, value: object) -> None:
    """As vLLM does not: it takes 1.0, true and "1" for ids."""
    kind = BodyKind.COMPLETIONS if name == "prompt" else BodyKind.EMBEDDINGS
    with pytest.raises(InvalidValue) as caught:
        check(kind, {name: value})
    assert caught.value.param is not None
    assert caught.value.param.startswith(name)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(BodyKind.CHAT, {"messages": 5}, id="messages that are a number"),
        pytest.param(BodyKind.CHAT, {"messages": [None]}, id="a message that is null"),
        pytest.param(BodyKind.CHAT, {"messages": ["hi"]}, id="a message that is a string"),
        pytest.param(BodyKind.CHAT, {"messages": [[user("hi")]]}, id="a batch of conversations"),
        pytest.param(
            BodyKind.RERANK, {"query": "q", "documents": [{"text": "d"}]}, id="objects to rank"
        ),
        pytest.param(BodyKind.SCORE, {"text_1": 1, "text_2": "b"}, id="a number to score"),
    ],
)
def test_other_forms_of_conversations_are_refused(kind: BodyKind, body: dict[str, Any]) -> None:
    """What cannot be counted must not pass."""
    with pytest.raises(InvalidValue):
        check(kind, body)


@pytest.mark.parametrize(
    ("body", "chars"),
    [
        pytest.param(chat(user("hi")), 2, id="role, type and model count nothing"),
        pytest.param(chat(user(None), {"role": "assistant"}), 0, id="no content"),
        pytest.param(
            chat({"role": "assistant", "content": None, "tool_calls": None, "refusal": None}),
            0,
            id="nulls that SDKs replay",
        ),
        pytest.param(chat(model="x" * 256, user="x" * 256), 0, id="routing words up to 256"),
        pytest.param(chat(model=None, temperature=0.5, stop=["a"] * 4, seed=1), 0, id="sampling"),
        pytest.param(chat(tools=[{"type": "function", "function": {"name": "f"}}]), 0, id="tools"),
        pytest.param({"model": "m", "messages": None}, 0, id="messages that are null"),
        pytest.param(chat(user([1, None])), 5, id="parts that are no parts are rendered"),
        pytest.param(chat(user(12.5)), 4, id="content that is a number is rendered"),
        pytest.param(chat({"role": "assistant", "tool_calls": [None, "x"]}), 3, id="odd calls"),
        pytest.param(
            chat({"role": "assistant", "function_call": {"arguments": None}}), 0, id="no arguments"
        ),
        pytest.param(chat(model={"a": 1}), 19, id="a routing word that is an object is rendered"),
        pytest.param(chat(a=1), 8, id='an unknown number is {"a": 1}'),
        pytest.param(chat(*[user("")] * 64), 0, id="64 messages"),
        pytest.param(chat(*[user("")] * 65), 32, id="65 messages"),
        pytest.param(
            chat(user(["", ""]), *[{"tool_calls": [{}, {}]}] * 31),
            31,
            id="parts and calls are items too",
        ),
    ],
)
def test_what_does_not_count(body: dict[str, Any], chars: int) -> None:
    """By exact value or exact place."""
    if chars == 31:  # 32 messages, 2 parts, 62 calls: 96 items, 32 over
        chars = 32 * 32
    assert check(BodyKind.CHAT, body).cost.prompt_chars == chars


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(chat(*[{}] * 2_000), id="2,000 empty messages"),
        pytest.param(chat(user([{}] * 2_000)), id="2,000 empty parts"),
        pytest.param(
            chat({"role": "assistant", "tool_calls": [{}] * 2_000}), id="2,000 empty calls"
        ),
        pytest.param(
            chat({"role": "assistant", "content": [{"type": "tool_use", "input": [1] * 8_000}]}),
            id="8,000 numbers in a tool's input",
        ),
        pytest.param(
            chat(
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"arguments": {"a": [1] * 8_000}}}],
                }
            ),
            id="8,000 numbers in arguments",
        ),
        pytest.param(chat(zz=[1] * 8_000), id="8,000 numbers in an unknown field"),
        pytest.param(
            chat({"role": "user", "zz": [[]] * 4_000}), id="4,000 empty arrays in a message"
        ),
        pytest.param(
            # A template spells each of them as 1000000000000000.0
            chat(
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"arguments": f"[{','.join(['1e15'] * 900)}]"}}],
                }
            ),
            id="short numbers that are long when rendered",
        ),
        pytest.param(
            chat(
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"arguments": f"[{','.join(['1'] * 4_900)}]"}}],
                }
            ),
            id="numbers that a template puts spaces between",
        ),
        pytest.param(
            chat({"role": "user", "role_": "system", "tools": {"x" * CAP: 1}}),
            id="tools of a message that are no list",
        ),
        pytest.param(
            chat(documents=[{"text": INVISIBLE * 1_001}]), id="what Python prints as ten characters"
        ),
        pytest.param(
            chat(documents=[{"text": '"' + "'" * 5_000}]),
            id="apostrophes that Python prints with a backslash",
        ),
        pytest.param(
            chat({"tool_calls": [{"function": {"arguments": f'{{"a":"{INVISIBLE * 1_001}"}}'}}]}),
            id="the same in the arguments of a tool call",
        ),
        pytest.param(chat(guided_json={"role": "x" * CAP}), id="a role deep in an unknown field"),
    ],
)
def test_structures_do_not_get_through(body: dict[str, Any]) -> None:
    """They carry few characters of text, and render as many."""
    with pytest.raises(ContextLengthExceeded):
        check(BodyKind.CHAT, body)


@pytest.mark.parametrize(
    ("role", "counted"),
    [
        pytest.param("assistant", 10_001, id="the model's, where vLLM prints it"),
        pytest.param("user", 1_001, id="the user's, where it becomes a message"),
    ],
)
def test_what_a_tool_answered_counts_as_it_is_written(role: str, counted: int) -> None:
    """Only in a turn that is not the user's, its invisible characters count as escapes."""
    texts = [{"type": "text", "text": INVISIBLE * 1_000 + "x"}]
    result = {"type": "tool_result", "tool_use_id": "", "content": texts}
    body = {"messages": [{"role": role, "content": [result]}]}
    cost = check(BodyKind.MESSAGES, body, max_prompt_chars=100_000).cost
    assert cost.prompt_chars == counted


@pytest.mark.parametrize("name", ["arguments", "input"])
def test_an_item_that_is_a_call_counts_as_two(name: str) -> None:
    """On the Responses API it becomes a message with a call in it."""
    item = {"type": "function_call", name: ""}
    few = check(BodyKind.RESPONSES, {"input": [item] * (FREE // 2)}).cost.prompt_chars
    more = check(BodyKind.RESPONSES, {"input": [item] * (FREE // 2 + 1)}).cost.prompt_chars
    one = len('{"input": ""}') if name == "input" else 0
    assert (few, more) == (one * FREE // 2, one * (FREE // 2 + 1) + 64)


def test_embeddings_are_capped_for_each_input_and_ten_times_in_total() -> None:
    """Ten full inputs pass, eleven do not."""
    full = "x" * CAP
    assert check(BodyKind.EMBEDDINGS, {"input": [full] * 10}).cost.prompt_chars == 10 * CAP
    with pytest.raises(ContextLengthExceeded, match=r"100,001.*100,000"):
        check(BodyKind.EMBEDDINGS, {"input": [*[full] * 10, "x"]})


@pytest.mark.parametrize(
    ("kind", "name", "limit", "setting"),
    [
        pytest.param(BodyKind.EMBEDDINGS, "input", 2_048, "fixed", id="inputs to embed"),
        pytest.param(BodyKind.RERANK, "documents", 2_048, "fixed", id="documents to rank"),
        pytest.param(BodyKind.COMPLETIONS, "prompt", 8, "PROXY_MAX_CHOICES", id="prompts"),
    ],
)
def test_lists_of_inputs_are_bounded(kind: BodyKind, name: str, limit: int, setting: str) -> None:
    """At the bound they pass, one more is refused; ids are not entries."""
    assert check(kind, {name: ["x"] * limit}).cost.prompt_chars == limit
    with pytest.raises(TooManyInputs, match=setting):
        check(kind, {name: ["x"] * (limit + 1)})


@pytest.mark.parametrize(
    ("kind", "body", "chars"),
    [
        pytest.param(BodyKind.COMPLETIONS, {"prompt": None}, 0, id="no prompt"),
        pytest.param(BodyKind.COMPLETIONS, {"prompt": []}, 0, id="an empty list of prompts"),
        pytest.param(BodyKind.COMPLETIONS, {"prompt": [[]]}, 0, id="an empty list of ids"),
        pytest.param(BodyKind.RERANK, {"query": None}, 0, id="no query"),
        pytest.param(BodyKind.RESPONSES, {"text": 5}, 11, id="a text that is no object"),
        pytest.param(BodyKind.RESPONSES, {"text": {"format": None}}, 0, id="no format"),
    ],
)
def test_what_is_absent_counts_nothing(kind: BodyKind, body: dict[str, Any], chars: int) -> None:
    """The upstream says what it thinks of it."""
    assert check(kind, body).cost.prompt_chars == chars


def test_ids_are_not_entries() -> None:
    """A prompt of 2,000 ids is one prompt."""
    assert check(BodyKind.COMPLETIONS, {"prompt": [1] * 2_000}).cost.sequences == 1


def schema_of(chars: int) -> list[dict[str, str]]:
    """Tools of so many characters of compact JSON: [{"a":"…"}]."""
    return [{"a": "x" * (chars - 10)}]


@pytest.mark.parametrize("name", ["tools", "functions", "response_format", "structured_outputs"])
def test_schemas_have_a_cap_of_their_own(name: str) -> None:
    """64,000 characters pass and 64,001 do not; none of them count as prompt."""
    verdict = check(BodyKind.CHAT, chat(user("hi"), **{name: schema_of(64_000)}))
    assert verdict.cost.schema_chars == 64_000
    assert verdict.cost.prompt_chars == 2
    with pytest.raises(ToolsTooLarge, match=r"64,001.*64,000.*PROXY_MAX_SCHEMA_CHARS"):
        check(BodyKind.CHAT, chat(**{name: schema_of(64_001)}))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(BodyKind.RESPONSES, "text", id="of a response's text"),
        pytest.param(BodyKind.MESSAGES, "output_config", id="of a message's output"),
        pytest.param(BodyKind.COUNT_TOKENS, "output_config", id="of what is only counted"),
    ],
)
def test_schemas_count_together_and_so_does_a_format(kind: BodyKind, name: str) -> None:
    """It is one of them, and what stands beside it is not."""
    body = {"functions": schema_of(32_000), name: {"format": schema_of(32_000)[0], "effort": "low"}}
    cost = check(kind, body).cost
    assert cost.schema_chars == 63_998
    assert cost.prompt_chars == len('{"effort": "low"}')
    body[name] = {"format": {"a": "x" * 32_000}}
    with pytest.raises(ToolsTooLarge):
        check(kind, body)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pytest.param(
            BodyKind.CHAT,
            lambda tool: chat({"role": "developer", "content": "hi", "tools": [tool]}),
            id="in a developer's message",
        ),
        pytest.param(
            BodyKind.MESSAGES,
            lambda tool: {
                "messages": [
                    user("hi"),
                    {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]},
                ]
            },
            id="in a block that adds it",
        ),
    ],
)
def test_tools_in_the_middle_of_a_conversation_are_schemas(
    kind: BodyKind, place: Callable[[object], dict[str, Any]]
) -> None:
    """A template indents them as it does the others: 6,000 ones in brackets became 18 times that."""
    cost = check(kind, place({"a": "x" * 50_000})).cost
    assert (cost.prompt_chars < 20, cost.schema_chars) == (True, 50_010)
    deep: Any = [1] * 6_000
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ToolsTooLarge):
        check(kind, place({"a": deep}))
    with pytest.raises(ToolsTooLarge, match="64 levels"):
        check(kind, place({"a": nested(70)}))


def nested(levels: int) -> list[Any]:
    """Brackets in brackets."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_small_tools_count_what_a_server_adds_to_them() -> None:
    """A custom tool without a description becomes 300 characters in vLLM, 460 of them indented."""
    tool = {"type": "custom", "name": "x"}
    one = check(BodyKind.RESPONSES, {"input": "hi", "tools": [tool]}).cost.schema_chars
    assert 4 * one >= 460
    with pytest.raises(ToolsTooLarge):
        check(BodyKind.RESPONSES, {"input": "hi", "tools": [tool] * 600})
    usual = [{"type": "function", "function": {"name": "f", "description": "x" * 200}}] * 100
    assert check(BodyKind.CHAT, chat(tools=usual)).cost.schema_chars == compact_chars(usual)


def test_a_schema_may_be_64_levels_deep() -> None:
    """65 are refused, whatever the body's own depth limit allows."""

    def deep(levels: int) -> dict[str, Any]:
        schema: Any = "x"
        for _ in range(levels):
            schema = {"a": schema}
        return chat(response_format=schema)

    assert check(BodyKind.CHAT, deep(64)).cost.schema_chars > 0
    with pytest.raises(ToolsTooLarge, match="64 levels"):
        check(BodyKind.CHAT, deep(65))


@pytest.mark.parametrize("name", ["stop", "stop_sequences", "logit_bias", "metadata", "bad_words"])
def test_sampling_parameters_are_bounded_together(name: str) -> None:
    """16,000 characters of compact JSON pass and 16,001 do not."""
    check(BodyKind.CHAT, chat(**{name: schema_of(16_000)}))
    with pytest.raises(ParametersTooLarge, match=r"16,001.*16,000"):
        check(BodyKind.CHAT, chat(**{name: schema_of(16_001)}))
    half = schema_of(8_001)
    with pytest.raises(ParametersTooLarge):
        check(BodyKind.CHAT, chat(**{name: half, "seed": schema_of(8_000)}))


def test_anthropic_clients_find_their_words() -> None:
    """They compact the conversation when a message contains them."""
    with pytest.raises(
        ContextLengthExceeded, match="prompt is too long: 10,001 characters > 10,000"
    ):
        check(BodyKind.MESSAGES, {"messages": [user("x" * (CAP + 1))]})


def test_the_cap_is_the_operators() -> None:
    """Raised and lowered."""
    assert check(BodyKind.CHAT, chat(user("x" * 20_000)), max_prompt_chars=20_000).body
    with pytest.raises(ContextLengthExceeded, match="limit is 5 "):
        check(BodyKind.CHAT, chat(user("x" * 6)), max_prompt_chars=5)


def test_every_refusal_is_a_refusal() -> None:
    """A refusal has a status that no SDK retries."""
    for error in (ContextLengthExceeded, InvalidValue, ParametersTooLarge, ToolsTooLarge):
        assert issubclass(error, Refusal)
        assert error.status == 400


@pytest.mark.parametrize(
    ("value", "levels"),
    [
        pytest.param({}, 1, id="an empty object"),
        pytest.param("a", 0, id="a string"),
        pytest.param([[1, 2, [3]], [], {"a": {}}], 3, id="arrays"),
        pytest.param({"a": {"b": [1, {"c": None}]}, "d": []}, 4, id="objects"),
        pytest.param([[[[[[1] * 100]]]]], 6, id="deep"),
    ],
)
def test_indentation_is_what_a_template_writes(value: object, levels: int) -> None:
    """It is the difference between the compact and the indented form."""
    indented = json.dumps(value, indent=4, ensure_ascii=False)

    assert shape(value)[:2] == (levels, len(indented) - compact_chars(value))


def test_tools_that_indentation_multiplies_count_a_quarter_of_that() -> None:
    """Llama 3's template made 2.4 million characters of 20 KB inside 55 brackets."""
    nested: object = [1] * 10_000
    for _ in range(55):
        nested = [nested]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": nested}}}]

    with pytest.raises(ToolsTooLarge):
        check(BodyKind.CHAT, chat(user("hi"), tools=tools))


@pytest.mark.parametrize(
    ("parameters", "written"),
    [
        pytest.param(
            {"properties": {f"{index:03}": 1 for index in range(1_000)}},
            1_000 * len("\n<parameter>\n<name>000</name>\n</parameter>"),
            id="Qwen3-Coder's template makes a block of each parameter",
        ),
        pytest.param(
            {"description": INVISIBLE * 5_000}, 50_000, id="Python prints an invisible one as ten"
        ),
    ],
)
def test_tools_that_a_template_multiplies_count_a_quarter_of_that(
    parameters: object, written: int
) -> None:
    """Whatever it is that makes more than four times their size of them."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    counted = check(BodyKind.CHAT, chat(user("hi"), tools=tools)).cost.schema_chars
    assert compact_chars(tools) < written / 4 <= counted
    assert counted < 1.1 * written / 4 + 100


def test_tools_as_agents_send_them_count_as_compact_json() -> None:
    """Four times their size is more than indentation makes of real ones."""
    city = {"type": "string", "description": "The city and state, such as Paris, France"}
    units = {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The unit"}
    parameters = {
        "type": "object",
        "properties": {"where": {"type": "array", "items": city}, "units": units},
        "required": ["where"],
    }
    function = {"name": "get_weather", "description": "The weather now", "parameters": parameters}
    tools = [{"type": "function", "function": function}] * 20

    verdict = check(BodyKind.CHAT, chat(user("hi"), tools=tools))

    assert verdict.cost.schema_chars == compact_chars(tools)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(
            BodyKind.CHAT, chat({"role": "tool", "content": "\x01\n"}), id="a tool message"
        ),
        pytest.param(
            BodyKind.CHAT,
            chat({"role": "tool", "content": [{"type": "text", "text": "\x01\n"}]}),
            id="a part of one",
        ),
        pytest.param(
            BodyKind.CHAT, chat({"role": "tool", "content": ["\x01\n"]}), id="a string part of one"
        ),
        pytest.param(
            BodyKind.MESSAGES,
            chat(user([{"type": "tool_result", "content": "\x01\n"}])),
            id="a tool result",
        ),
        pytest.param(
            BodyKind.MESSAGES,
            chat(user([{"type": "tool_result", "content": [{"type": "text", "text": "\x01\n"}]}])),
            id="a part of a tool result",
        ),
        pytest.param(
            BodyKind.RESPONSES,
            {"input": [{"type": "function_call_output", "output": "\x01\n"}]},
            id="a function's output",
        ),
    ],
)
def test_what_a_tool_answered_counts_as_a_json_string(kind: BodyKind, body: dict[str, Any]) -> None:
    """Llama 3's template escapes it: 9,990 control characters became 60,000."""
    assert check(kind, body).cost.prompt_chars == len(r"\u0001\n")


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_other_text_counts_as_it_is(role: str) -> None:
    """No template escapes it."""
    assert check(BodyKind.CHAT, chat({"role": role, "content": '"\x01\n'})).cost.prompt_chars == 3


def test_a_part_with_members_of_its_own_counts_as_json() -> None:
    """A template gets it whole from vLLM, and can only write it as JSON."""
    bare = {"type": "text", "text": "\x01\n"}
    more = {**bare, "x": 1}
    assert check(BodyKind.CHAT, chat(user([bare]))).cost.prompt_chars == 2
    expected = len(r"\u0001\n") + len('{"x": 1}')
    assert check(BodyKind.CHAT, chat(user([more]))).cost.prompt_chars == expected


def test_a_custom_role_may_be_a_tools() -> None:
    """Llama 3's is called ipython."""
    verdict = check(BodyKind.CHAT, chat({"role": "ipython", "content": "\n"}))

    assert verdict.cost.prompt_chars == len("ipython") + 2


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        pytest.param(
            BodyKind.CHAT,
            lambda arguments: {
                "role": "assistant",
                "tool_calls": [{"function": {"arguments": arguments}}],
            },
            id="an object",
        ),
        pytest.param(
            BodyKind.CHAT,
            lambda arguments: {
                "role": "assistant",
                "tool_calls": [{"function": {"arguments": json.dumps(arguments)}}],
            },
            id="a string",
        ),
        pytest.param(
            BodyKind.MESSAGES,
            lambda arguments: {
                "role": "assistant",
                "content": [{"type": "tool_use", "input": arguments}],
            },
            id="a tool_use's input",
        ),
    ],
)
def test_arguments_beyond_the_free_ones_count_their_markup(kind: BodyKind, message: Any) -> None:
    """Qwen3-Coder's template wraps each: 9,534 characters of 980 arguments became 30,273."""

    def chars(members: int) -> int:
        arguments = {f"k{index:02}": 1 for index in range(members)}
        return check(kind, chat(message(arguments))).cost.prompt_chars

    assert chars(FREE) - chars(FREE - 1) == len('"k00": 1, ')
    assert chars(FREE + 1) - chars(FREE) == len('"k00": 1, ') + 32


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(BodyKind.CHAT, {f"k{i}": i for i in range(50)}, id="unknown fields"),
        pytest.param(
            BodyKind.CHAT, chat({f"k{i}": "v" for i in range(50)}), id="members of a message"
        ),
        pytest.param(BodyKind.CHAT, chat(*[{"k": 1}] * 50), id="messages"),
        pytest.param(BodyKind.CHAT, chat(user([1, None, []] * 20)), id="scalars for parts"),
        pytest.param(BodyKind.MESSAGES, chat(user([{"input": 1}] * 50)), id="inputs of tools"),
        pytest.param(BodyKind.CHAT, chat({"tool_calls": [1, 2] * 25}), id="scalars for calls"),
        pytest.param(
            BodyKind.CHAT, chat({"tool_calls": [{"arguments": {}}] * 50}), id="arguments of calls"
        ),
        pytest.param(
            BodyKind.RESPONSES, {"text": {f"k{i}": i for i in range(50)}}, id="members of text"
        ),
    ],
)
def test_many_small_structures_are_encoded_at_once(
    kind: BodyKind, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of the encoder for each held the loop for up to 0.4 s."""
    calls = []

    def counted(value: object) -> str:
        calls.append(value)
        return json.dumps(value, ensure_ascii=False)

    monkeypatch.setattr(lengths, "_RENDERED", counted)
    assert check(kind, body).cost.prompt_chars >= 50
    assert len(calls) < 10


@pytest.mark.parametrize(
    ("body", "counted"),
    [
        pytest.param(chat(*[{}] * 4_000, 1), 32 * 3_937, id="messages"),
        pytest.param(chat(user(["x"] * 4_000)), 32 * 3_937, id="parts"),
        pytest.param(chat({"tool_calls": [{"id": "x"}] * 4_000}), 32 * 3_937, id="tool calls"),
        pytest.param({f"{i:05}": 1 for i in range(12_000)}, 12 * 10_001, id="unknown fields"),
        pytest.param(
            chat({f"{i:05}": 1 for i in range(12_000)}), 12 * 10_001, id="members of a message"
        ),
    ],
)
def test_the_walk_ends_where_the_excess_is_hopeless(body: dict[str, Any], counted: int) -> None:
    """The rest is not looked at: 87,000 messages of a member each held the loop for 0.14 s."""
    with pytest.raises(ContextLengthExceeded, match=f"counts {counted:,} characters"):
        check(BodyKind.CHAT, body)


@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=8))
def test_structures_count_together_what_each_would(values: list[Any]) -> None:
    """The brackets and commas of the common list are taken off again."""
    each = sum(map(lengths.rendered_chars, values))
    assert lengths.rendered_total(values, 1_000_000) == each
    assert min(each, 10) <= lengths.rendered_total(values, 10) <= each


@given(st.recursive(st.none() | st.floats() | st.text(), st.lists))
def test_a_structure_counts_as_json_or_as_python_prints_it(value: object) -> None:
    """Whichever is longer."""
    longest = max(len(json.dumps(value, ensure_ascii=False)), len(repr(value)))
    assert lengths.rendered_chars(value) == longest
