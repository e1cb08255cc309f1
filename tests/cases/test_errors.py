"""ER: errors that clients can read, and logs that say why without saying too much."""

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.tables.errors import BELOW_ASGI, REFUSALS
from tests.harness import process
from tests.harness import upstream as upstreams
from tests.harness.bodies import chat, compact
from tests.harness.client import RawResponse, request_bytes
from tests.harness.deaf import deaf_port
from tests.harness.running import BEARER, CHAT, JSON, Launch, Running
from tests.harness.upstream import LAST_CHUNK, SSE_HEAD, End, Script, event, response


def assert_shape(answer: RawResponse, status: int, code: str) -> None:
    """OpenAI's envelope, with every member and of the right types."""
    assert answer.status == status
    assert answer.complete
    assert answer.header(b"content-type") == b"application/json"
    assert list(answer.json()) == ["error"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] == code


@pytest.mark.case("ER-01")
@pytest.mark.parametrize(("request_", "status", "code"), [*REFUSALS, *BELOW_ASGI])
async def test_refusals_have_one_shape(
    proxy: Launch, request_: bytes, status: int, code: str
) -> None:
    """Each status that this proxy gives by itself; none has a framework's ``detail``."""
    front = await proxy(max_body_bytes=1024)
    client = await front.connect()
    await client.send(request_)
    assert_shape(await client.read_response(), status, code)
    assert front.upstream.requests == []


class Buggy(httpx.AsyncBaseTransport):
    """A transport with a bug."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Fails in a way that nobody expects."""
        raise LookupError(request.url)


REDIRECT = response(b"", 302, [(b"Location", b"http://127.0.0.1/")])


@pytest.mark.case("ER-01")
@pytest.mark.parametrize(
    ("reply", "settings", "status", "code"),
    [
        pytest.param([], {"transport": Buggy()}, 500, "internal_error", id="500"),
        pytest.param([REDIRECT], {}, 502, "upstream_error", id="502"),
        pytest.param(
            [End.SILENCE], {"first_byte_timeout_seconds": 0.1}, 504, "upstream_timeout", id="504"
        ),
        pytest.param(
            [], {"upstream_url": "http://127.0.0.1:1"}, 503, "upstream_unavailable", id="503"
        ),
    ],
)
async def test_faults_have_the_same_shape(
    proxy: Launch, reply: Script, settings: dict[str, Any], status: int, code: str
) -> None:
    """As the refusals."""
    front = await proxy(**settings)
    front.upstream.reply = reply
    assert_shape(await front.chat(), status, code)


