"""Every way to fail, as its client reads it: one shape, one status, no internals."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from tests.contract.tables.errors import BELOW_ASGI, REFUSALS, post
from tests.harness.client import BrokenOff, RawClient, request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch, Running
from tests.harness.upstream import COMPLETION, SSE_HEAD, End, Script, event, response, sse

MESSAGES = "/v1/messages"
CANARY = "canary-of-a-prompt"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    REFUSALS,
)
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
async def test_refusals_are_in_openais_shape(
    proxy: Launch, request_: bytes, status: int, code: str, accept: str
) -> None:
    """Status, type, JSON body with a message and a code; a log line, a count, nothing forwarded."""
    front = await proxy(max_body_bytes=1024)
    client = await front.connect()
    await client.send(request_.replace(b"\r\n\r\n", b"\r\nAccept: %b\r\n\r\n" % accept.encode(), 1))
    answer = await client.read_response()
    await front.assert_refused(answer, status, code)
    error = answer.json()["error"]
    assert list(answer.json()) == ["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert answer.header(b"x-content-type-options") == b"nosniff"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    BELOW_ASGI,
)
async def test_refusals_below_asgi_are_recorded_like_the_others(
    proxy: Launch, request_: bytes, status: int, code: str
) -> None:
    """The same shape and fields, a line, a count."""
    front = await proxy()
    client = await front.connect()
    await client.send(request_)
    answer = await client.read_response()
    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    line = await front.log.of(answer)
    assert (line["status"], line["outcome"], line["level"]) == (status, code, "warning")
    assert line["client"] == "127.0.0.1"
    front.assert_counted({"endpoint": None, **line})
    assert front.upstream.connections == []


async def test_a_slow_body_is_408(proxy: Launch) -> None:
    """Its client is told, in JSON, with the setting."""
    front = await proxy(body_timeout_seconds=0.05)
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON, "Content-Length": "9"}, b"{"))
    answer = await client.read_response()
    await front.assert_refused(answer, 408, "request_timeout")
    assert "PROXY_BODY_TIMEOUT_SECONDS" in answer.json()["error"]["message"]


async def test_an_overload_is_503_with_a_time_to_come_back(proxy: Launch) -> None:
    """The one that came too much; the one that is served goes on."""
    front = await proxy(max_inflight=1, queue_size=0)
    gate = asyncio.Event()
    front.upstream.reply = [gate, response(COMPLETION)]
    first = asyncio.create_task(front.chat())
    await front.upstream.request(0)
    answer = await front.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (503, "overloaded")
    assert int(answer.header(b"retry-after") or b"") > 0
    line = await front.log.of(answer)
    assert (line["level"], line["outcome"]) == ("warning", "overloaded")
    front.assert_counted(line)
    gate.set()
    assert (await first).status == 200
    assert len(front.upstream.requests) == 1


async def test_anthropics_clients_get_their_own_shape(proxy: Launch) -> None:
    """Type, message and request id, on their routes only."""
    front = await proxy()
    answer = await front.ask("POST", MESSAGES, {**BEARER, **JSON}, b"{")
    shape = answer.json()
    assert (answer.status, shape["type"]) == (400, "error")
    assert shape["error"]["type"] == "invalid_request_error"
    assert shape["request_id"].encode() == answer.header(b"x-request-id")
    await front.assert_refused(answer, 400, "invalid_json")


FAULTS: list[tuple[Script, int, str, str]] = [
    ([End.FIN], 502, "upstream_error", "the upstream closes without an answer"),
    ([End.RESET], 502, "upstream_error", "the upstream resets"),
    ([b"SSH-2.0-OpenSSH\r\n", End.FIN], 502, "upstream_error", "the upstream speaks no HTTP"),
    ([response(b"", 302)], 502, "upstream_error", "the upstream redirects"),
    ([response(b"", 401)], 502, "upstream_error", "the upstream refuses our key"),
]


@pytest.mark.parametrize(
    ("reply", "status", "code"), [pytest.param(*row[:3], id=row[3]) for row in FAULTS]
)
async def test_faults_of_the_upstream(proxy: Launch, reply: Script, status: int, code: str) -> None:
    """Distinct statuses and codes in JSON; an error in the log that says which; no address."""
    front = await proxy()
    front.upstream.reply = reply
    await assert_fault(front, status, code)


async def test_an_upstream_that_is_silent(proxy: Launch) -> None:
    """504; alone with its short deadline, which a busy machine would let the others miss."""
    front = await proxy(first_byte_timeout_seconds=0.1)
    front.upstream.reply = [End.SILENCE]
    await assert_fault(front, 504, "upstream_timeout")


async def assert_fault(front: Running, status: int, code: str) -> None:
    """What a chat gets, in the answer, the line and the count."""
    answer = await front.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    assert str(front.upstream.port).encode() not in answer.body
    line = await front.log.of(answer)
    assert (line["level"], line["outcome"], line["status"]) == ("error", code, status)
    assert line["fault"].startswith("Upstream")
    front.assert_counted(line)


async def test_an_upstream_that_is_not_there_is_503(proxy: Launch) -> None:
    """At once, with a time to come back, and with the cause in the log."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        front = await proxy(upstream_url=f"http://127.0.0.1:{unused.getsockname()[1]}")
        answer = await front.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert int(answer.header(b"retry-after") or b"") > 0
    assert b"127.0.0.1" not in answer.body
    line = await front.log.of(answer)
    assert line["fault"].startswith("UpstreamUnavailable from ConnectError")


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        pytest.param(400, b"application/json", b'{"error":{"message":"no"}}', id="JSON"),
        pytest.param(502, b"text/html", b"<h1>Bad Gateway</h1>", id="HTML"),
        pytest.param(503, b"text/plain", b"", id="an empty body"),
        pytest.param(404, b"text/html", b"<h1>Nothing</h1>", id="a 404 of its own"),
        pytest.param(429, b"application/json", b"{", id="half a JSON"),
        pytest.param(422, b"application/json", b'{"detail":[]}', id="a 422"),
    ],
)
@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_the_upstreams_own_errors_are_relayed(
    proxy: Launch, status: int, kind: bytes, body: bytes, stream: bytes
) -> None:
    """Status, type and body as they are, streaming asked for or not; no refusal of ours.

    That it could not is a fault of its own; that it did not want to (4xx) is none.
    """
    front = await proxy()
    front.upstream.reply = [response(body, status, [(b"Content-Type", kind)])]
    answer = await front.chat(CHAT_BODY.replace(b"16}", b'16,"stream":%b}' % stream))
    assert (answer.status, answer.body) == (status, body)
    assert answer.header(b"content-type") == kind
    line = await front.log.of(answer)
    failed = "upstream_error", "error", "UpstreamError"
    told = line["outcome"], line["level"], line.get("fault")
    assert told == (failed if status >= 500 else ("ok", "info", None))
    assert (line["status"], line["upstream_status"]) == (status, status)
    front.assert_counted(line)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        pytest.param(499, "ok", id="the last of the client's errors"),
        pytest.param(500, "upstream_error", id="the first of the engine's"),
        pytest.param(599, "upstream_error", id="the last"),
    ],
)
async def test_a_list_that_the_upstream_does_not_give(
    proxy: Launch, status: int, outcome: str
) -> None:
    """Is relayed and recorded like any other answer."""
    front = await proxy()
    front.upstream.reply = [response(b"{}", status)]
    answer = await front.ask("GET", "/v1/models", BEARER)
    assert (answer.status, answer.body) == (status, b"{}")
    line = await front.log.of(answer)
    assert (line["status"], line["outcome"]) == (status, outcome)
    front.assert_counted(line)


