"""EN: compressed bodies, in both directions."""

import gzip
import zlib

import pytest

from tests.harness import process
from tests.harness import upstream as upstreams
from tests.harness.bodies import chat
from tests.harness.running import BEARER, CHAT, JSON, Launch
from tests.harness.sdk import openai_client, say

LARGE = chat(max_tokens=99999)


def zstd(content: bytes) -> bytes:
    """A frame with one raw block (RFC 8878 §3.1.1): valid, and no library needed."""
    assert len(content) < 256
    block = (1 | len(content) << 3).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(content)]) + block + content


def brotli(content: bytes) -> bytes:
    """An uncompressed meta-block and an empty last one (RFC 7932 §9.2)."""
    head = (len(content) - 1) << 4 | 1 << 20
    return head.to_bytes(3, "little") + content + b"\x03"


@pytest.mark.case("EN-01")
@pytest.mark.parametrize("streamed", [False, True])
async def test_nobody_is_asked_to_compress(proxy: Launch, streamed: bool) -> None:
    """A client may take gzip; the engine is asked for plain bytes, and those are relayed."""
    front = await proxy()
    answer = await front.chat(
        chat(max_tokens=9, stream=streamed), **{"Accept-Encoding": "gzip, deflate, br, zstd"}
    )
    assert (answer.status, answer.complete) == (200, True)
    assert front.upstream.requests[0].header(b"accept-encoding") == b"identity"
    assert answer.header(b"content-encoding") is None
    if streamed:
        assert answer.body.endswith(upstreams.DONE)
    else:
        assert answer.body == upstreams.COMPLETION
        assert answer.header(b"content-length") == b"%d" % len(upstreams.COMPLETION)


@pytest.mark.case("EN-01")
async def test_an_sdk_that_offers_gzip_reads_answers_and_streams(proxy: Launch) -> None:
    """openai-python does by default."""
    front = await proxy()
    async with openai_client(front.port) as client:
        assert (await say(client)).choices[0].message.content == "Hello."
        stream = await say(client, stream=True)
        said = [piece.choices[0].delta.content or "" async for piece in stream]
    assert "".join(said) == "Hello."


STREAM = upstreams.sse("a") + upstreams.DONE
GZIPPED = [(b"Content-Encoding", b"gzip")]


def compressed(kind: bytes, content: bytes, status: int = 200) -> upstreams.Script:
    """An answer that nobody asked to compress."""
    fields = [(b"Content-Type", kind), *GZIPPED]
    return [upstreams.response(gzip.compress(content), status, fields)]


@pytest.mark.case("EN-01")
@pytest.mark.parametrize(
    ("reply", "streamed"),
    [
        pytest.param(compressed(b"application/json", upstreams.COMPLETION), False, id="JSON"),
        pytest.param(compressed(b"text/event-stream", STREAM), True, id="events"),
    ],
)
async def test_an_engine_that_compresses_unasked(
    proxy: Launch, reply: upstreams.Script, streamed: bool
) -> None:
    """A fault of the engine's, told as one: neither decoded nor relayed with wrong fields."""
    front = await proxy()
    front.upstream.reply = reply
    answer = await front.chat(chat(max_tokens=9, stream=streamed))
    assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_error")
    assert answer.header(b"content-encoding") is None
    assert answer.header(b"content-length") == b"%d" % len(answer.body)


@pytest.mark.case("EN-02")
@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        pytest.param("zstd", zstd(LARGE), id="zstd"),
        pytest.param("gzip", gzip.compress(LARGE), id="gzip"),
        pytest.param("deflate", zlib.compress(LARGE), id="deflate"),
        pytest.param("br", brotli(LARGE), id="br"),
        pytest.param("GZIP", gzip.compress(LARGE), id="capitals"),
    ],
)
async def test_compressed_requests(proxy: Launch, encoding: str, body: bytes) -> None:
    """415 that names the encoding; never forwarded uninspected."""
    front = await proxy()
    answer = await front.chat(body, **{"Content-Encoding": encoding})
    await front.assert_refused(answer, 415, "unsupported_media_type")
    assert encoding.lower() in answer.json()["error"]["message"].lower()


MIB = 1024 * 1024


@pytest.mark.case("EN-03")
async def test_a_decompression_bomb() -> None:
    """Refused for want of a key, then for its encoding; nobody unpacks its 128 MiB."""
    bomb = gzip.compress(bytes(128 * MIB), compresslevel=9)
    assert len(bomb) < 140_000
    fields = {**JSON, "Content-Encoding": "gzip"}
    async with upstreams.serve() as upstream, process.serving(upstream.url) as running:
        client = await running.connect()
        assert (await client.request("POST", CHAT, {**JSON, **BEARER}, chat())).status == 200
        before = running.memory_bytes()
        for _ in range(3):
            client = await running.connect()
            stranger = await client.request("POST", CHAT, fields, bomb)
            assert (stranger.status, stranger.json()["error"]["code"]) == (401, "missing_api_key")
            client = await running.connect()
            known = await client.request("POST", CHAT, {**fields, **BEARER}, bomb)
            assert known.status == 415
        assert running.memory_bytes() - before < 16 * MIB
        assert len(upstream.asked) == 1
        assert "Traceback" not in await running.stop()


@pytest.mark.case("EN-05")
async def test_a_plain_body_that_is_called_compressed(proxy: Launch) -> None:
    """415: what it is called is enough, so that nobody after us can read it otherwise."""
    front = await proxy()
    answer = await front.chat(LARGE, **{"Content-Encoding": "gzip"})
    await front.assert_refused(answer, 415, "unsupported_media_type")


@pytest.mark.case("EN-06")
@pytest.mark.parametrize(
    "body",
    [zstd(LARGE), gzip.compress(LARGE), b"\x28\xb5\x2f\xfd"],
    ids=["zstd", "gzip", "how zstd begins"],
)
async def test_a_compressed_body_that_is_called_plain(
    proxy: Launch, capfd: pytest.CaptureFixture[str], body: bytes
) -> None:
    """400: it is no JSON; nobody tries to decode it."""
    front = await proxy()
    await front.assert_refused(await front.chat(body), 400, "invalid_json")
    assert capfd.readouterr() == ("", "")


@pytest.mark.case("EN-08")
@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        pytest.param(400, b"application/json", b'{"error":{}}', id="400 in JSON"),
        pytest.param(503, b"text/html", b"<h1>Down</h1>", id="503 in HTML"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_compressed_errors(
    proxy: Launch, status: int, kind: bytes, body: bytes, streamed: bool
) -> None:
    """Nobody asked for them: 502 in JSON, with the engine's status in the log."""
    front = await proxy()
    front.upstream.reply = compressed(kind, body, status)
    answer = await front.chat(chat(max_tokens=9, stream=streamed))
    assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_error")
    assert answer.header(b"content-type") == b"application/json"
    line = await front.log.of(answer)
    assert line["fault"].startswith("UpstreamError")
    assert line["upstream_status"] == status
