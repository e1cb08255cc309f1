"""Taking out the event that the proxy has asked for: every other byte arrives, however it was cut."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints import BodyKind
from proxy.telemetry.usage import Usage, UsageMeter
from proxy.telemetry.usage.frames import MAX_EVENT_BYTES
from proxy.telemetry.usage.taking import MAX_HELD_BYTES
from tests.harness import usages
from tests.harness.usages import WORDS, chunk, counted, event, sse, usage_chunk


def taking(sequences: int = 8) -> UsageMeter:
    """A meter of a stream whose usage is not the client's."""
    meter = UsageMeter(BodyKind.CHAT, streamed=True, take_out=True, sequences=sequences)
    meter.asked()
    meter.begin(200, events=True)
    return meter


def passed(chunks: list[bytes]) -> bytes:
    """What the client gets of a stream that comes in these."""
    meter = taking()
    return b"".join(map(meter.note, chunks)) + meter.end(complete=True)


def cut(stream: bytes, cuts: set[int]) -> list[bytes]:
    """The stream in pieces."""
    edges = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("stream", "client"),
    [
        pytest.param(usages.VLLM_CHAT, usages.VLLM_CHAT_UNASKED, id="vLLM"),
        pytest.param(usages.LLAMA_CHAT, usages.LLAMA_CHAT_UNASKED, id="llama.cpp"),
        pytest.param(usages.TRANSFORMERS_CHAT, usages.TRANSFORMERS_CHAT, id="transformers"),
        pytest.param(
            usages.SGLANG_CHAT,
            usages.SGLANG_CHAT.replace(event(usage_chunk(21, 3)), b""),
            id="SGLang",
        ),
        pytest.param(
            usages.VLLM_COMPLETIONS,
            usages.VLLM_COMPLETIONS.replace(b"".join(
                usages.VLLM_COMPLETIONS.partition(b'data: {"object":"text_completion","choices":[]')[1:]
            ), b"data: [DONE]\n\n"),
            id="completions of vLLM",
        ),
        pytest.param(usages.LLAMA_COMPLETIONS, usages.LLAMA_COMPLETIONS, id="of llama.cpp"),
        pytest.param(
            usages.VLLM_CHAT_CONTINUOUS, usages.VLLM_CHAT_CONTINUOUS,
            id="an engine that states it unasked",
        ),
        pytest.param(
            sse(*WORDS) + event(chunk(finish_reason="stop")) + b": x\n\n" + event(usage_chunk(1, 2)),
            sse(*WORDS) + event(chunk(finish_reason="stop")) + b": x\n\n",
            id="a comment before it",
        ),
        pytest.param(
            sse(usages.LAST, usage_chunk(1, 2, system_fingerprint=None)), sse(usages.LAST),
            id="nothing taken along",
        ),
        pytest.param(
            sse(usages.LAST | usages.PRINT, usage_chunk(1, 2, **usages.PRINT)),
            sse(usages.LAST | usages.PRINT),
            id="what is already there",
        ),
        pytest.param(
            b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n',
            b"data: [DONE]\n\n",
            id="two lines of data",
        ),
        pytest.param(
            b'data:{"choices": [ ], "usage" : {"prompt_tokens":1}}\n\ndata:[DONE]\n\n',
            b"data:[DONE]\n\n",
            id="no space, and much space",
        ),
        pytest.param(
            b'id: 7\nretry: 5\ndata: {"usage":{},"choices":[]}\n\nid: 8\ndata: {}\n\n',
            b"id: 8\ndata: {}\n\n",
            id="other lines with it",
        ),
        pytest.param(
            sse("[DONE]") + event(usage_chunk(1, 2))[:-2], sse("[DONE]"), id="the end not terminated"
        ),
        pytest.param(
            sse({"choices": [], "usage": None}, {"usage": counted(1, 2)}, {"choices": []}, {}),
            sse({"choices": [], "usage": None}, {"usage": counted(1, 2)}, {"choices": []}, {}),
            id="events that look like it",
        ),
        pytest.param(
            sse(chunk({"content": event(usage_chunk(1, 2)).decode()})),
            sse(chunk({"content": event(usage_chunk(1, 2)).decode()})),
            id="a model that writes it",
        ),
        pytest.param(b"data: half", b"data: half", id="an event that never ends"),
        pytest.param(b"\xef\xbb\xbfdata: x\n\n", b"\xef\xbb\xbfdata: x\n\n", id="a byte order mark"),
        pytest.param(b"\n\n\n\n", b"\n\n\n\n", id="empty lines"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_the_client_sees_what_it_would_have_seen(
    stream: bytes, client: bytes, line_end: bytes
) -> None:
    """In one piece, by event and by byte."""
    stream, client = stream.replace(b"\n", line_end), client.replace(b"\n", line_end)
    assert passed([stream]) == client
    assert passed([bytes([byte]) for byte in stream]) == client
    end = 2 * line_end
    assert passed([event + end for event in stream.removesuffix(end).split(end)]) in (
        client,
        client + end,
    )


def test_ends_of_lines_may_change_within_a_chunk() -> None:
    """And what they end is found all the same."""
    word, done = event(WORDS[0]).replace(b"\n", b"\r\n"), b"data: [DONE]\n\n"
    assert passed([word + event(usage_chunk(1, 2)) + word + done]) == word + word + done


def test_what_cannot_be_restored_passes_as_it_is() -> None:
    """A name that is not UTF-8."""
    odd = event(usages.LAST).replace(b'"model"', b'"mod\xff"')
    assert passed([odd, event(usage_chunk(1, 2, **usages.PRINT))]) == odd


LINES = st.sampled_from([b"\n", b"\r\n", b"\r"])
FORMS = st.sampled_from([b"data: ", b"data:"])
TEXT = st.text() | st.sampled_from(['"usage":{"prompt_tokens":1}', '{"choices":[]', "\n\n", "\r"])


@st.composite
def events(draw: st.DrawFn, line_end: bytes) -> tuple[bytes, bool]:
    """One event, and whether it is ours."""
    ours = draw(st.booleans())
    match draw(st.sampled_from(["chunk", "chunk", "comment", "done", "junk"])):
        case _ if ours:
            body = usage_chunk(draw(st.integers(0, 99)), 1)
        case "chunk":
            body = chunk({"content": draw(TEXT)}, finish_reason=draw(st.sampled_from([None, "a"])))
        case "comment":
            return b": keep-alive" + 2 * line_end, False
        case "done":
            return b"data: [DONE]" + 2 * line_end, False
        case _:
            junk = draw(st.binary(max_size=20)).replace(b"\n", b"").replace(b"\r", b"")
            return draw(FORMS) + junk + 2 * line_end, False
    # An indented document has a line of data for each of its own.
    text = json.dumps(body, indent=draw(st.sampled_from([None, 1]))).encode()
    form = draw(FORMS)
    return line_end.join(form + line for line in text.split(b"\n")) + 2 * line_end, ours


@given(data=st.data())
def test_any_stream_however_it_is_cut(data: st.DataObject) -> None:
    """Is what it was, without the events of usage."""
    line_end = data.draw(LINES)
    drawn = data.draw(st.lists(events(line_end), max_size=8))
    stream = b"".join(event for event, _ in drawn)
    cuts = data.draw(st.sets(st.integers(0, len(stream))))
    client = b"".join(event for event, ours in drawn if not ours)
    assert passed(cut(stream, cuts)) == client


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\r", b"\n", b"\r\n", b"data: {}"])))
def test_any_bytes_arrive(chunks: list[bytes]) -> None:
    """What is no event of usage is not ours to touch."""
    assert passed(chunks) == b"".join(chunks)


def test_nothing_is_held_back_that_could_be_passed_on() -> None:
    """Each event goes with its last byte, but for the end of a choice: that goes with the next."""
    meter = taking()
    word, last, done = event(WORDS[0]), event(usages.LAST), b"data: [DONE]\n\n"
    assert meter.note(word) is word
    assert meter.note(word[:50]) == b""
    assert meter.note(word[50:] + word[:9]) == word
    assert meter.note(word[9:-1]) == b""
    assert meter.note(word[-1:]) == word
    assert meter.note(last) == b""
    assert meter.note(done) == last + done
    assert meter.note(last) == b""
    assert meter.note(event(usage_chunk(1, 2))) == last
    assert meter.note(done) == done


@pytest.mark.parametrize("reason", [None, "", False, 0])
def test_what_is_no_end_is_not_held_back(reason: object) -> None:
    """Some engines have an empty reason on every event, and all of them would come one late."""
    meter = taking()
    word = event(chunk({"content": "x"}, finish_reason=reason))
    assert meter.note(word) is word
    assert meter.note(event(usage_chunk(1, 2))) == b""


def test_an_end_that_nothing_follows_is_passed_on_when_the_stream_ends() -> None:
    """Also where it breaks off."""
    for complete in (True, False):
        meter = taking()
        assert meter.note(event(usages.LAST) + b"data: ha") == b""
        assert meter.end(complete=complete) == event(usages.LAST) + b"data: ha"
        assert meter.end(complete=complete) == b""


@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_an_event_too_long_to_be_usage_passes_in_pieces(size: int) -> None:
    """And what comes behind it is looked at again; no more is kept of it than its bound."""
    long = event(chunk({"content": "x" * 3 * MAX_EVENT_BYTES}))
    stream = long + event(usage_chunk(21, 3)) + b"data: [DONE]\n\n"
    meter, client = taking(), b""
    for at in range(0, len(stream), size):
        client += meter.note(stream[at : at + size])
        if at + size < len(long):
            assert at + size - len(client) <= MAX_EVENT_BYTES
    assert client + meter.end(complete=True) == long + b"data: [DONE]\n\n"
    assert meter.usage(0) == Usage(21, 3, estimated=False)


def test_an_end_too_long_to_be_held_is_not() -> None:
    """It goes without its fingerprint."""
    last = event(chunk({"content": "x" * MAX_HELD_BYTES}, finish_reason="stop"))
    meter = taking()
    assert meter.note(last) is last
    assert meter.note(event(usage_chunk(1, 2, **usages.PRINT))) == b""


@pytest.mark.parametrize(
    ("status", "events"),
    [
        pytest.param(400, True, id="an error"),
        pytest.param(400, False, id="an error in one piece"),
        pytest.param(200, False, id="an answer in one piece"),
    ],
)
def test_only_streams_are_touched(status: int, *, events: bool) -> None:
    """Whatever the engine makes of what it was asked."""
    meter = UsageMeter(BodyKind.CHAT, streamed=True, take_out=True)
    meter.asked()
    meter.begin(status, events=events)
    assert not meter.takes_out
    body = event(usage_chunk(1, 2))
    assert meter.note(body) is body
    assert meter.end(complete=True) == b""


def test_what_was_taken_out_was_heard() -> None:
    """It is what it was asked for."""
    meter = taking()
    meter.note(usages.VLLM_CHAT)
    assert meter.usage(7) == Usage(21, 3, estimated=False)
