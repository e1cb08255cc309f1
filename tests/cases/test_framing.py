"""Requests and answers that two readers could take for different messages, or cannot finish."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Launch, Running

AUTHORIZED: dict[str, str] = {**BEARER, **JSON}
STRANGER = {"Authorization": "Bearer sk-bad-" + "b" * 40, **JSON}
GOOD = request_bytes("POST", CHAT, AUTHORIZED, CHAT_BODY)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT_BODY), CHAT_BODY)
PNG = "iVBORw0KGgo"


def head(*fields: str, method: str = "POST", target: str = CHAT) -> bytes:
    """The head of a request with the key, and these fields as they are."""
    known = [f"{name}: {value}" for name, value in AUTHORIZED.items()]
    lines = [f"{method} {target} HTTP/1.1", "Host: bulwark.test", *known, *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def body_of(size: int) -> bytes:
    """A chat of so many bytes that is within the caps: all of it is the payload of an image."""
    url = f"data:image/png;base64,{PNG}"
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    empty = json.dumps({"max_tokens": 5, "messages": [{"role": "user", "content": parts}]})
    padding = (
        size - len(empty)
    ) // 4 * 4 + 1  # with the 11 characters of the signature, whole quads
    return empty.replace(PNG, PNG + "A" * padding).encode()


async def assert_closed(client: RawClient) -> None:
    """The server ends the connection, and says nothing more on it."""
    assert await client.read_until_closed() == b""


@pytest.mark.case("HF-01")
@pytest.mark.parametrize("lengths_first", [True, False], ids=["length first", "coding first"])
@pytest.mark.parametrize("length", [4, len(CHAT_BODY), len(CHUNKED)])
async def test_a_length_and_a_coding(proxy: Launch, length: int, *, lengths_first: bool) -> None:
    """400 and the end of the connection: neither reading is forwarded, nor what follows."""
    running = await proxy()
    fields = [f"Content-Length: {length}", "Transfer-Encoding: chunked"]
    data = head(*(fields if lengths_first else reversed(fields))) + CHUNKED
    client = await running.connect()
    await client.send(data + request_bytes("GET", "/metrics") + GOOD)
    await running.assert_refused(await client.read_response(), 400, "invalid_http")
    await assert_closed(client)
    assert running.upstream.connections == []


@pytest.mark.case("HF-02")
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([f"Content-Length: {len(CHAT_BODY)}"] * 2, id="two equal ones"),
        pytest.param([f"Content-Length: {len(CHAT_BODY)}", "Content-Length: 5"], id="two others"),
        pytest.param([f"Content-Length: {len(CHAT_BODY)}, {len(CHAT_BODY)}"], id="a list of two"),
        pytest.param(["Content-Length: 5, 5"], id="a list of two shorter ones"),
    ],
)
async def test_two_lengths(proxy: Launch, fields: list[str]) -> None:
    """400 and the end of the connection, equal or not."""
    running = await proxy()
    client = await running.connect()
    await client.send(head(*fields) + CHAT_BODY + GOOD)
    await running.assert_refused(await client.read_response(), 400, "invalid_http")
    await assert_closed(client)
    assert running.upstream.connections == []


@pytest.mark.case("HF-04")
async def test_a_body_that_is_wanted_is_asked_for(proxy: Launch) -> None:
    """100 and then 200; the expectation is not passed on, and the body is."""
    running = await proxy()
    body = CHAT_BODY.replace(b'"hi"', b'"%b"' % (b"x" * 1000))
    client = await running.connect()
    await client.send(head(f"Content-Length: {len(body)}", "Expect: 100-continue"))
    assert (await client.read_interim()).status == 100
    await client.send(body)
    answer = await client.read_response()
    assert (answer.status, answer.interim) == (200, [])
    [request] = running.upstream.requests
    assert request.body == body
    assert request.header(b"expect") is None


@pytest.mark.case("HF-04")
@pytest.mark.parametrize(
    ("headers", "length", "status", "code"),
    [
        pytest.param(AUTHORIZED, 3_000_000, 413, "body_too_large", id="a body that is too large"),
        pytest.param(STRANGER, 1_900_000, 403, "invalid_api_key", id="a wrong key"),
        pytest.param(JSON, 1_900_000, 401, "missing_api_key", id="no key"),
    ],
)
async def test_a_body_that_is_not_wanted_is_not_asked_for(
    proxy: Launch, headers: dict[str, str], length: int, status: int, code: str
) -> None:
    """The final status comes in place of the 100, and the body stays where it is."""
    running = await proxy()
    fields = {**headers, "Content-Length": str(length), "Expect": "100-continue"}
    answer = await running.ask("POST", CHAT, fields)
    assert answer.interim == []
    await running.assert_refused(answer, status, code)
    assert (await running.log.of(answer))["bytes_in"] == 0


RUNS = 100

SOCKETS = """
import concurrent.futures, socket, sys