BROKEN: list[tuple[Script, str, str]] = [
    ([SSE_HEAD, event("a"), End.RESET], "upstream_error", "a reset"),
    ([SSE_HEAD, event("a"), End.FIN], "upstream_error", "no last chunk"),
]


@pytest.mark.parametrize(("reply", "code"), [pytest.param(*row[:2], id=row[2]) for row in BROKEN])
async def test_an_answer_that_cannot_be_finished_is_broken_off(
    proxy: Launch, reply: Script, code: str
) -> None:
    """No second answer in it, no end that looks like one; it counts as failed."""
    front = await proxy()
    front.upstream.reply = reply
    await assert_broken_off(front, code)


async def test_an_answer_that_does_not_go_on_is_broken_off(proxy: Launch) -> None:
    """The deadline between two chunks, which is not the one for the first."""
    front = await proxy(idle_timeout_seconds=0.1)
    front.upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    await assert_broken_off(front, "upstream_timeout")


async def assert_broken_off(front: Running, code: str) -> None:
    """What a streamed chat gets, in the answer, the line and the count."""
    answer = await front.chat(CHAT_BODY.replace(b"16}", b'16,"stream":true}'))
    assert (answer.status, answer.body, answer.complete) == (200, sse("a"), False)
    line = await front.log.of(answer)
    assert (line["status"], line["outcome"], line["level"]) == (200, code, "error")
    front.assert_counted(line)


