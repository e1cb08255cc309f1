"""A stream that is begun in the upstream's place, and how everything that can follow is told."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.keepalive import COMMENT
from tests.harness.client import RawClient, request_bytes
from tests.harness.committed import (
    BODIES,
    COMMITTING,
    MESSAGES,
    RESPONSES,
    SOON,
    ask,
    committed,
    told,
)
from tests.harness.deaf import connecting, deaf_port
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, JSON, Launch, Running
from tests.harness.upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    End,
    Step,
    chunk,
    event,
    response,
    sse,
)

pytestmark = pytest.mark.both_ways


@pytest.mark.parametrize("path", BODIES)
async def test_an_upstream_that_takes_long(proxy: Launch, path: str) -> None:
    """The client gets a head and comments, and then the very bytes of the upstream's stream."""
    running = await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, SSE_HEAD, event("a"), chunk(DONE), LAST_CHUNK]
    client = await committed(running, path)
    assert await client.read_chunk() == COMMENT
    gate.set()
    answer = await client.read_rest()
    assert answer.complete
    assert answer.body.replace(COMMENT, b"") == sse("a") + DONE
    line = await running.log.nth(0)
    assert (line["status"], line["upstream_status"], line["outcome"]) == (200, 200, "ok")
    assert line["first_byte_seconds"] >= 2 * SOON


async def test_a_committed_answer_says_what_was_lowered(proxy: Launch) -> None:
    """Its head has the fields that ours always have."""
    running = await proxy(**COMMITTING)
    running.upstream.reply = [End.SILENCE]
    client = await ask(running, max_tokens=99_999)
    head = await client.read_head()
    assert head.header(b"x-bulwark-clamped") == b"max_tokens 99999 -> 4096"
    assert head.header(b"x-request-id") is not None


OPENAI_ERROR = {"message": "no such model", "type": "NotFoundError", "param": None, "code": 404}