port, size, runs = map(int, sys.argv[1:4])
key, body = sys.argv[4], b"x" * size
head = (
    f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: h\\r\\nAuthorization: Bearer {key}\\r\\n"
    f"Content-Type: application/json\\r\\nContent-Length: {size}\\r\\n\\r\\n"
).encode()

def ask(_):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        try:
            sock.sendall(head + body[:65536])
            sock.sendall(memoryview(body)[65536:])
        except BrokenPipeError:
            pass  # the server has ended its side before: what it said is there to be read
        except ConnectionResetError:
            return False  # other systems than this one would have lost it
        received = b""
        try:
            while piece := sock.recv(65536):
                received += piece
        except BrokenPipeError:
            pass
        except ConnectionResetError:
            return False
        head_, _, said = received.partition(b"\\r\\n\\r\\n")
        return head_.startswith(b"HTTP/1.1 413 ") and b'"code":"body_too_large"' in said

with concurrent.futures.ThreadPoolExecutor(25) as pool:
    print(sum(pool.map(ask, range(runs))))
"""
"""A client that writes all, or as much as it can, then reads, and takes a reset for a lost answer."""

SDK = """
import concurrent.futures, sys
import openai

port, size, runs = map(int, sys.argv[1:4])
body = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * size + b'"}]}'

def ask(_):
    with openai.OpenAI(api_key=sys.argv[4], base_url=f"http://127.0.0.1:{port}/v1") as client:
        try:
            # What chat.completions.create does, with a body that is not made anew a hundred times.
            client.post("/chat/completions", cast_to=object, content=body)
        except openai.APIStatusError as error:
            return error.status_code == 413 and error.code == "body_too_large"
        except openai.APIError:
            return False

with concurrent.futures.ThreadPoolExecutor(25) as pool:
    print(sum(map(bool, pool.map(ask, range(runs)))))