@pytest.mark.case("ER-02")
@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        pytest.param(502, b"text/html", b"<h1>Bad Gateway</h1>", id="an HTML 502"),
        pytest.param(503, b"application/json", b"", id="an empty 503"),
        pytest.param(503, None, b"", id="an empty 503 without a type"),
        pytest.param(200, b"text/plain", b"ok", id="a plain 200"),
        pytest.param(404, b"text/html; charset=utf-8", b"<h1>Not Found</h1>", id="an HTML 404"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_of_the_engine_that_are_no_json(
    proxy: Launch, status: int, kind: bytes | None, body: bytes, streamed: bool
) -> None:
    """Status, type and bytes as they are."""
    front = await proxy()
    fields = [] if kind is None else [(b"Content-Type", kind)]
    front.upstream.reply = [response(body, status, fields)]
    answer = await front.chat(chat(max_tokens=9, stream=streamed))
    assert (answer.status, answer.body, answer.complete) == (status, body, True)
    assert answer.header(b"content-type") == kind


async def assert_fault(front: Running, status: int, code: str, fault: str) -> dict[str, object]:
    """An answer in time and without addresses, and a line that says what happened."""
    answer = await front.chat()
    assert_shape(answer, status, code)
    for secret in (b"127.0.0.1", b"invalid", str(front.upstream.port).encode(), b"Error"):
        assert secret not in answer.json()["error"]["message"].encode()
    line = await front.log.of(answer)
    assert (line["level"], line["status"], line["outcome"]) == ("error", status, code)
    assert line["fault"].startswith(fault)
    return line


@pytest.mark.case("ER-03")
async def test_a_refused_port(proxy: Launch) -> None:
    """503 at once: nobody is there, come back later."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        front = await proxy(upstream_url=f"http://127.0.0.1:{unused.getsockname()[1]}")
        line = await assert_fault(
            front, 503, "upstream_unavailable", "UpstreamUnavailable from ConnectError"
        )
    assert line["upstream_status"] is None


@pytest.mark.case("ER-03")
async def test_a_host_that_does_not_exist(proxy: Launch) -> None:
    """503 too, in the time that a connection may take."""
    front = await proxy(upstream_url="http://no-such-host.invalid:8000", connect_timeout_seconds=2)
    answer = await front.chat()
    # The latter where the machine's resolver does not answer.
    codes = {503: "upstream_unavailable", 504: "upstream_timeout"}
    assert answer.status in codes
    assert_shape(answer, answer.status, codes[answer.status])
    assert b"no-such-host" not in answer.body
    line = await front.log.of(answer)
    assert line["outcome"] == codes[answer.status]
    assert line["fault"].startswith("Upstream")


@pytest.mark.case("ER-03")
async def test_a_black_hole(proxy: Launch) -> None:
    """504 when the time for a connection is over."""
    with deaf_port() as port:
        front = await proxy(upstream_url=f"http://127.0.0.1:{port}", connect_timeout_seconds=0.2)
        await assert_fault(front, 504, "upstream_timeout", "UpstreamTimeout from ConnectTimeout")


@pytest.mark.case("ER-03")
@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        pytest.param([End.FIN], "RemoteProtocolError", id="accepts, then closes"),
        pytest.param([End.RESET], "ReadError", id="accepts, then resets"),
        pytest.param([b"\x16\x03\x01\x02\x00", End.FIN], "RemoteProtocolError", id="speaks TLS"),
        pytest.param([b"HTTP/1.1 200", End.FIN], "RemoteProtocolError", id="half a head"),
    ],
)
async def test_an_engine_that_gives_no_answer(proxy: Launch, reply: Script, fault: str) -> None:
    """502, and the log has the class of the failure."""
    front = await proxy()
    front.upstream.reply = reply
    await assert_fault(front, 502, "upstream_error", f"UpstreamError from {fault}")


@pytest.mark.case("ER-03")
async def test_an_engine_whose_head_does_not_come(proxy: Launch) -> None:
    """504 when the time for the first byte is over, also where half of it has come."""
    front = await proxy(first_byte_timeout_seconds=0.2)
    front.upstream.reply = [b"HTTP/1.1 200 OK\r\n", End.SILENCE]
    await assert_fault(front, 504, "upstream_timeout", "UpstreamTimeout")


@pytest.mark.case("ER-05")
@pytest.mark.parametrize(
    ("reply", "deadline", "fault", "upstream_status"),
    [
        pytest.param([End.SILENCE], "first_byte", "UpstreamTimeout", None, id="no first byte"),
        pytest.param([SSE_HEAD, End.SILENCE], "idle", "UpstreamTimeout", 200, id="no second byte"),
        pytest.param([b"nonsense\r\n\r\n"], None, "RemoteProtocolError", None, id="no HTTP"),
        pytest.param([SSE_HEAD, b"zz\r\n"], None, "RemoteProtocolError", None, id="no chunk"),
        pytest.param([SSE_HEAD, End.FIN], None, "RemoteProtocolError", 200, id="no end"),
    ],
)
async def test_a_failure_without_words_is_logged_with_some(
    proxy: Launch, reply: Script, deadline: str | None, fault: str, upstream_status: int | None
) -> None:
    """Its class, when, how long, in which phase, and the id that the client has."""
    # Short only where it is to pass: a busy machine would let the others miss it.
    settings: dict[str, Any] = {f"{deadline}_timeout_seconds": 0.2} if deadline else {}
    front = await proxy(**settings)
    front.upstream.reply = reply
    answer = await front.chat(chat(max_tokens=9, stream=True))
    line = await front.log.of(answer)
    assert fault in line["fault"]
    assert line["request_id"].encode() == answer.header(b"x-request-id")
    assert line["upstream_status"] == upstream_status
    assert line["timestamp"].startswith("20")
    assert line["duration_seconds"] > 0
    assert line["level"] == "error"


class Canaries:
    """Secrets, each of them another word, and none of them in anything but a secret's place."""

    KEY = "sk-canary-key-" + "k" * 40
    UPSTREAM_KEY = "canary-upstream-key"
    PROMPT = "canary-prompt"
    QUERY = "canary-query"
    HEADER = "canary-header"
    ANSWER = "canary-answer"


LOUD = """
import logging
logging.basicConfig(level=logging.DEBUG)
for name in ("httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.error", "asyncio"):
    logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger(name).debug("loud")
"""
"""What an operator in despair does, as a module that Python imports by itself."""


def canary_call(body: bytes, target: str = CHAT, key: str = Canaries.KEY, **more: str) -> bytes:
    """A request full of secrets."""
    fields = {
        "Authorization": f"Bearer {key}",
        "X-Api-Key": Canaries.HEADER,
        "Cookie": f"session={Canaries.HEADER}",
        "User-Agent": Canaries.HEADER,
        "X-Request-Id": Canaries.HEADER,
        **JSON,
        **more,
    }
    return request_bytes("POST", target, fields, body)


def secret_chat(**fields: object) -> bytes:
    """A body full of secrets."""
    messages = [{"role": "user", "content": Canaries.PROMPT}]
    return compact({"messages": messages, "max_tokens": 9, "user": Canaries.PROMPT, **fields})


TOLD = [(b"Content-Type", b"application/json"), (b"Set-Cookie", Canaries.ANSWER.encode())]
SECRET_ANSWER = json.dumps({"choices": [], "text": Canaries.ANSWER}).encode()

CALLS: list[tuple[str, bytes, Script, int]] = [
    ("a chat", canary_call(secret_chat()), [response(SECRET_ANSWER, 200, TOLD)], 200),
    (
        "a stream",
        canary_call(secret_chat(stream=True)),
        [SSE_HEAD, event(Canaries.ANSWER), LAST_CHUNK],
        200,
    ),
    ("clamped", canary_call(secret_chat(max_completion_tokens=99_999)), [response(b"{}")], 200),
    ("a query", canary_call(secret_chat(), f"{CHAT}?q={Canaries.QUERY}"), [response(b"{}")], 200),
    (
        "a key in the query",
        canary_call(secret_chat(), f"{CHAT}?api_key={Canaries.QUERY}&x={Canaries.KEY}"),
        [],
        400,
    ),
    ("a wrong key", canary_call(secret_chat(), key=Canaries.KEY + "x"), [], 403),
    ("two keys", canary_call(secret_chat(), key=f"{Canaries.KEY}, {Canaries.KEY}"), [], 401),
    ("no JSON", canary_call(secret_chat()[:-1]), [], 400),
    ("a key twice", canary_call(b'{"canary-prompt":1,"canary-prompt":2}'), [], 400),
    ("a wrong value", canary_call(secret_chat(n=Canaries.PROMPT)), [], 400),
    ("a refused field", canary_call(secret_chat(chat_template=Canaries.PROMPT)), [], 400),
    ("too long", canary_call(secret_chat(x=Canaries.PROMPT * 1_000)), [], 400),
    ("a wrong type", canary_call(secret_chat(), **{"Content-Type": Canaries.HEADER}), [], 415),
    ("a wrong path", canary_call(secret_chat(), f"/{Canaries.QUERY}"), [], 404),
    ("a wrong method", canary_call(secret_chat()).replace(b"POST", b"CANARY-QUERY", 1), [], 400),
    (
        "a large head",
        canary_call(secret_chat(), **{"X-Large": Canaries.HEADER * 3_000}),
        [],
        431,
    ),
    ("no HTTP", b"GET /canary-query HTTP/9.9\r\nHost: canary-header\r\n\r\n", [], 400),
    ("an error", canary_call(secret_chat()), [response(SECRET_ANSWER, 500, TOLD)], 500),
    ("a redirect", canary_call(secret_chat()), [response(SECRET_ANSWER, 302, TOLD)], 502),
    ("another key wanted", canary_call(secret_chat()), [response(SECRET_ANSWER, 401, TOLD)], 502),
    ("nonsense", canary_call(secret_chat()), [b"canary-answer\r\n\r\n", End.FIN], 502),
    ("a reset", canary_call(secret_chat()), [End.RESET], 502),
    ("silence", canary_call(secret_chat()), [End.SILENCE], 504),
    (
        "a broken stream",
        canary_call(secret_chat(stream=True)),
        [SSE_HEAD, event(Canaries.ANSWER), End.RESET],
        200,
    ),
]


@pytest.mark.case("ER-07")
async def test_nothing_that_is_written_has_a_secret_in_it(tmp_path: Path) -> None:
    """Good and bad calls, with every library at debug: not one canary, on neither stream."""
    (tmp_path / "sitecustomize.py").write_text(LOUD)
    (tmp_path / "tmp").mkdir()
    loud = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    settings = {
        "api_keys": Canaries.KEY,
        "upstream_api_key": Canaries.UPSTREAM_KEY,
        "log_level": "debug",
        "first_byte_timeout_seconds": "2",
    }
    async with (
        upstreams.serve() as upstream,
        process.serving(upstream.url, loud, **settings) as running,
    ):
        for what, request, reply, status in CALLS:
            upstream.reply = reply
            client = await running.connect()
            await client.send(request)
            answer = await client.read_response()
            assert answer.status == status, what
        client = await running.connect()  # one that leaves
        upstream.reply = [SSE_HEAD, event(Canaries.ANSWER), End.SILENCE]
        await client.send(canary_call(secret_chat(stream=True)))
        await client.read_head()
        client.reset()
        await upstream.all_closed()
        written = await running.stop()
    assert len(upstream.requests) >= 10
    for line in ("DEBUG:httpx:loud", "INFO:uvicorn.error:"):  # or nothing was
        assert line in written
    assert written.count('"event":"request"') == len(CALLS) + 1
    assert "canary" not in written.lower()
    assert list((tmp_path / "tmp").iterdir()) == []


SLOW = request_bytes("POST", CHAT, {**BEARER, **JSON, "Content-Length": "1000"}, b"{")


@pytest.mark.case("ER-09")
@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        *[row for row in REFUSALS if row.id != "401"],
        *BELOW_ASGI,
        pytest.param(request_bytes("GET", "/"), 401, "missing_api_key", id="401"),
        pytest.param(SLOW, 408, "request_timeout", id="408 for a body"),
        pytest.param(
            b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400, "invalid_http", id="400"
        ),
        pytest.param(b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "invalid_http", id="400 for TLS"),
    ],
)
async def test_no_refusal_is_without_a_body(
    proxy: Launch, request_: bytes, status: int, code: str
) -> None:
    """JSON of the announced length, which whoever reads it as text can read too."""
    front = await proxy(max_body_bytes=1024, body_timeout_seconds=0.2 if status == 408 else 30)
    client = await front.connect()
    await client.send(request_)
    answer = await client.read_response()
    assert_shape(answer, status, code)
    assert answer.header(b"content-length") == b"%d" % len(answer.body)


@pytest.mark.case("ER-09")
async def test_where_http_allows_no_body(proxy: Launch) -> None:
    """HEAD: the length of the one that GET would have had."""
    front = await proxy()
    head, get = await front.ask("HEAD", "/nope"), await front.ask("GET", "/nope")
    assert (head.status, head.body) == (401, b"")
    assert head.header(b"content-length") == get.header(b"content-length")
    assert head.header(b"content-type") == b"application/json"


@pytest.mark.case("ER-10")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("DELETE", CHAT, 405, "method_not_allowed"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("TRACE", "/", 404, "not_found"),
        ("TRACE", CHAT, 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there(
    proxy: Launch, method: str, path: str, status: int, code: str
) -> None:
    """401 to strangers; JSON to those with a key, whatever they would rather read."""
    front = await proxy()
    stranger = await front.ask(method, path, {"Accept": "text/html"})
    await front.assert_refused(stranger, 401, "missing_api_key")
    answer = await front.ask(method, path, {"Accept": "text/html", **BEARER})
    await front.assert_refused(answer, status, code)
    assert_shape(answer, status, code)
    assert answer.header(b"allow") == (b"POST" if status == 405 else None)
