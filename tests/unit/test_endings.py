"""With which event a stream has said everything, and with which it only seems so."""

import pytest

from proxy.endings import is_over
from proxy.errors import Dialect
from proxy.keepalive import Boundary

OPENAI, RESPONSES, ANTHROPIC = Dialect.OPENAI, Dialect.RESPONSES, Dialect.ANTHROPIC

DONE = b"data: [DONE]\n\n"
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
COMPLETED = b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'
# As vLLM has it: of one that comes in several chunks, the end tells.
BIG_END = b'"text":"a"}]},"sequence_number":9,"type":"response.%b"}\n\n'


@pytest.mark.parametrize(
    ("dialect", "tail"),
    [
        pytest.param(OPENAI, DONE, id="[DONE]"),
        pytest.param(OPENAI, b"data:[DONE]\n\n", id="[DONE], without a space"),
        pytest.param(OPENAI, b"data: [DONE]\r\n\r\n", id="[DONE], with CRLF"),
        pytest.param(OPENAI, b"data: [DONE]\r\r", id="[DONE], with CR"),
        pytest.param(OPENAI, b'"}]}\n\n' + DONE, id="[DONE], behind the end of an event"),
        pytest.param(RESPONSES, COMPLETED, id="completed"),
        pytest.param(RESPONSES, COMPLETED.replace(b"completed", b"failed"), id="failed"),
        pytest.param(RESPONSES, COMPLETED.replace(b"completed", b"incomplete"), id="incomplete"),
        pytest.param(RESPONSES, COMPLETED[26:], id="completed, without its name"),
        pytest.param(RESPONSES, b"event:response.completed\ndata: {}\n\n", id="its name alone"),
        pytest.param(RESPONSES, BIG_END % b"completed", id="the end of one that was cut"),
        pytest.param(
            RESPONSES,
            b'{}, "type": "response.failed", "sequence_number": 9}\n\n',
            id="the end of another, with spaces",
        ),
        pytest.param(RESPONSES, COMPLETED + DONE, id="[DONE] behind it"),
        pytest.param(ANTHROPIC, STOP, id="message_stop"),
        pytest.param(ANTHROPIC, STOP[20:], id="message_stop, without its name"),
        pytest.param(ANTHROPIC, STOP + DONE, id="message_stop, and vLLM's [DONE]"),
    ],
)
def test_the_end(dialect: Dialect, tail: bytes) -> None:
    """Nothing has to come behind it."""
    assert is_over(dialect, tail)


@pytest.mark.parametrize(
    ("dialect", "tail"),
    [
        pytest.param(OPENAI, b"", id="nothing"),
        pytest.param(OPENAI, b'data: {"choices":[]}\n\n', id="usage, and no [DONE] yet"),
        pytest.param(OPENAI, DONE + b"data: {}\n\n", id="an event behind [DONE]"),
        pytest.param(OPENAI, b'data: {"a":"data: [DONE]"}\n\n', id="a model's words"),
        pytest.param(OPENAI, b'data: [DONE]"}]}\n\n', id="a model's words, cut before them"),
        pytest.param(OPENAI, b": data: [DONE]\n\n", id="a comment"),
        pytest.param(OPENAI, COMPLETED, id="the end of another dialect"),
        pytest.param(RESPONSES, STOP, id="the end of a third"),
        pytest.param(ANTHROPIC, COMPLETED, id="and the other way round"),
        pytest.param(
            RESPONSES,
            b'event: response.created\ndata: {"type":"response.created"}\n\n',
            id="created",
        ),
        pytest.param(
            RESPONSES,
            b'data: {"delta":"\\"type\\":\\"response.completed\\"}","type":"x"}\n\n',
            id="words about it",
        ),
        pytest.param(RESPONSES, BIG_END % b"in_progress", id="the end of another long one"),
        pytest.param(
            RESPONSES,
            b'{"metadata":{"type":"response.completed"},"type":"response.created"}\n\n',
            id="a member of a member",
        ),
        pytest.param(ANTHROPIC, b'data: {"type":"message_delta"}\n\n', id="the event before"),
    ],
)
def test_no_end(dialect: Dialect, tail: bytes) -> None:
    """Who leaves here leaves something."""
    assert not is_over(dialect, tail)


@pytest.mark.parametrize(
    ("dialect", "last"),
    [
        pytest.param(OPENAI, DONE, id="[DONE]"),
        pytest.param(ANTHROPIC, STOP, id="message_stop"),
        pytest.param(RESPONSES, b'data: {"x":"' + BIG_END % b"completed", id="completed"),
    ],
)
@pytest.mark.parametrize("before", [b"data: {}\n\n", b"data: " + b"x" * 300 + b"\n\n"])
def test_however_it_is_cut(dialect: Dialect, last: bytes, before: bytes) -> None:
    """What is kept of a stream tells at its end, and at no byte before."""
    stream = before + last
    for size in range(1, len(stream) + 1):
        kept = Boundary()
        for at in range(0, len(stream), size):
            kept.note(stream[at : at + size])
            over = kept.between_events and is_over(dialect, kept.tail)
            assert over == (at + size >= len(stream))
