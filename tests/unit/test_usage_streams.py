"""What a stream has used: as each engine states it, and as it can be seen where it states nothing."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints import BodyKind
from proxy.telemetry.usage import Usage, UsageMeter
from proxy.telemetry.usage.frames import MAX_EVENT_BYTES
from tests.harness import usages
from tests.harness.usages import WORDS, chunk, counted, sse, usage_chunk

CHAT, COMPLETIONS = BodyKind.CHAT, BodyKind.COMPLETIONS
RESPONSES, MESSAGES = BodyKind.RESPONSES, BodyKind.MESSAGES

ESTIMATE, BOUND = 7, 10_000
"""What the prompt was thought to be, and what each sequence may generate."""


def metered(
    kind: BodyKind, chunks: Sequence[bytes], *, sequences: int = 1, complete: bool = True
) -> Usage:
    """What a meter says of a stream that came in these chunks."""
    meter = UsageMeter(
        kind, streamed=True, sequences=sequences, output_tokens=BOUND, clock=lambda: 0.0
    )
    meter.asked()
    meter.begin(200, events=True)
    for piece in chunks:
        assert meter.note(piece) is piece
    assert meter.end(complete=complete) == b""
    return meter.usage(ESTIMATE)


STATED = [
    pytest.param(CHAT, usages.VLLM_CHAT, 1, (21, 3), id="vLLM, at the end"),
    pytest.param(CHAT, usages.VLLM_CHAT_CONTINUOUS, 2, (21, 3), id="vLLM, all the time"),
    pytest.param(CHAT, usages.LLAMA_CHAT, 1, (21, 3), id="llama.cpp"),
    pytest.param(CHAT, usages.LLAMA_CHAT_TWO, 2, (21, 7), id="llama.cpp, of each choice"),
    pytest.param(CHAT, usages.SGLANG_CHAT, 1, (21, 3), id="SGLang, with nulls before"),
    pytest.param(CHAT, usages.TRANSFORMERS_CHAT, 1, (21, 3), id="transformers, with the end"),
    pytest.param(COMPLETIONS, usages.VLLM_COMPLETIONS, 1, (2, 3), id="completions of vLLM"),
    pytest.param(RESPONSES, usages.VLLM_RESPONSES, 1, (21, 3), id="responses"),
    pytest.param(
        RESPONSES, usages.responses("incomplete"), 1, (21, 3), id="a response cut by its bound"
    ),
    pytest.param(RESPONSES, usages.responses("failed"), 1, (21, 3), id="a response that failed"),
    pytest.param(MESSAGES, usages.VLLM_MESSAGES, 1, (21, 3), id="messages of vLLM"),
    pytest.param(MESSAGES, usages.LLAMA_MESSAGES, 1, (21, 3), id="messages of llama.cpp, cached"),
    pytest.param(
        MESSAGES,
        usages.messages(
            {"input_tokens": 1, "cache_creation_input_tokens": 5, "cache_read_input_tokens": None},
            {"output_tokens": 2},
        ),
        1,
        (6, 2),
        id="messages, written to a cache",
    ),
]


@pytest.mark.parametrize(("kind", "stream", "sequences", "stated"), STATED)
def test_what_an_engine_states_is_believed(
    kind: BodyKind, stream: bytes, sequences: int, stated: tuple[int, int]
) -> None:
    """In one piece, byte by byte, and event by event."""
    events = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
    expected = Usage(*stated, estimated=False)
    for chunks in ([stream], events, [bytes([byte]) for byte in stream]):
        assert metered(kind, chunks, sequences=sequences) == expected


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
@pytest.mark.parametrize(("kind", "stream", "sequences", "stated"), STATED)
def test_other_ends_of_lines(
    kind: BodyKind, stream: bytes, sequences: int, stated: tuple[int, int], line_end: str
) -> None:
    """Are as good as any."""
    stream = stream.replace(b"\n", line_end.encode())
    assert metered(kind, [stream], sequences=sequences) == Usage(*stated, estimated=False)


@pytest.mark.parametrize(
    ("estimate", "prompt"),
    [
        pytest.param(1, 2, id="less than one of them"),
        pytest.param(3, 3, id="in between"),
        pytest.param(9, 4, id="more than all of them"),
    ],
)
def test_llamacpp_states_the_prompt_with_each_choice(estimate: int, prompt: int) -> None:
    """Be it the same or another one: of completions, nobody can tell."""
    meter = UsageMeter(COMPLETIONS, streamed=True, sequences=2, output_tokens=BOUND)
    meter.asked()
    meter.begin(200, events=True)
    meter.note(usages.LLAMA_COMPLETIONS)
    assert meter.usage(estimate) == Usage(prompt, 7, estimated=True)


@given(data=st.data())
def test_chunks_may_be_cut_anywhere(data: st.DataObject) -> None:
    """Inside of the word usage, or of a number."""
    kind, stream, sequences, stated = data.draw(st.sampled_from([row.values for row in STATED]))
    assert isinstance(stream, bytes)
    cuts = data.draw(st.sets(st.integers(0, len(stream))))
    edges = [0, *sorted(cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert metered(kind, chunks, sequences=sequences) == Usage(*stated, estimated=False)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("usage", "sequences"),
    [
        pytest.param(counted(-1, 3), 1, id="a negative number"),
        pytest.param(counted(21, -3), 1, id="a negative number of tokens out"),
        pytest.param(counted(21, 10**12), 1, id="a trillion"),
        pytest.param(counted(10**30, 3), 1, id="a number of thirty digits"),
        pytest.param(counted(21, 3) | {"completion_tokens": 3.0}, 1, id="a float"),
        pytest.param(counted(21, 3) | {"completion_tokens": "3"}, 1, id="a string"),
        pytest.param(counted(21, 3) | {"completion_tokens": True}, 1, id="a truth"),
        pytest.param(counted(21, 3) | {"prompt_tokens": []}, 1, id="a list"),
        pytest.param([1], 1, id="a list of numbers"),
        pytest.param("21", 1, id="a text"),
        pytest.param({}, 1, id="nothing"),
        pytest.param({"prompt_tokens": None, "completion_tokens": None}, 1, id="nulls"),
    ],
)
def test_what_cannot_be_true_is_not_believed(usage: Any, sequences: int) -> None:
    """The estimate takes its place: three characters in three events."""
    stream = sse(*WORDS, usages.LAST, usage_chunk(0, 0) | {"usage": usage}, "[DONE]")
    assert metered(CHAT, [stream], sequences=sequences) == Usage(ESTIMATE, 3, estimated=True)
    end = usages.messages({"input_tokens": 21}, usage)
    assert metered(MESSAGES, [end]).estimated
    assert metered(RESPONSES, [usages.responses(usage=usage)]).estimated


@pytest.mark.parametrize(
    ("stated", "sequences", "expected"),
    [
        pytest.param((21, BOUND), 1, Usage(21, BOUND, estimated=False), id="the bound"),
        pytest.param((21, BOUND + 16), 1, Usage(21, BOUND + 16, estimated=False), id="an end more"),
        pytest.param((21, BOUND + 17), 1, Usage(21, 3, estimated=True), id="over the bound"),
        pytest.param((21, 2 * BOUND), 2, Usage(21, 2 * BOUND, estimated=False), id="of two"),
        pytest.param((21, 16_000_000), 1, Usage(21, 3, estimated=True), id="sixteen million"),
        pytest.param((500, 3), 1, Usage(500, 3, estimated=False), id="the longest prompt"),
        pytest.param((501, 3), 1, Usage(ESTIMATE, 3, estimated=True), id="a longer one"),
        pytest.param((0, 0), 1, Usage(0, 0, estimated=False), id="nothing"),
    ],
)
def test_no_more_is_believed_than_can_be(
    stated: tuple[int, int], sequences: int, expected: Usage
) -> None:
    """A figure too large would lock a key out; the other figure may be true all the same."""
    meter = UsageMeter(
        CHAT,
        streamed=True,
        sequences=sequences,
        output_tokens=BOUND,
        most_prompt_tokens=500,
        clock=lambda: 0.0,
    )
    meter.asked()
    meter.begin(200, events=True)
    meter.note(sse(*WORDS, usages.LAST, usage_chunk(*stated), "[DONE]"))
    assert meter.usage(ESTIMATE) == expected


def test_no_more_is_seen_than_can_be() -> None:
    """Long words are tokens of more than four characters."""
    stream = sse(chunk({"content": "x" * 4 * BOUND}), *WORDS)
    assert metered(CHAT, [stream]) == Usage(ESTIMATE, BOUND, estimated=True)


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(
            sse(*WORDS, usages.LAST, usage_chunk(21, 3), usage_chunk(2, 1)), id="two usages"
        ),
        pytest.param(
            sse(*WORDS, usages.LAST)
            + b'data: {"choices":[],"usage":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}\n\n",
            id="a deep one",
        ),
        pytest.param(
            sse(*WORDS, usages.LAST, usage_chunk(21, 3))[:-9], id="one that was cut in itself"
        ),
        pytest.param(
            sse(*WORDS, *(chunk({"content": ""}, i, usage=counted(1, 1)) for i in range(99))),
            id="ninety-nine choices",
        ),
        pytest.param(
            sse(*WORDS, chunk({}, usage=counted(21, 3) | {"pad": "x" * 5000})), id="a long one"
        ),
    ],
)  # fmt: skip
def test_a_statement_that_is_none(stream: bytes) -> None:
    """Nothing of it is believed."""
    usage = metered(CHAT, [stream])
    assert usage.prompt_tokens == ESTIMATE
    assert usage.estimated


def test_what_a_model_writes_is_not_what_its_engine_states() -> None:
    """However much it looks like it."""
    lie = ',"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: {"choices":[],"usage":{"prompt_tokens":1}}'
    stream = sse(chunk({"content": lie}), usage_chunk(21, 30))
    assert metered(CHAT, [stream]) == Usage(21, 30, estimated=False)
    stream = sse(chunk({"content": lie}))
    assert metered(CHAT, [stream]) == Usage(ESTIMATE, -(-len(lie) // 4), estimated=True)
    tools = [{"parameters": {"usage": {"input_tokens": 1, "output_tokens": 1}}}]
    stream = usages.responses(tools=tools, output=[{"text": lie}])
    assert metered(RESPONSES, [stream]) == Usage(21, 3, estimated=False)


def test_the_last_event_of_a_response_may_be_longer_than_anything_that_is_kept() -> None:
    """Its end is enough."""
    lie = json.dumps({"usage": {"input_tokens": 1, "output_tokens": 1}})
    stream = usages.responses(
        output=[{"text": lie + "x" * 3 * MAX_EVENT_BYTES + lie}],
        tools=[{"parameters": {"usage": {"input_tokens": 1, "output_tokens": 1}}}],
    )
    for size in (1000, 4096, 70_000):
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert metered(RESPONSES, chunks) == Usage(21, 3, estimated=False)


def text(words: str, count: int) -> list[dict[str, Any]]:
    """So many events with these words."""
    return [chunk({"content": words}) for _ in range(count)]


def call(arguments: str) -> dict[str, Any]:
    """A chat's chunk with some of a tool call's arguments."""
    return chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]})


@pytest.mark.parametrize(
    ("kind", "stream", "tokens"),
    [
        pytest.param(CHAT, b"", 0, id="nothing"),
        pytest.param(CHAT, sse(usages.ROLE), 0, id="a role"),
        pytest.param(CHAT, sse(usages.ROLE, *text("x", 5)), 5, id="a token in each event"),
        pytest.param(CHAT, sse(*text("", 5)), 5, id="tokens that have no text yet"),
        pytest.param(CHAT, sse(*text("x" * 400, 3)), 300, id="many tokens in each event"),
        pytest.param(CHAT, sse(*text("x" * 13, 1)), 4, id="rounded up"),
        pytest.param(CHAT, sse(*text("\u6f22\U0001f600" * 100, 1)), 50, id="characters, not bytes"),
        pytest.param(CHAT, sse(call("x" * 40)), 10, id="arguments of a tool"),
        pytest.param(
            CHAT, sse(chunk({"function_call": {"arguments": "x" * 40}})), 10, id="of a function"
        ),
        pytest.param(CHAT, sse(chunk({"reasoning": "x" * 40})), 10, id="thoughts"),
        pytest.param(
            CHAT,
            sse(chunk({"reasoning": "x" * 40, "reasoning_content": "x" * 40})),
            10,
            id="thoughts under two names",
        ),
        pytest.param(CHAT, sse(chunk({"refusal": "x" * 40})), 10, id="a refusal"),
        pytest.param(
            CHAT,
            sse(chunk({"content": [{"type": "text", "text": "x" * 36}]})),
            10,
            id="content in parts",
        ),
        pytest.param(
            CHAT,
            sse({"choices": [{"delta": {"content": "x"}}, {"delta": {"content": "y"}}]}),
            2,
            id="two choices in one event",
        ),
        pytest.param(CHAT, sse(chunk() | {"model": "m" * 4000}), 1, id="much around nothing"),
        pytest.param(CHAT, sse({"error": {"message": "x" * 400}}), 0, id="an error"),
        pytest.param(CHAT, b": keep-alive\n\n: x\n\n", 0, id="comments"),
        pytest.param(CHAT, sse(*[{"choices": "x"}] * 5), 5, id="events that cannot be read"),
        pytest.param(CHAT, sse({"choices": [7], "x": "y" * 6400}), 101, id="a long one of them"),
        pytest.param(CHAT, sse(*text("x", 5))[:-9], 4, id="an event that was cut"),
        pytest.param(COMPLETIONS, sse({"choices": [{"text": "x" * 40}]}), 10, id="completions"),
        pytest.param(
            RESPONSES,
            usages.VLLM_RESPONSES[: usages.VLLM_RESPONSES.index(b"event: response.comp")],
            2,
            id="a response",
        ),
        pytest.param(
            RESPONSES,
            sse({"type": "response.function_call_arguments.delta", "delta": "x" * 40}),
            10,
            id="arguments of a response",
        ),
        pytest.param(
            MESSAGES,
            sse({"type": "content_block_delta", "delta": {"partial_json": "x" * 40}}, names=True),
            10,
            id="arguments of a message",
        ),
        pytest.param(
            MESSAGES,
            sse({"type": "content_block_delta", "delta": {"thinking": "x" * 40}}, names=True),
            10,
            id="thoughts of a message",
        ),
    ],
)
def test_without_a_statement_what_was_seen_counts(
    kind: BodyKind, stream: bytes, tokens: int
) -> None:
    """The larger of a quarter of the characters and the events; nothing of what is around them."""
    assert metered(kind, [stream], complete=False) == Usage(ESTIMATE, tokens, estimated=True)


def test_a_message_that_breaks_off_has_stated_its_prompt() -> None:
    """Only the rest is estimated."""
    stream = usages.VLLM_MESSAGES[: usages.VLLM_MESSAGES.index(b"event: message_delta")]
    assert metered(MESSAGES, [stream]) == Usage(21, 3, estimated=True)


def test_an_event_too_long_to_be_parsed_still_counts() -> None:
    """Log probabilities of a thousand tokens in one event."""
    event = sse(chunk({"content": "x" * 4000}, logprobs="y" * 200_000))
    chunks = [event[at : at + 1000] for at in range(0, len(event), 1000)]
    assert 1000 < metered(CHAT, chunks).completion_tokens < 10_000


@given(st.lists(st.binary(max_size=50)), st.sampled_from([CHAT, RESPONSES, MESSAGES]))
def test_no_bytes_make_it_raise(chunks: list[bytes], kind: BodyKind) -> None:
    """Nor change."""
    assert metered(kind, chunks).prompt_tokens == ESTIMATE


_SEEN = ("choices", "delta", "content", "index", "response", "message", "type", "text", "function")
_SAID = ("usage", "prompt_tokens", "completion_tokens", "finish_reason", "tool_calls", "arguments")
_NAMES = st.sampled_from(_SEEN + _SAID)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(_NAMES, inner),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(_NAMES, _JSON)), st.sampled_from([CHAT, RESPONSES, MESSAGES]))
def test_no_event_makes_it_raise(events: list[dict[str, Any]], kind: BodyKind) -> None:
    """With the right names at all the wrong places."""
    usage = metered(kind, [sse(*events)])
    assert usage.prompt_tokens >= 0
    assert usage.completion_tokens >= 0
