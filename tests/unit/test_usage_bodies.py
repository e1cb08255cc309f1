"""What an answer in one piece has used, and one of which nothing or only a part has come."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints import BodyKind
from proxy.telemetry.usage import Usage, UsageMeter
from proxy.telemetry.usage.ends import first_object, last_objects
from proxy.telemetry.usage.whole import MAX_KEPT_BYTES, TAIL_BYTES, WholeBody
from tests.harness.usages import RESPONSE_USAGE, TIMINGS, counted

CHAT, MESSAGES, RESPONSES = BodyKind.CHAT, BodyKind.MESSAGES, BodyKind.RESPONSES

ESTIMATE, BOUND = 7, 100
"""What the prompt was thought to be, and what the output may be."""

MOST = 100_000
"""What the output may be where a body is long."""


def meter_of(kind: BodyKind, *, sequences: int = 1, streamed: bool = False) -> UsageMeter:
    """A meter whose upstream has been asked."""
    meter = UsageMeter(
        kind, streamed=streamed, sequences=sequences, output_tokens=BOUND // max(1, sequences)
    )
    meter.asked()
    return meter


def metered(
    kind: BodyKind,
    body: bytes,
    *,
    size: int = 10**9,
    sequences: int = 1,
    complete: bool = True,
    status: int = 200,
) -> Usage:
    """What a meter says of a body that came in chunks of this size."""
    meter = meter_of(kind, sequences=sequences)
    meter.begin(status, events=False)
    for at in range(0, len(body), size):
        piece = body[at : at + size]
        assert meter.note(piece) is piece
    assert meter.end(complete=complete) == b""
    return meter.usage(ESTIMATE)


def dump(body: Any) -> bytes:
    """As most engines write JSON."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    """A whole chat with these choices."""
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text, "reasoning": None}}
        for index, text in enumerate(texts)
    ]
    return {"id": "c", "choices": choices, **more}


LIE = '"usage":{"prompt_tokens":1,"completion_tokens":1,"input_tokens":1,"output_tokens":1}'
LIAR = json.loads("{" + LIE + "}")
USED = {"input_tokens": 21, "output_tokens": 3}

STATED = [
    pytest.param(CHAT, chat("x][", usage=counted(21, 3), metrics=None), (21, 3), id="a chat"),
    pytest.param(
        BodyKind.COMPLETIONS,
        {"choices": [{"text": "h|j"}], "usage": counted(2, 3)},
        (2, 3),
        id="a completion",
    ),
    pytest.param(
        RESPONSES, {"output": [], "usage": RESPONSE_USAGE, "user": None}, (21, 3), id="a response"
    ),
    pytest.param(MESSAGES, {"content": [], "usage": USED}, (21, 3), id="a message"),
    pytest.param(
        MESSAGES,
        {"content": [], "usage": {**USED, "cache_read_input_tokens": 20}},
        (41, 3),
        id="a message of a prompt that was in the cache",
    ),
    pytest.param(CHAT, chat(LIE, usage=counted(21, 3)), (21, 3), id="a model that writes of usage"),
    pytest.param(
        MESSAGES,
        {"content": [{"type": "tool_use", "input": LIAR}], "usage": USED},
        (21, 3),
        id="a model that calls a tool with usage",
    ),
    pytest.param(
        RESPONSES,
        {"tools": [{"parameters": LIAR}], "usage": RESPONSE_USAGE},
        (21, 3),
        id="a client whose tool has a usage",
    ),
]


@pytest.mark.parametrize("filling", ["", "x", '\\"' * MAX_KEPT_BYTES, "x" * 3 * MAX_KEPT_BYTES])
@pytest.mark.parametrize(("kind", "body", "stated"), STATED)
def test_what_an_engine_states_is_believed(
    kind: BodyKind, body: dict[str, Any], stated: tuple[int, int], filling: str
) -> None:
    """However long the body, and however it was cut."""
    raw = dump({"filling": filling, **body})
    for size in (1, 7, 1000, 65_536, 10**9):
        if len(raw) // size < 5000:
            assert metered(kind, raw, size=size) == Usage(*stated, estimated=False)


@pytest.mark.parametrize(
    ("kind", "usage", "prompt"),
    [
        pytest.param(BodyKind.EMBEDDINGS, {"prompt_tokens": 9, "total_tokens": 9}, 9, id="embed"),
        pytest.param(BodyKind.EMBEDDINGS, counted(9, 0), 9, id="embeddings of vLLM"),
        pytest.param(BodyKind.RERANK, {"total_tokens": 9}, 9, id="a total alone"),
        pytest.param(BodyKind.SCORE, counted(9, 0), 9, id="scores"),
    ],
)
@pytest.mark.parametrize("numbers", [3, 30_000])
@pytest.mark.parametrize("size", [1000, 10**9])
def test_what_generates_nothing(
    kind: BodyKind, usage: Any, prompt: int, numbers: int, size: int
) -> None:
    """Has a prompt only, and needs no figure of the output; llama.cpp states it in front."""
    data = {"data": [{"embedding": [0.5] * numbers}]}
    for body in ({**data, "usage": usage}, {"object": "list", "usage": usage, **data}):
        raw = dump(body)
        assert metered(kind, raw, sequences=0, size=size) == Usage(prompt, 0, estimated=False)


def test_a_list_of_ranks_without_usage_is_estimated() -> None:
    """SGLang's is no object."""
    assert metered(BodyKind.RERANK, b'[{"score":1}]', sequences=0) == Usage(7, 0, estimated=True)


