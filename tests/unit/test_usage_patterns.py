"""The short way of a stream's event, which is not parsed, and the long one say the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.telemetry.usage.hearing import Mark
from proxy.telemetry.usage.hearing import choices as dialect
from proxy.telemetry.usage.hearing.choices import Choices
from proxy.telemetry.usage.said import Figures, Said


def event(content: Any, /, **more: Any) -> bytes:
    """As vLLM writes one: compact, and text as it is."""
    delta = {"content": content, **more.pop("delta", {})}
    body = {"id": "c", "choices": [{"index": 0, "delta": delta, **more.pop("choice", {})}], **more}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def completion(text: Any) -> bytes:
    """As engines write one of the older endpoint."""
    choice = {"index": 0, "text": text, "finish_reason": None}
    return json.dumps({"object": "text_completion", "choices": [choice]}).encode()


texts = st.one_of(
    st.sampled_from(
        ["", "a", "word ", "é", "😀", "\x7f", "\xa0", "\u2028", '"', "\\", "\n", "\\u0041"]
    ),
    st.text(max_size=4),
)
mores: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "delta": st.dictionaries(
                st.sampled_from(["role", "reasoning", "refusal", "tool_calls", "x", "content2"]),
                st.sampled_from(
                    [None, "assistant", "content", [], [{"function": {"arguments": "x"}}]]
                ),
            ),
            "choice": st.dictionaries(
                st.sampled_from(["index", "finish_reason", "text", "logprobs", "content"]),
                st.sampled_from([None, "", "stop", 0, 1, {"content": [1]}]),
            ),
            "usage": st.sampled_from([None, {"prompt_tokens": 3, "completion_tokens": 2}]),
            "choices": st.sampled_from([[], None, [{"text": "a"}], [{"delta": {}}, {"delta": {}}]]),
            "content": texts,
        },
    ),
)
plain = st.builds(event, texts)
thought = st.builds(
    lambda text, names: event(*names[1:], delta=dict.fromkeys(names[0], text)),
    texts,
    st.sampled_from(
        [
            (["reasoning"], None),
            (["reasoning"], ""),
            (["reasoning_content"], None),
            (["reasoning", "reasoning_content"], None),
        ]
    ),
)
completed = st.builds(completion, texts)
odd = st.builds(lambda text, more: event(text, **more), texts, mores)
raw = st.sampled_from(
    [
        b'{"choices":[{"delta":{"content": "a" }}]}',
        b'{"choices":[{"delta":{"content" : "b" }}]}',
        b'{"choices":[{"delta":{"content":"a","content":"bc"}}]}',
        b'{"choices":[{"delta":{"x\\"content":"a"}}]}',
        b'{"choices":[{"delta":{"\\u0063ontent":"a","x":"content"}}]}',
        b'{"choices":[{"delta":{"content":"a"},"delta":{}}]}',
        b'{"id":"c","choices":[{"index":0,"delta":{"content":"\xff"}}]}',
        b'{"id":"c","choices":[{"index":0,"delta":{"content":"a\x01"}}]}',
        b'{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}}',
        b'{"id":"c","choices":[{"index":0,"delta":{"content":"}}]}',
    ]
)
streams = st.lists(st.one_of(plain, plain, odd, raw, thought, completed), max_size=12)

Told = tuple[list[Mark | str], int, int, bool, Figures]


def told(payloads: list[bytes], *, patterns: bool, monkeypatch: pytest.MonkeyPatch) -> Told:
    """All that can be seen of a stream."""
    with monkeypatch.context() as patch:
        if not patterns:
            patch.setattr(dialect, "_MOST_IN_VAIN", 0)
        said = Said(2, lambda: 1.0)
        choices = Choices(said)
        marks: list[Mark | str] = []
        for payload in payloads:
            try:
                marks.append(choices.hear(payload))
            except ValueError:
                marks.append("unreadable")
    return marks, choices.characters, choices.events, choices.begun, said.figures()


@given(payloads=streams)
def test_both_ways_say_the_same(payloads: list[bytes]) -> None:
    """Whatever comes, in whatever order."""
    monkeypatch = pytest.MonkeyPatch()
    # Each a few times, so that there is a pattern to follow.
    for order in (payloads, payloads * 3, [p for p in payloads for _ in range(3)]):
        by_pattern = told(order, patterns=True, monkeypatch=monkeypatch)
        assert by_pattern == told(order, patterns=False, monkeypatch=monkeypatch)


def reads(payloads: list[bytes], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of them were parsed."""
    count = 0
    decode = dialect._chunk

    def counting(payload: bytes) -> Any:
        nonlocal count
        count += 1
        return decode(payload)

    monkeypatch.setattr(dialect, "_chunk", counting)
    choices = Choices(Said(1, lambda: 1.0))
    for payload in payloads:
        choices.hear(payload)
    return count


@pytest.mark.parametrize(
    ("payloads", "parsed"),
    [
        pytest.param([event("a")] * 9, 1, id="the same again and again"),
        pytest.param([event(text) for text in ("a", "bcd", "é", "😀 ", " ")], 1, id="plain text"),
        pytest.param(
            [event("a"), event("\n"), event('"'), event("b")], 3, id="an escape is parsed"
        ),
        pytest.param([event("a"), event(""), event("b")], 2, id="nothing is parsed"),
        pytest.param(
            [event("a"), event("\x7f"), event("b")], 2, id="what cannot be printed is parsed"
        ),
        pytest.param(
            [event("a", id="1"), event("a", id="2"), event("b", id="2")], 2, id="a later pattern"
        ),
        pytest.param(
            [event("a", id=str(number)) for number in range(9)] + [event("a", id="8")] * 9,
            18,
            id="where each differs it is given up",
        ),
        pytest.param(
            [event("a", id=str(number // 3)) for number in range(30)],
            10,
            id="where some are alike it is not",
        ),
        pytest.param([event("a", x="y" * 4_000)] * 3, 1, id="one of 4 KB is kept"),
        pytest.param([event("a", x="y" * 4_096)] * 3, 3, id="a longer one is not"),
        pytest.param([event("a", usage={"prompt_tokens": 1})] * 3, 3, id="figures are parsed"),
        pytest.param([event("a", choice={"finish_reason": "stop"})] * 3, 3, id="ends are parsed"),
        pytest.param([event("a", x="content")] * 3, 3, id="in doubt it is parsed"),
        pytest.param([event("a", x="\\")] * 3, 3, id="an escape elsewhere leaves doubt"),
        pytest.param([event("a", delta={"reasoning": "b"})] * 3, 3, id="two texts are parsed"),
        pytest.param([event(None, delta={"reasoning": "b"})] * 3, 1, id="a thought alone is not"),
        pytest.param(
            [event(None, delta={"reasoning_content": "b"})] * 3, 1, id="by its old name either"
        ),
        pytest.param(
            [event(None, delta={"reasoning": "b", "reasoning_content": "b"})] * 3,
            3,
            id="by both it is",
        ),
        pytest.param([completion("a"), completion("b")], 1, id="a completion is not"),
        pytest.param([completion(["a"]), completion(["a"])], 2, id="but where it is a list"),
    ],
)
def test_what_is_parsed(
    payloads: list[bytes], parsed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of those that are alike; any in which there is more than plain text."""
    assert reads(payloads, monkeypatch) == parsed
