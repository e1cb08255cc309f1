"""Which bodies are read, and how much of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.buffers import BufferBudget
from proxy.context import RequestContext
from proxy.errors import (
    BodyTooLarge,
    ClientDisconnected,
    Overloaded,
    ProxyError,
    RateLimitExceeded,
    RawHeaders,
    RequestTimeout,
    UnsupportedMediaType,
)
from proxy.intake import Intake, check_content
from proxy.lifeline import Deadline, Lifelines

LONG = Deadline(3600.0, lambda: RequestTimeout("slow"))
JSON = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"application/json", id="plain"),
        pytest.param(b"Application/JSON", id="any case"),
        pytest.param(b"application/json; charset=utf-8", id="with the only charset"),
        pytest.param(b'application/json;charset="UTF-8"', id="quoted, without a space"),
        pytest.param(
            b"application/json ; charset = utf8 ", id="with spaces, and a common misspelling"
        ),
    ],
)
def test_json_is_read(value: bytes) -> None:
    """JSON in UTF-8 is, however it is spelt."""
    check_content([(b"content-type", value)], 10)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([], id="no type"),
        pytest.param([(b"content-type", b"")], id="an empty type"),
        pytest.param([(b"content-type", b"text/plain")], id="text"),
        pytest.param([(b"content-type", b"application/x-www-form-urlencoded")], id="curl -d"),
        pytest.param([(b"content-type", b"multipart/form-data; boundary=x")], id="a form"),
        pytest.param([(b"content-type", b"application/json; charset=utf-16")], id="UTF-16"),
        pytest.param([(b"content-type", b"application/json; charset=latin-1")], id="Latin-1"),
        pytest.param([(b"content-type", b"application/jsonl")], id="a longer word"),
        pytest.param([(b"content-type", b"application/json, text/plain")], id="two in one"),
        pytest.param([JSON, JSON], id="two fields"),
        pytest.param([JSON, (b"content-encoding", b"gzip")], id="gzip"),
        pytest.param([JSON, (b"content-encoding", b"zstd")], id="zstd, as Codex sends"),
        pytest.param([JSON, (b"content-encoding", b"")], id="an empty encoding"),
        pytest.param(
            [JSON, (b"content-encoding", b"identity, br")], id="one hidden behind another"
        ),
        pytest.param(
            [JSON, (b"content-encoding", b"identity"), (b"content-encoding", b"br")],
            id="one hidden in a second field",
        ),
    ],
)
def test_anything_else_is_not(fields: RawHeaders) -> None:
    """And nothing of its body is read."""
    with pytest.raises(UnsupportedMediaType):
        check_content(fields, 10)


def test_the_encoding_is_named() -> None:
    """Whoever did not know that its client compresses learns it; what is shown is short and plain."""
    with pytest.raises(UnsupportedMediaType, match="'zstd'"):
        check_content([JSON, (b"content-encoding", b"zstd")], 10)
    with pytest.raises(UnsupportedMediaType) as refused:
        check_content([JSON, (b"content-encoding", b"\xff" * 500)], 10)
    assert len(refused.value.message) < 150


def test_identity_is_no_encoding() -> None:
    """A client may say that it did nothing."""
    check_content([JSON, (b"content-encoding", b"Identity")], 10)


def test_the_announced_length_is_believed_when_it_is_too_much() -> None:
    """The cap passes, one more does not, and the message has both numbers and the setting."""
    check_content([JSON, (b"content-length", b"1000")], 1000)
    with pytest.raises(BodyTooLarge, match=r"1,000 bytes \(PROXY_MAX_BODY_BYTES\).*1,001"):
        check_content([JSON, (b"content-length", b"1001")], 1000)


def receiving(*messages: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """An ASGI receive with these messages."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


def piece(body: bytes, more: bool = True) -> dict[str, Any]:
    """A piece of a body."""
    return {"type": "http.request", "body": body, "more_body": more}