@pytest.mark.parametrize(
    "usage",
    [
        counted(-1, 3),
        counted(21, 10**12),
        counted(10**12, 3),
        counted(21, 3) | {"completion_tokens": 3.5},
        counted(21, 3) | {"completion_tokens": "3"},
        {"prompt_tokens": 21},
        {},
        [],
        None,
        "x",
    ],
)
@pytest.mark.parametrize("filling", ["", "x" * MAX_KEPT_BYTES])
def test_what_cannot_be_true_is_not_believed(usage: Any, filling: str) -> None:
    """What was generated is counted; of what was not kept, the bound."""
    usage_seen = metered(CHAT, dump({"filling": filling, **chat("x" * 40, usage=usage)}))
    assert usage_seen == Usage(ESTIMATE, BOUND if filling else 10, estimated=True)


@pytest.mark.parametrize(
    ("kind", "body", "tokens"),
    [
        pytest.param(CHAT, chat("x" * 40), 10, id="a chat"),
        pytest.param(CHAT, chat("x" * 40, "y" * 40), 20, id="two choices"),
        pytest.param(
            CHAT,
            {"choices": [{"message": {"reasoning": "x" * 40, "reasoning_content": "x" * 40}}]},
            10,
            id="thoughts under two names",
        ),
        pytest.param(
            CHAT,
            {"choices": [{"message": {"tool_calls": [{"function": {"arguments": "x" * 40}}]}}]},
            10,
            id="arguments",
        ),
        pytest.param(BodyKind.COMPLETIONS, {"choices": [{"text": "x" * 40}]}, 10, id="completion"),
        pytest.param(
            RESPONSES,
            {"output": [{"content": [{"type": "output_text", "text": "x" * 40}]}], "tools": ["y"]},
            10,
            id="a response",
        ),
        pytest.param(
            MESSAGES,
            {"content": [{"type": "tool_use", "input": {"a": "x" * 32}}]},
            10,
            id="a tool's input, as JSON",
        ),
        pytest.param(CHAT, {"choices": "x"}, 0, id="choices that are none"),
    ],
)
def test_without_a_statement_the_text_counts(
    kind: BodyKind, body: dict[str, Any], tokens: int
) -> None:
    """A quarter of its characters."""
    assert metered(kind, dump(body)) == Usage(ESTIMATE, tokens, estimated=True)


def test_something_that_is_no_json_counts_as_text() -> None:
    """An engine that is none."""
    assert metered(CHAT, b"hello world") == Usage(ESTIMATE, 3, estimated=True)
    assert metered(CHAT, b"") == Usage(ESTIMATE, 0, estimated=True)


@pytest.mark.parametrize(
    ("texts", "filling", "completion"),
    [
        pytest.param(["xxx", "yyyyyy"], "", 9, id="by their lengths"),
        pytest.param(["", "yyyyyy"], "", 6, id="where the first is empty"),
        pytest.param(["xxx", "yyyyyy"], "z" * MAX_KEPT_BYTES, 6, id="where they were not kept"),
    ],
)
def test_llamacpp_states_the_first_of_several_choices(
    texts: list[str], filling: str, completion: int
) -> None:
    """So the others are estimated from it."""
    body = dump({"filling": filling, **chat(*texts, usage=counted(21, 3), **TIMINGS)})
    assert metered(CHAT, body, sequences=2) == Usage(21, completion, estimated=True)


def test_one_choice_of_llamacpp_is_exact() -> None:
    """Its timings mean nothing then."""
    body = dump(chat("xxx", usage=counted(21, 3), **TIMINGS))
    assert metered(CHAT, body) == Usage(21, 3, estimated=False)


