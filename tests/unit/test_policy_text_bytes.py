"""How many bytes the counted text is taken for: never fewer than it has."""

import json

import pytest

from proxy.endpoints import BodyKind
from proxy.policy import Limits, Policy, Terms

PER_ITEM = 32
PER_INPUT = 16


def text_bytes(content: str, *, ascii_only: bool) -> int:
    """What a chat with this one message comes to, without the 32 of the message itself."""
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    raw = json.dumps(body, ensure_ascii=ascii_only).encode()
    verdict = Policy(Limits()).check(BodyKind.CHAT, raw, Terms())
    assert verdict.cost.items == 1
    return verdict.cost.text_bytes - PER_ITEM


@pytest.mark.parametrize("ascii_only", [False, True], ids=["as UTF-8", "escaped"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param("x" * 100, id="ASCII"),
        pytest.param("é" * 100, id="two bytes each"),
        pytest.param("漢" * 100, id="three bytes each"),
        pytest.param("😀" * 100, id="four bytes each, and two escapes"),
        pytest.param("x漢" * 50, id="mixed"),
    ],
)
def test_bytes_are_not_underestimated(content: str, ascii_only: bool) -> None:
    """And not by much overestimated: an escape stands for three bytes at most."""
    real = len(content.encode())
    taken = text_bytes(content, ascii_only=ascii_only)
    assert real <= taken <= real + 2 * len(content) * ascii_only


def test_tools_count_too() -> None:
    """They reach the prompt."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "m", "max_tokens": 5, "messages": [], "tools": [tool]}
    cost = Policy(Limits()).check(BodyKind.CHAT, json.dumps(body).encode(), Terms()).cost
    assert cost.text_bytes == cost.prompt_chars + cost.schema_chars + PER_ITEM * cost.items
    assert cost.schema_chars >= len(json.dumps(tool, separators=(",", ":")))


@pytest.mark.parametrize(
    ("kind", "body", "inputs", "expected"),
    [
        pytest.param(BodyKind.EMBEDDINGS, {"input": "xy"}, 1, PER_INPUT + 2, id="a text"),
        pytest.param(
            BodyKind.EMBEDDINGS, {"input": [""] * 2048}, 2048, 2048 * PER_INPUT, id="empty texts"
        ),
        pytest.param(BodyKind.EMBEDDINGS, {"input": [[]] * 9}, 9, 9 * PER_INPUT, id="no ids"),
        pytest.param(
            BodyKind.COMPLETIONS, {"prompt": ["", "x"]}, 2, 2 * PER_INPUT + 1, id="prompts"
        ),
        pytest.param(
            BodyKind.RERANK,
            {"query": "x" * 50, "documents": [""] * 100},
            101,
            101 * PER_INPUT + 100 * 50,
            id="a query is read with each document",
        ),
        pytest.param(
            BodyKind.RERANK,
            {"query": "x" * 50, "documents": ["yy"]},
            2,
            2 * PER_INPUT + 50 + 2,
            id="with one",
        ),
        pytest.param(
            BodyKind.RERANK,
            {"query": "x" * 50, "documents": []},
            1,
            PER_INPUT + 50,
            id="with none",
        ),
        pytest.param(
            BodyKind.SCORE,
            {"text_1": ["y", "z"], "text_2": "x" * 50},
            3,
            3 * PER_INPUT + 2 + 2 * 50,
            id="as the other one of a score",
        ),
        pytest.param(
            BodyKind.SCORE,
            {"data_1": ["yy", "zz"], "data_2": ["a", "b"]},
            4,
            4 * PER_INPUT + 6,
            id="pairs",
        ),
        pytest.param(
            BodyKind.RERANK,
            {"query": "x" * 50, "text_1": "", "documents": ["a", "b"]},
            4,
            4 * PER_INPUT + 50 + 2 + 50,
            id="beside a name that the engine overlooks",
        ),
        pytest.param(
            BodyKind.RERANK,
            {"query": "漢", "documents": ["a", "b"]},
            3,
            3 * PER_INPUT + 3 + 2 + 3,
            id="of wide characters",
        ),
    ],
)
def test_each_input_is_something(
    kind: BodyKind, body: dict[str, object], inputs: int, expected: int
) -> None:
    """Engines put tokens of their own around each, and read what is compared again and again."""
    cost = Policy(Limits()).check(kind, json.dumps(body).encode(), Terms()).cost
    assert (cost.inputs, cost.text_bytes) == (inputs, expected)
