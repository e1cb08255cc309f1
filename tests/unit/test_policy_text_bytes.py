"""How many bytes the counted text is taken for: never fewer than it has."""

import json

import pytest

from proxy.endpoints import BodyKind
from proxy.policy import Limits, Policy, Terms

PER_ITEM = 32


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