@pytest.mark.parametrize(
    ("stated", "sequences", "completion"),
    [
        pytest.param(BOUND, 1, BOUND, id="the bound"),
        pytest.param(BOUND + 16, 1, BOUND + 16, id="an end more"),
        pytest.param(BOUND + 17, 1, 10, id="over the bound"),
        pytest.param(BOUND + 32, 2, BOUND + 32, id="two ends more"),
        pytest.param(16_000_000, 1, 10, id="sixteen million"),
    ],
)
def test_no_more_output_is_believed_than_was_allowed(
    stated: int, sequences: int, completion: int
) -> None:
    """Beyond, what was generated is counted; the prompt that is stated may be true."""
    body = dump(chat("x" * 40, usage=counted(21, stated)))
    estimated = stated != completion
    assert metered(CHAT, body, sequences=sequences) == Usage(21, completion, estimated=estimated)


def test_no_estimate_of_several_choices_is_over_the_bound() -> None:
    """Where the first was short of characters."""
    body = dump(chat("x", "y" * 400, usage=counted(21, 10), **TIMINGS))
    assert metered(CHAT, body, sequences=2) == Usage(21, BOUND, estimated=True)


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        pytest.param(TAIL_BYTES - 200, Usage(21, 3, estimated=False), id="so much that it is seen"),
        pytest.param(TAIL_BYTES, Usage(ESTIMATE, BOUND, estimated=True), id="too much"),
    ],
)
@pytest.mark.parametrize("front", [MAX_KEPT_BYTES, MAX_KEPT_BYTES + 12_345, 200_000])
def test_what_is_found_in_a_long_body_does_not_depend_on_its_cuts(
    behind: int, expected: Usage, front: int
) -> None:
    """Nor on its length: usage is found if it is near enough to the end."""
    body = dump(chat("x" * front, usage=counted(21, 3), z="z" * behind))
    for size in (1000, 4096, 9999, 16_384, 65_536, 10**9):
        assert metered(CHAT, body, size=size) == expected


@pytest.mark.parametrize("filling", ["", "x" * MAX_KEPT_BYTES])
def test_a_body_that_breaks_off_is_charged_in_full(filling: str) -> None:
    """Its engine had finished; and where it ends says nothing about what it was."""
    body = dump({"content": [{"text": filling, "input": {"z": LIAR}}], "usage": USED})
    cut = body[: body.index(b"}}") + 2]
    assert metered(MESSAGES, cut, complete=False) == Usage(ESTIMATE, BOUND, estimated=True)


def test_a_whole_body_whose_client_has_left_is_known() -> None:
    """Its JSON is complete, whoever did not see it."""
    body = dump(chat("x", usage=counted(21, 3)))
    assert metered(CHAT, body, complete=False) == Usage(21, 3, estimated=False)


@pytest.mark.parametrize(
    ("streamed", "waited_for", "completion"),
    [
        pytest.param(False, False, BOUND, id="left: of one piece, all that it may have become"),
        pytest.param(
            True, False, 0, id="left: of a stream, whose first token would have been seen"
        ),
        pytest.param(False, True, 0, id="ended by us: of one piece, none of which came"),
        pytest.param(True, True, 0, id="ended by us: of a stream"),
    ],
)
def test_an_answer_that_never_came(streamed: bool, waited_for: bool, completion: int) -> None:
    """Its engine was at work on it, nobody knows how long; a prompt was read in any case."""
    meter = meter_of(CHAT, sequences=4, streamed=streamed)
    usage = meter.usage(ESTIMATE, waited_for=waited_for)
    assert usage == Usage(ESTIMATE, completion, estimated=True)


