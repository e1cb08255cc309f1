"""How long a structure is, and that the look at it is short."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints import BodyKind
from proxy.errors import ContextLengthExceeded
from proxy.policy import lengths
from proxy.policy.lengths import compact_chars, shape
from tests.harness.judging import chat, check, user


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
