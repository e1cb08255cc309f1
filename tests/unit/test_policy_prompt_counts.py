"""What counts as prompt, and as how much: never less than a template can make of it."""

import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import ContextLengthExceeded
from tests.harness.judging import CAP, FREE, INVISIBLE, chat, check, user


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