"""
"""openai-python, with the retries that it has by default."""


@pytest.mark.case("HF-05")
@pytest.mark.parametrize("size", [3_000_000, 50_000_000], ids=["3 MB", "50 MB"])
@pytest.mark.parametrize("client", [SOCKETS, SDK], ids=["sockets", "openai-python"])
async def test_an_early_413_is_readable(proxy: Launch, client: str, size: int) -> None:
    """By at least 99 of 100 clients that have more to send; and none of them tries again."""
    running = await proxy()
    asking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", client, str(running.port), str(size), str(RUNS), KEY),
        stdout=asyncio.subprocess.PIPE,
    )
    read, _ = await asking.communicate()
    assert asking.returncode == 0
    assert int(read) >= 0.99 * RUNS
    await running.idle()
    outcomes = [line["outcome"] for line in running.log.requests()]
    assert outcomes == ["body_too_large"] * RUNS
    assert running.upstream.connections == []


@pytest.mark.case("HF-07")
async def test_a_chunked_body(proxy: Launch) -> None:
    """Chunks of 7 bytes, extensions and trailers: the upstream gets the body and its length."""
    running = await proxy()
    pieces = [CHAT_BODY[at : at + 7] for at in range(0, len(CHAT_BODY), 7)]
    chunks = b"".join(b'%x;name="a;b"\r\n%b\r\n' % (len(piece), piece) for piece in pieces)
    trailers = b"X-Trailer: 1\r\nAuthorization: Bearer x\r\nX-Data-Parallel-Rank: 1\r\n"
    client = await running.connect()
    await client.send(head("Transfer-Encoding: chunked", "Trailer: X-Trailer"))
    await client.send(chunks + b"0\r\n" + trailers + b"\r\n")
    assert (await client.read_response()).status == 200
    [request] = running.upstream.requests
    assert request.body == request.raw_body == CHAT_BODY
    assert request.header(b"content-length") == str(len(CHAT_BODY)).encode()
    names = {name for name, _ in request.headers}
    assert not names & {
        b"transfer-encoding",
        b"trailer",
        b"x-trailer",
        b"authorization",
        b"x-data-parallel-rank",
    }
    # And the connection goes on behind the trailers.
    await client.send(GOOD)
    assert (await client.read_response()).status == 200


@pytest.mark.case("HF-09")
@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/v1/chat/completions",
        "/v1/chat/completions/",
        "/chat/completions",
    ],
)
async def test_a_base_url_that_is_a_little_wrong(proxy: Launch, path: str) -> None:
    """404 in JSON that says what a base URL looks like; to a stranger, nothing but 401."""
    running = await proxy()
    stranger = await running.ask("POST", path, JSON, CHAT_BODY)
    await running.assert_refused(stranger, 401, "missing_api_key")
    answer = await running.ask("POST", path, AUTHORIZED, CHAT_BODY)
    await running.assert_refused(answer, 404, "not_found")
    message = answer.json()["error"]["message"]
    assert "The base URL of this server ends in /v1, without a trailing slash" in message
    assert "POST /v1/chat/completions" in message


LARGE = {
    "one field of 70 KB": "X-Large: " + "x" * 70_000,
    "500 fields": "\r\n".join(f"X-{number}: {number}" for number in range(500)),
    "33 KB of fields": "\r\n".join(f"X-{number}: {'x' * 600}" for number in range(55)),
}


@pytest.mark.case("HF-11")
@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("packet_bytes", [0, 1024], ids=["in one write", "in writes of 1 KB"])
async def test_a_head_over_the_limit(proxy: Launch, large: str, packet_bytes: int) -> None:
    """431 in JSON, wherever the packets were cut, and the upstream hears nothing."""
    running = await proxy()
    data = head(large, f"Content-Length: {len(CHAT_BODY)}") + CHAT_BODY
    client = await running.connect()
    with contextlib.suppress(ConnectionError):  # it may be told before it has sent all
        for at in range(0, len(data), packet_bytes or len(data)):
            await client.send(data[at : at + (packet_bytes or len(data))])
    answer = await client.read_response()
    await running.assert_refused(answer, 431, "head_too_large")
    assert answer.header(b"connection") == b"close"


@pytest.mark.case("HF-11")
async def test_a_head_within_the_limit(proxy: Launch) -> None:
    """A key of 20 KB is read and refused as a wrong one; 90 fields and 30 KB are no obstacle."""
    running = await proxy()
    answer = await running.ask("POST", CHAT, {"Authorization": "Bearer " + "x" * 20_000, **JSON})
    await running.assert_refused(answer, 403, "invalid_api_key")
    fields = {f"X-{number}": "x" * 300 for number in range(90)}
    assert (await running.chat(**fields)).status == 200
    names = {name for name, _ in running.upstream.requests[0].headers}
    assert not any(name.startswith(b"x-") for name in names - {b"x-request-id"})


@pytest.mark.case("HF-12")
@pytest.mark.parametrize("together", [True, False], ids=["in one write", "one after the other"])
async def test_a_refused_body_is_never_the_next_request(proxy: Launch, *, together: bool) -> None:
    """100 KB of good requests as the body of a bad one: it is answered, and nothing else is."""
    running = await proxy()
    body = GOOD * (100_000 // len(GOOD))
    refused = request_bytes("POST", CHAT, STRANGER, body)
    client = await running.connect()
    await client.send(refused + GOOD if together else refused)
    answer = await client.read_response()
    await running.assert_refused(answer, 403, "invalid_api_key")
    # Where all of it had come already, the connection may go on; it must go on with what is next.
    goes_on = answer.header(b"connection") != b"close"
    if not together:
        with contextlib.suppress(ConnectionError):
            await client.send(GOOD)
    if goes_on:
        assert (await client.read_response()).status == 200
    else:
        await assert_closed(client)
    assert [request.body for request in running.upstream.requests] == [CHAT_BODY] * goes_on
    assert len(running.log.requests()) == 1 + goes_on
    # What its client does next, on a new connection, is served.
    assert (await running.chat()).status == 200


@contextlib.asynccontextmanager
async def answering_early(answer: bytes) -> AsyncIterator[int]:
    """A server that reads heads only, answers, and closes; the port that it listens on."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            # Closed by a reset, where anything of the body has come that was not read.
            writer.transport.pause_reading()  # type: ignore[attr-defined] # the stream's is both
            writer.write(answer)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


EARLY = b'{"error":{"message":"no","code":"early"}}'


async def early(running: Running) -> RawResponse:
    """The answer to a body of 1.9 MB."""
    return await running.chat(body_of(1_900_000))


@pytest.mark.case("HF-13")
async def test_an_upstream_that_answers_before_it_has_the_body(proxy: Launch) -> None:
    """20 of 20 get its 400, or a 502 where the network lost it: no 500, and nothing hangs."""
    raw = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    raw += b"Content-Length: %d\r\n\r\n" % len(EARLY) + EARLY
    relayed: list[Any] = []
    async with answering_early(raw) as port:
        running = await proxy(upstream_url=f"http://127.0.0.1:{port}")
        for _ in range(20):
            answer = await early(running)
            assert answer.complete
            assert answer.status in (400, 502)
            relayed += [answer.body] if answer.status == 400 else []
        await running.idle()
        for gauge in ("slots_in_use", "buffered_bytes"):
            assert running.metric(f"bulwark_{gauge}") == 0
    assert relayed
    assert set(relayed) == {EARLY}
    outcomes = {line["outcome"] for line in running.log.requests()}
    assert outcomes <= {"ok", "upstream_error"}