@pytest.mark.parametrize(
    ("reply", "message", "code"),
    [
        pytest.param(
            [response(b"Internal Server Error", 500, [(b"Content-Type", b"text/plain")])],
            "The model server answered with status 500.",
            "upstream_error",
            id="an error that is no JSON",
        ),
        pytest.param(
            [response(b'{"error":{"message":7}}', 500)],
            "The model server answered with status 500.",
            "upstream_error",
            id="an error without a message",
        ),
        pytest.param(
            [response(b'{"error":""}', 500)],
            "The model server answered with status 500.",
            "upstream_error",
            id="an error that says nothing",
        ),
        pytest.param(
            [response(b'["error"]', 500)],
            "The model server answered with status 500.",
            "upstream_error",
            id="an error that is a list",
        ),
        pytest.param(
            [response(b'{"error":{"message":"no","code":1e999}}', 500)],
            "The model server answered with status 500.",
            "upstream_error",
            id="an error with a number that JSON has no word for",
        ),
        pytest.param(
            [response('{"error":"a\u2028b\x85c"}'.encode(), 500)],
            "a\u2028b\x85c",
            "upstream_error",
            id="an error with ends of lines that not every reader takes for text",
        ),
        pytest.param(
            [response(b'{"error":"a\\n\\ndata: [DONE]\\n\\n\\r"}', 500)],
            "a\n\ndata: [DONE]\n\n\r",
            "upstream_error",
            id="an error that would be an event",
        ),
        pytest.param(
            [response(b'{"error":"\\ud800"}', 500)],
            "The model server answered with status 500.",
            "upstream_error",
            id="an error that cannot be written",
        ),
        pytest.param(
            [response(b'{"error":"' + b"x" * 70_000 + b'"}', 500)],
            "The model server answered with status 500.",
            "upstream_error",
            id="an error of a length that no error has",
        ),
        pytest.param(
            [response(b'{"choices":[]}')],
            "The model server was asked for a stream and answered with something else.",
            "upstream_error",
            id="an answer in one piece",
        ),
        pytest.param(
            [b"HTTP/1.1 204 No Content\r\n\r\n"],
            "The model server was asked for a stream and answered with something else.",
            "upstream_error",
            id="nothing",
        ),
        pytest.param(
            [b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n"],
            "The model server answered with a redirect (302).",
            "upstream_error",
            id="a redirect",
        ),
        pytest.param(
            [response(b'{"error":"no"}', 401)],
            "The model server refused this proxy's own key (401, PROXY_UPSTREAM_API_KEY). "
            "Your key is not at fault.",
            "upstream_error",
            id="a complaint about our key",
        ),
        pytest.param(
            [End.RESET],
            "The connection to the model server broke while it was in use.",
            "upstream_error",
            id="a reset",
        ),
        pytest.param(
            [End.FIN],
            "The model server broke off, or its answer is not valid HTTP.",
            "upstream_error",
            id="an end",
        ),
        pytest.param(
            [b"SSH-2.0-OpenSSH_9.2\r\n\r\n"],
            "The model server broke off, or its answer is not valid HTTP.",
            "upstream_error",
            id="another protocol",
        ),
    ],
)
async def test_what_goes_wrong_is_told_as_an_event(
    proxy: Launch, reply: list[Step], message: str, code: object
) -> None:
    """Once, and the stream ends without ``[DONE]``; the log knows what it was."""
    running = await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, *reply]
    client = await committed(running)
    gate.set()
    name, data = told(await client.read_rest())
    assert (name, list(data)) == ("", ["error"])
    assert (data["error"]["message"], data["error"]["code"]) == (message, code)
    line = await running.log.nth(0)
    assert (line["status"], line["outcome"], line["level"]) == (200, "upstream_error", "error")
    labels = {"endpoint": "chat.completions", "status": "200", "outcome": "upstream_error"}
    assert running.metric("bulwark_requests_total", **labels) == 1


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        pytest.param(CHAT, "", {"error": OPENAI_ERROR}, id="chat"),
        pytest.param("/v1/completions", "", {"error": OPENAI_ERROR}, id="completions"),
        pytest.param(
            RESPONSES,
            "error",
            {
                "type": "error",
                "code": 404,
                "message": "no such model",
                "param": None,
                "sequence_number": 0,
                "error": OPENAI_ERROR,
            },
            id="responses",
        ),
        pytest.param(
            MESSAGES,
            "error",
            {"type": "error", "error": OPENAI_ERROR},
            id="messages",
        ),
    ],
)
async def test_an_event_of_the_routes_kind(
    proxy: Launch, path: str, name: str, expected: dict[str, Any]
) -> None:
    """What its SDKs raise on."""
    running = await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, response(json.dumps({"error": OPENAI_ERROR}).encode(), 404)]
    client = await committed(running, path)
    gate.set()
    told_name, data = told(await client.read_rest())
    data.pop("request_id", None)
    assert (told_name, data) == (name, expected)


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        pytest.param(
            {"first_byte_timeout_seconds": 25 * SOON}, "upstream_timeout", id="first byte"
        ),
        pytest.param({"total_timeout_seconds": 25 * SOON}, "upstream_timeout", id="total"),
    ],
)
async def test_a_deadline_is_told_as_an_event(
    proxy: Launch, settings: dict[str, Any], outcome: str
) -> None:
    """Comments do not put it off."""
    running = await proxy(**COMMITTING, **settings)
    running.upstream.reply = [End.SILENCE]
    client = await committed(running)
    _, data = told(await client.read_rest())
    assert data["error"]["code"] == outcome
    assert (await running.log.nth(0))["outcome"] == outcome
    await running.upstream.connection_closed(0, 1.0)


async def test_a_connection_that_is_not_made_is_told_as_an_event(proxy: Launch) -> None:
    """A stream is begun while the upstream does not even accept, and the time for that counts on."""
    with deaf_port() as port:
        others = connecting(port)
        running = await proxy(
            upstream_url=f"http://127.0.0.1:{port}", connect_timeout_seconds=25 * SOON, **COMMITTING
        )
        client = await running.connect()
        body = json.dumps({**BODIES[CHAT], "stream": True}).encode()
        await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body))
        assert (await client.read_head()).status == 200
        assert await client.read_chunk() == COMMENT
        assert connecting(port) == others + 1
        name, data = told(await client.read_rest())
        assert connecting(port) == others
    assert (name, data["error"]["code"]) == ("", "upstream_timeout")
    line = await running.log.nth(0)
    assert (line["status"], line["upstream_status"]) == (200, None)
    assert (line["outcome"], line["level"]) == ("upstream_timeout", "error")


async def test_the_drains_end_is_told_as_an_event(proxy: Launch) -> None:
    """A server that shuts down says so."""
    running = await proxy(**COMMITTING)
    running.upstream.reply = [End.SILENCE]
    client = await committed(running)
    running.stop.set()
    running.hurry.set()
    _, data = told(await client.read_rest())
    assert data["error"]["code"] == "shutting_down"


