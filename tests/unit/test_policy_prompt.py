"""The prompt cap: never less than what an upstream can render from a body."""

from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import (
    ContextLengthExceeded,
    InvalidValue,
    ParametersTooLarge,
    Refusal,
    ToolsTooLarge,
)
from tests.harness.judging import CAP, FREE, chat, check, user


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