def context() -> RequestContext:
    """Of a request with a JSON body."""
    return RequestContext(
        request_id="r", method="POST", client="127.0.0.1", headers=[JSON], started=0.0
    )


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([piece(b"{}", more=False)], b"{}", id="in one piece"),
        pytest.param([piece(b"{"), piece(b"}", more=False)], b"{}", id="in two"),
        pytest.param(
            [piece(b"1234567890"), piece(b"", more=False)], b"1234567890", id="at the cap"
        ),
        pytest.param([piece(b"", more=False)], b"", id="nothing"),
        pytest.param([{"type": "http.request"}], b"", id="a server that leaves out the defaults"),
    ],
)
async def test_a_body_is_read_whole(messages: list[dict[str, Any]], expected: bytes) -> None:
    """Whatever its pieces, and its size is known and paid for."""
    known, budget = context(), BufferBudget(100)
    with Lifelines().hold(LONG) as lifeline, budget.lease("a") as lease:
        read = await Intake(10, LONG).read(known, receiving(*messages), lifeline, lease)
        assert read == expected
        assert known.bytes_in == budget.leased_bytes == len(expected)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        pytest.param([piece(b"x" * 11)], BodyTooLarge, id="too long in one piece"),
        pytest.param([piece(b"x" * 10), piece(b"x")], BodyTooLarge, id="too long by its last byte"),
        pytest.param([piece(b"x" * 8)], Overloaded, id="more than there is room for"),
        pytest.param([piece(b"x"), {"type": "http.disconnect"}], ClientDisconnected, id="cut off"),
    ],
)
async def test_a_body_that_is_not_read(
    messages: list[dict[str, Any]], error: type[ProxyError]
) -> None:
    """Reading ends with the piece that is too much."""
    room = 7 if error is Overloaded else 100
    budget = BufferBudget(room)
    with pytest.raises(error), Lifelines().hold(LONG) as lifeline, budget.lease("a") as lease:
        await Intake(10, LONG).read(context(), receiving(*messages), lifeline, lease)
    assert budget.leased_bytes == 0


async def test_a_body_that_does_not_come() -> None:
    """Has a deadline for the whole of it, which no dripping puts off."""
    late = Deadline(0.03, lambda: RequestTimeout("slow"))

    async def drip() -> dict[str, Any]:
        await asyncio.sleep(0)
        return piece(b"")

    with (
        pytest.raises(RequestTimeout),
        Lifelines().hold(LONG) as lifeline,
        BufferBudget(100).lease("a") as lease,
    ):
        await Intake(10, late).read(context(), drip, lifeline, lease)


async def test_one_body_at_a_time_where_one_is_allowed() -> None:
    """It is being received until it is whole or its request has ended, and no second one meanwhile."""
    budget = BufferBudget(100)
    intake = Intake(10, LONG)
    with Lifelines().hold(LONG) as lifeline, budget.lease("a", 1) as lease:

        async def half() -> dict[str, Any]:
            with pytest.raises(RateLimitExceeded), budget.lease("a", 1) as other:
                await intake.read(context(), receiving(piece(b"{}", more=False)), lifeline, other)
            return piece(b"{}", more=False)

        await intake.read(context(), half, lifeline, lease)
        with budget.lease("a", 1) as other:
            await intake.read(context(), receiving(piece(b"{}", more=False)), lifeline, other)


@given(
    fields=st.lists(
        st.tuples(
            st.sampled_from([b"content-type", b"content-encoding", b"content-length", b"accept"]),
            st.sampled_from(
                [
                    *(b"application/json", b"application/JSON", b"text/json", b"", b"*/*"),
                    *(b"identity", b"br", b"0", b"10", b"11", b"011", b"1e9", b"-1", b"\xb2"),
                ]
            ),
        ),
        max_size=4,
    )
)
def test_the_usual_head_is_looked_at_as_any_other(fields: list[tuple[bytes, bytes]]) -> None:
    """Where a field stands twice there is no short way, and the same is said."""
    shut = [*fields, (b"x", b"1"), (b"x", b"2")]
    said: list[object] = []
    for head in (fields, shut, [JSON, *fields], [JSON, *shut]):
        try:
            check_content(head, 10)
            said.append(None)
        except ProxyError as exc:
            said.append((type(exc), str(exc)))
    assert said[0] == said[1]
    assert said[2] == said[3]