async def test_a_stream_that_dies_is_broken_off(proxy: Launch) -> None:
    """Once the upstream's own events have begun, an end of theirs is an end of the transfer."""
    running = await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, SSE_HEAD, event("a"), End.RESET]
    client = await committed(running)
    gate.set()
    answer = await client.read_rest()
    assert not answer.complete
    assert answer.body.replace(COMMENT, b"") == sse("a")
    assert (await running.log.nth(0))["outcome"] == "upstream_error"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"Content-Length: 12", id="a length, which is not announced any more"),
        pytest.param(b"X-Private: 1\r\nSet-Cookie: a=b\r\nContent-Length: 12", id="other fields"),
    ],
)
async def test_a_head_that_comes_too_late(proxy: Launch, head: bytes) -> None:
    """Its fields are lost, its body is not."""
    running = await proxy(**COMMITTING)
    gate = asyncio.Event()
    body = b"data: abcd\n\n"
    late = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n\r\n" % head
    running.upstream.reply = [gate, late + body]
    client = await committed(running)
    gate.set()
    answer = await client.read_rest()
    assert (answer.complete, answer.body.replace(COMMENT, b"")) == (True, body)


async def silence(beside: Running) -> None:
    """Returns after a time in which a request that may be committed has been."""
    beside.upstream.reply = [End.SILENCE]
    client = await committed(beside)
    for _ in range(3):
        assert await client.read_chunk() == COMMENT
    client.close()


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        pytest.param(COMMITTING, {"stream": False}, id="no stream was asked for"),
        pytest.param(COMMITTING, {"stream": None}, id="stream is null"),
        pytest.param(COMMITTING, {"stream": "true"}, id="stream is a string"),
        pytest.param(COMMITTING, {"stream": 1}, id="stream is a number"),
        pytest.param({**COMMITTING, "sse_commit_seconds": 0}, {}, id="switched off"),
        pytest.param({**COMMITTING, "sse_keepalive_seconds": 0}, {}, id="no comments"),
        pytest.param({**COMMITTING, "sse_commit_seconds": 60}, {}, id="before the time has come"),
    ],
)
async def test_no_commitment(
    proxy: Launch, settings: dict[str, Any], fields: dict[str, Any]
) -> None:
    """The status is the upstream's, however long it takes."""
    running, beside = await proxy(**settings), await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, response(b"{}", 418)]
    client = await ask(running, **fields)
    await silence(beside)
    gate.set()
    assert (await client.read_response()).status == 418


async def test_an_endpoint_that_does_not_stream_is_not_committed(proxy: Launch) -> None:
    """Whatever its body says of streams."""
    running, beside = await proxy(**COMMITTING), await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, response(b"{}", 418)]
    body = b'{"model":"m","input":"hi","stream":true}'
    asking = asyncio.create_task(running.ask("POST", "/v1/embeddings", {**BEARER, **JSON}, body))
    await running.upstream.request(0)
    await silence(beside)
    gate.set()
    assert (await asking).status == 418


async def test_a_queued_request_is_not_committed(proxy: Launch) -> None:
    """The time counts from when the upstream was asked; a full queue keeps its own status."""
    running, beside = await proxy(**COMMITTING, max_inflight=1), await proxy(**COMMITTING)
    running.upstream.reply = [End.SILENCE]
    holder = await ask(running)
    waiting = await running.connect()
    body = json.dumps({**BODIES[CHAT], "stream": True}).encode()
    await waiting.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body))
    await until(lambda: running.metric("bulwark_queue_length") == 1)
    await silence(beside)
    running.upstream.reply = [response(b"{}", 418)]
    holder.close()
    assert (await waiting.read_response()).status == 418


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(RawClient.close, id="politely"),
        pytest.param(RawClient.reset, id="by a reset"),
    ],
)
async def test_hang_up_of_a_committed_request(
    proxy: Launch, leave: Callable[[RawClient], None]
) -> None:
    """The upstream, which has said nothing yet, sees its connection close."""
    running = await proxy(**COMMITTING)
    running.upstream.reply = [End.SILENCE]
    leave(await committed(running))
    await running.upstream.connection_closed(0, 1.0)
    line = await running.log.nth(0)
    assert (line["outcome"], line["status"]) == ("client_disconnected", 499)
    await running.idle()
    assert running.bulwark.lifelines.in_flight == 0
    assert "Traceback" not in running.log.text


async def test_the_next_request_on_the_same_connection(proxy: Launch) -> None:
    """An answer that ended with an error event has ended: the connection goes on."""
    running = await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, response(b"{}", 500)]
    client = await committed(running)
    gate.set()
    await client.read_rest()
    running.upstream.reply = [response(b"{}", 418)]
    body = json.dumps(BODIES[CHAT]).encode()
    assert (await client.request("POST", CHAT, {**BEARER, **JSON}, body)).status == 418