class Buggy(httpx.AsyncBaseTransport):
    """A transport with a bug: fails before its answer, or within it."""

    def __init__(self, *, within: bool) -> None:
        self._within = within

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Fails with words that nobody may repeat."""
        if not self._within:
            raise KeyError(CANARY) from ValueError(CANARY)
        return httpx.Response(200, stream=_BuggyStream())


class _BuggyStream(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError(CANARY)


async def test_a_bug_is_500_and_tells_nobody_what_it_saw(proxy: Launch) -> None:
    """The client gets the request id, the log the classes and the frames, neither the message."""
    front = await proxy(transport=Buggy(within=False))
    answer = await front.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
    assert (answer.header(b"x-request-id") or b"?") in answer.body
    line = await front.log.of(answer)
    assert (line["level"], line["outcome"]) == ("error", "internal_error")
    assert line["fault"].startswith("KeyError from ValueError at tests.contract.test_errors:")
    assert "Buggy.handle_async_request < proxy.forward.dispatch:" in line["fault"]
    assert CANARY not in front.log.text + answer.body.decode()
    front.assert_counted(line)


async def test_a_bug_within_an_answer_breaks_it_off(
    proxy: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing follows, and neither the log nor the process's output repeats a message."""
    front = await proxy(transport=Buggy(within=True))
    answer = await front.chat()
    assert (answer.status, answer.body, answer.complete) == (200, b"one", False)
    line = await front.log.of(answer)
    assert (line["status"], line["outcome"]) == (200, "internal_error")
    assert CANARY not in front.log.text
    assert capfd.readouterr() == ("", "")


async def wait_for_an_answer(front: Running, client: RawClient) -> None:
    """Asks what is never answered, until the upstream has the question."""
    front.upstream.reply = [End.SILENCE]
    await client.send(post(CHAT_BODY))
    await front.upstream.request(0)


async def send_half_a_body(_: Running, client: RawClient) -> None:
    """Begins a body, once the proxy has said that it reads it."""
    fields = {**BEARER, **JSON, "Content-Length": "1000", "Expect": "100-continue"}
    await client.send(request_bytes("POST", CHAT, fields))
    assert (await client.read_interim()).status == 100
    await client.send(b"{")


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset])
@pytest.mark.parametrize("phase", [wait_for_an_answer, send_half_a_body])
async def test_a_client_that_leaves_is_recorded_as_one(
    proxy: Launch,
    phase: Callable[[Running, RawClient], Awaitable[None]],
    leave: Callable[[RawClient], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """499 in log and metrics, no error, no traceback."""
    front = await proxy()
    client = await front.connect()
    await phase(front, client)
    leave(client)
    line = await front.log.nth(0)
    assert (line["status"], line["outcome"], line["level"]) == (499, "client_disconnected", "info")
    front.assert_counted(line)
    assert capfd.readouterr() == ("", "")


async def test_a_client_that_leaves_within_its_answer(proxy: Launch) -> None:
    """499, though a 200 was sent; and no refusal."""
    front = await proxy()
    front.upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    client = await front.connect()
    await client.send(post(CHAT_BODY.replace(b"16}", b'16,"stream":true}')))
    assert (await client.read_head()).status == 200
    assert await client.read_chunk() == sse("a")
    client.reset()
    line = await front.log.nth(0)
    assert (line["status"], line["outcome"]) == (499, "client_disconnected")
    assert (line["upstream_status"], line["bytes_out"]) == (200, len(sse("a")))
    front.assert_counted(line)


async def test_a_drain_that_takes_too_long_ends_each_request(proxy: Launch) -> None:
    """With its own 503 where nothing was sent yet, broken off where something was."""
    front = await proxy(drain_seconds=30)
    front.upstream.script.extend([[End.SILENCE], [SSE_HEAD, event("a"), End.SILENCE]])
    waiting = asyncio.create_task(front.chat())
    await front.upstream.request(0)
    client = await front.connect()
    await client.send(post(CHAT_BODY.replace(b"16}", b'16,"stream":true}')))
    await client.read_head()
    assert await client.read_chunk() == sse("a")
    front.stop.set()
    front.hurry.set()
    answer = await waiting
    assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert answer.header(b"retry-after") == b"5"
    with pytest.raises(BrokenOff):
        await client.read_chunk()
    assert await front.served == 0
    assert {line["outcome"] for line in front.log.requests()} == {"shutting_down"}


async def test_logs_hold_no_secret_whatever_fails(
    proxy: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Good and failing calls with canaries everywhere a client can put one: none in any output."""
    front = await proxy(log_level="debug", max_prompt_chars=1000, upstream_api_key="canary-up-1")
    body = json.dumps(
        {
            "model": "canary-model",
            "messages": [{"role": "user", "content": "canary-prompt"}],
            "canary-field": "canary-value",
        }
    ).encode()
    bodies = [body, body[:-1], body.replace(b"canary-prompt", b"canary-" * 1000), b"canary"]
    front.upstream.script.extend([[End.RESET], [response(b'{"x":"canary-answer"}')]])
    for each in bodies:
        for fields in (BEARER, {"Authorization": "Bearer canary-key"}, {"Cookie": "canary"}):
            target = f"{CHAT}?q=canary-query"
            answer = await front.ask("POST", target, {**fields, **JSON, "X-A": "canary"}, each)
            await front.log.of(answer)
    await front.ask("GET", "/canary-path", BEARER)
    await front.idle()
    assert "canary" not in front.log.text
    assert capfd.readouterr() == ("", "")
