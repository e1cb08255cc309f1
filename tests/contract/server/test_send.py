"""What an application may not send: nobody else's header, nobody else's length, nothing out of turn."""

import re

import pytest

from tests.harness.client import request_bytes
from tests.harness.served import Message, Receive, Scope, Send, Serve

REQUEST = request_bytes("GET", "/")
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
BODY = {"type": "http.response.body", "body": b"ok"}


class Says:
    """An application that sends these messages, whatever they are."""

    def __init__(self, *messages: Message) -> None:
        self.messages = messages
        self.raised = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            for message in self.messages:
                await send(message)
        except RuntimeError as exc:
            self.raised = str(exc)
            raise


def with_field(name: bytes, value: bytes) -> Message:
    """A head with one more field."""
    return {**HEAD, "headers": [(name, value), (b"content-length", b"2")]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(b"x-a", b"1\r\nx-injected: 2", id="a field in a value"),
        pytest.param(b"x-a", b"1\r\n", id="a line's end at the end of a value"),
        pytest.param(b"x-a", b"1\r\n\r\ninjected", id="a body in a value"),
        pytest.param(b"x-a", b"1\nx-injected: 2", id="LF alone"),
        pytest.param(b"x-a", b"1\rx-injected: 2", id="CR alone"),
        pytest.param(b"x-a", b"\0", id="NUL"),
        pytest.param(b"x-a", b"\x7f", id="DEL"),
        pytest.param(b"x-injected: 1\r\nx-a", b"1", id="a field in a name"),
        pytest.param(b"x-injected: 1", b"1", id="a colon in a name"),
        pytest.param(b"x injected", b"1", id="a space in a name"),
        pytest.param(b"x-injected\t", b"1", id="a tab in a name"),
        pytest.param("x-é".encode(), b"1", id="no ASCII in a name"),
    ],
)
async def test_a_field_is_one_line(serve: Serve, name: bytes, value: bytes) -> None:
    """A head with anything else is not sent; a 500 is, in its place."""
    app = Says(with_field(name, value), BODY)
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(REQUEST)
        response = await client.read_response()
    assert response.status == 500
    assert response.complete
    assert not [key for key, _ in response.headers if b"injected" in key]
    assert re.match("Invalid HTTP header (name|value)", app.raised)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(b"X-A", b"a\tb c", id="tab and space in a value"),
        pytest.param(b"x-a", b"", id="an empty value"),
        pytest.param(b"x-a", "é".encode("latin-1"), id="latin-1 in a value"),
        pytest.param(b"x-!#$%&'*+.^_`|~9", b'(),/:;<=>?@[\\]{}"', id="all that a token may have"),
    ],
)
async def test_a_field_that_is_one_line_is_sent(serve: Serve, name: bytes, value: bytes) -> None:
    """With its name in lowercase, as uvicorn does."""
    served = await serve(Says(with_field(name, value), BODY))
    async with await served.connect() as client:
        await client.send(REQUEST)
        response = await client.read_response()
    assert (response.status, response.header(name.lower())) == (200, value)


@pytest.mark.parametrize(
    ("messages", "raised"),
    [
        pytest.param([BODY], "Expected 'http.response.start'", id="a body before the head"),
        pytest.param([HEAD, HEAD], "Expected 'http.response.body'", id="two heads"),
        pytest.param([HEAD, BODY, BODY], "after the response", id="a body after the end"),
        pytest.param(
            [HEAD, {**BODY, "body": b"long"}], "longer than Content-Length", id="too long"
        ),
        pytest.param([HEAD, {**BODY, "body": b"x"}], "shorter than Content-Length", id="too short"),
        pytest.param(
            [with_field(b"content-length", b"-2")], "Invalid Content-Length", id="no length"
        ),
        pytest.param([with_field(b"content-length", b"3")], "framing", id="two lengths"),
        pytest.param([{**HEAD, "status": 600}], "status", id="no status"),
    ],
)
async def test_what_is_out_of_turn_ends_the_connection(
    serve: Serve, messages: list[Message], raised: str
) -> None:
    """With what was right of it sent, and a 500 where nothing was."""
    app = Says(*messages)
    served = await serve(app, linger_seconds=0.05)
    answered = await served.ask(REQUEST)
    assert raised in app.raised
    whole = len(messages) == 3
    assert answered.startswith(b"HTTP/1.1 200" if messages[0] is HEAD else b"HTTP/1.1 500")
    assert answered.endswith(b"ok") == whole
    assert b"long" not in answered


async def test_an_answer_by_http_1_0_that_says_it_is_chunked(serve: Serve) -> None:
    """Is none."""
    headers = [(b"transfer-encoding", b"chunked")]
    served = await serve(Says({**HEAD, "headers": headers}, BODY))
    answered = await served.ask(REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert answered.startswith(b"HTTP/1.1 500")
    assert b"transfer-encoding" not in answered.lower()