@pytest.mark.parametrize(
    ("sizes", "completion"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([1], 1, id="a byte"),
        pytest.param([8], 2, id="two tokens' worth"),
        pytest.param([9], 3, id="a byte more"),
        pytest.param([MAX_KEPT_BYTES], MAX_KEPT_BYTES // 4, id="as much as is kept"),
        pytest.param([MAX_KEPT_BYTES + 4], MAX_KEPT_BYTES // 4 + 1, id="more, at once"),
        pytest.param([MAX_KEPT_BYTES] * 3, MAX_KEPT_BYTES // 4 * 3, id="more, in several chunks"),
        pytest.param([1 << 20] * 2, MOST, id="more than it may come to"),
    ],
)
def test_a_body_that_its_client_waited_for(sizes: list[int], completion: int) -> None:
    """What came of it counts, by its bytes: a part of a JSON has no characters."""
    meter = UsageMeter(CHAT, streamed=False, output_tokens=MOST)
    meter.asked()
    meter.begin(200, events=False)
    for size in sizes:
        meter.note(b"{" * size)
    meter.end(complete=False)
    assert meter.usage(ESTIMATE, waited_for=True) == Usage(ESTIMATE, completion, estimated=True)
    assert meter.usage(ESTIMATE) == Usage(ESTIMATE, MOST, estimated=True)


NOTHING = Usage(0, 0, estimated=False)


@pytest.mark.parametrize("status", [300, 400, 404, 429, 500, 503])
@pytest.mark.parametrize("events", [True, False])
def test_a_refusal_costs_nothing(status: int, *, events: bool) -> None:
    """Whatever it says of usage."""
    meter = meter_of(CHAT)
    meter.begin(status, events=events)
    meter.note(dump(chat("x", usage=counted(21, 3))))
    meter.end(complete=True)
    assert meter.usage(ESTIMATE) == NOTHING


def test_who_was_not_asked_costs_nothing() -> None:
    """Nor who could not be."""
    assert UsageMeter(CHAT, streamed=False, output_tokens=9).usage(ESTIMATE) == NOTHING
    meter = meter_of(CHAT)
    meter.refused()
    assert meter.usage(ESTIMATE) == NOTHING


def test_counting_tokens_costs_nothing() -> None:
    """Nothing is generated, and nothing kept."""
    assert metered(BodyKind.COUNT_TOKENS, b'{"input_tokens":21}') == NOTHING


@given(st.lists(st.binary(max_size=50)), st.booleans())
def test_no_bytes_make_it_raise(chunks: list[bytes], complete: bool) -> None:
    """Nor change."""
    body = b"".join(chunks)
    assert metered(CHAT, body, size=7, complete=complete).prompt_tokens == ESTIMATE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(['"', "\\", LIE]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("usage"), inner),
    max_leaves=20,
)


@given(
    st.dictionaries(st.text().filter(lambda name: name != "usage"), JSON),
    st.integers(0, 40),
    st.booleans(),
)
def test_the_end_of_a_document_is_read_as_the_whole_is(
    members: dict[str, Any],
    front: int,
    ascii_only: bool,
) -> None:
    """Any document, whose front is missing up to any place before its usage."""
    document = json.dumps(
        {"x": 'y"\\', **members, "usage": USED, "z": [{}]}, ensure_ascii=ascii_only
    )
    raw = document.encode()
    last = raw.rindex(b'"usage"')
    found = last_objects(raw[min(front, last) :], 1)
    assert json.loads(found[b"usage"]) == USED


def test_the_front_of_a_document_ends_the_search() -> None:
    """And what is no end of one is nothing."""
    assert last_objects(b'{"usage":{}}{"a":{"b":1},"c":[]}', 1) == {b"a": b'{"b":1}', b"c": b"[]"}
    assert last_objects(b'{"usage":{}', 1) == {}
    assert last_objects(b"", 1) == {}
    assert last_objects(b'"usage":{}', 1) == {}
    assert last_objects(b'{"a":{"usage":{}},"b":1}\n\n', 2) == {b"usage": b"{}"}


@pytest.mark.parametrize(
    ("document", "found"),
    [
        pytest.param(b'{"usage":{"a":1},"b":[', b'{"a":1}', id="the first"),
        pytest.param(b'{"a":"usage","x":{},"usage" : [1] ,', b"[1]", id="a later one"),
        pytest.param(b'{"a":{"usage":{}},"b":', None, id="only deep down"),
        pytest.param(b'["usage",{}]', None, id="a list"),
        pytest.param(b'{"a":"\\"usage\\":{}","b":{}', None, id="in a text"),
        pytest.param(b'{"usage":1,"b":{}', None, id="a number"),
        pytest.param(b'{"usage":{"a":', None, id="cut"),
        pytest.param(b'{"a":1}{"usage":{}}', None, id="behind the document"),
        pytest.param(b'"usage":{}', None, id="no object"),
        pytest.param(b"", None, id="nothing"),
    ],
)
def test_the_front_of_a_document(document: bytes, found: bytes | None) -> None:
    """Says what it has."""
    assert first_object(document, b"usage") == found


@given(st.lists(st.integers(0, 3 * MAX_KEPT_BYTES), max_size=6))
def test_no_more_is_kept_than_the_bound(sizes: list[int]) -> None:
    """Of sixty-four megabytes as of one."""
    body = WholeBody()
    for size in sizes:
        body.note(b"x" * size)
        assert len(body._kept) <= MAX_KEPT_BYTES
