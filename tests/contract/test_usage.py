"""What a request has used is known to whoever limits it, and its client notices nothing."""

import asyncio
import json
from collections.abc import Sequence

import httpx
import pytest

from proxy.keepalive import COMMENT
from tests.contract.test_untouched import STREAM as ODD_STREAM
from tests.harness import usages
from tests.harness.client import BrokenOff, RawResponse, request_bytes
from tests.harness.deaf import connecting, deaf_port
from tests.harness.engines import free_port
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import (
    COMPLETION,
    LAST_CHUNK,
    SSE_HEAD,
    End,
    Script,
    Step,
    chunk,
    response,
)

pytestmark = pytest.mark.both_ways

ASK = b'"stream_options":{"include_usage":true}'
LIMIT = 1_000_000
"""Tokens a minute, which the key of these tests has; enough for all of them."""

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

PLAIN = request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)
STREAM = request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY)


def by_event(stream: bytes) -> list[bytes]:
    """Chunks as an engine sends them: one an event."""
    return [event + b"\n\n" for event in stream.split(b"\n\n") if event]


def streaming(*chunks: bytes, end: Step = LAST_CHUNK) -> Script:
    """An answer in these chunks."""
    return [SSE_HEAD, *map(chunk, chunks), end]


async def used(running: Running, answer: RawResponse) -> tuple[int, int, str]:
    """What the log has of it."""
    line = await running.log.of(answer)
    return line["prompt_tokens"], line["completion_tokens"], line["usage"]


@pytest.mark.parametrize(
    ("stream", "client"),
    [
        pytest.param(usages.VLLM_CHAT, usages.VLLM_CHAT_UNASKED, id="vLLM"),
        pytest.param(usages.LLAMA_CHAT, usages.LLAMA_CHAT_UNASKED, id="llama.cpp"),
        pytest.param(usages.TRANSFORMERS_CHAT, usages.TRANSFORMERS_CHAT, id="transformers"),
    ],
)
@pytest.mark.parametrize("size", [1, 50, 10_000, None])
async def test_a_limited_client_gets_the_stream_that_it_asked_for(
    proxy: Launch, stream: bytes, client: bytes, size: int | None
) -> None:
    """However it was cut; and the engine was asked on our account, with no other byte changed."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    cut = [stream[at : at + size] for at in range(0, len(stream), size)] if size else None
    running.upstream.reply = streaming(*(cut or by_event(stream)))
    answer = await running.chat(STREAM_BODY)
    assert answer.body == client
    assert answer.complete
    (request,) = running.upstream.requests
    assert request.body == STREAM_BODY.replace(b"{", b"{" + ASK + b",", 1)
    assert await used(running, answer) == (21, 3, "engine")


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_a_limited_client_gets_odd_streams_too(proxy: Launch, size: int) -> None:
    """Line ends of every kind, comments, cut characters, an unterminated last line."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    chunks = [ODD_STREAM[at : at + size] for at in range(0, len(ODD_STREAM), size)]
    running.upstream.reply = streaming(*chunks)
    answer = await running.chat(STREAM_BODY)
    assert answer.body == ODD_STREAM
    assert answer.complete


async def test_who_has_asked_gets_it(proxy: Launch) -> None:
    """And its body arrives as it was sent."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    running.upstream.reply = streaming(*by_event(usages.VLLM_CHAT))
    body = STREAM_BODY.replace(b"{", b"{" + ASK + b",", 1)
    answer = await running.chat(body)
    assert answer.body == usages.VLLM_CHAT
    assert running.upstream.requests[0].body == body
    assert await used(running, answer) == (21, 3, "engine")


async def test_who_is_not_limited_is_not_looked_at(proxy: Launch) -> None:
    """Nothing is asked, nothing taken out, nothing known."""
    running = await proxy()
    running.upstream.reply = streaming(*by_event(usages.VLLM_CHAT))
    answer = await running.chat(STREAM_BODY)
    assert answer.body == usages.VLLM_CHAT
    assert running.upstream.requests[0].body == STREAM_BODY
    assert (await running.log.of(answer))["usage"] is None


async def test_a_length_that_was_announced_is_not_passed_on(proxy: Launch) -> None:
    """It would be longer than what is left; the connection goes on being used."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    events = (b"Content-Type", b"text/event-stream")
    running.upstream.reply = [response(usages.VLLM_CHAT, headers=[events])]
    client = await running.connect()
    for _ in range(2):
        answer = await client.request("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY)
        assert answer.body == usages.VLLM_CHAT_UNASKED
        assert answer.header(b"content-length") is None


@pytest.mark.parametrize(
    ("path", "body", "stream", "expected"),
    [
        pytest.param(
            RESPONSES,
            b'{"input":"a","max_output_tokens":9,"stream":true}',
            usages.VLLM_RESPONSES,
            (21, 3, "engine"),
            id="responses",
        ),
        pytest.param(
            MESSAGES,
            b'{"messages":[],"max_tokens":9,"stream":true}',
            usages.LLAMA_MESSAGES,
            (21, 3, "engine"),
            id="messages",
        ),
    ],
)
async def test_the_other_dialects_tell_by_themselves(
    proxy: Launch, path: str, body: bytes, stream: bytes, expected: tuple[int, int, str]
) -> None:
    """Nothing is asked, and nothing taken out."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    running.upstream.reply = streaming(*by_event(stream))
    answer = await running.ask("POST", path, {**BEARER, **JSON}, body)
    assert answer.body == stream
    assert running.upstream.requests[0].body == body
    assert await used(running, answer) == expected


async def test_an_answer_in_one_piece(proxy: Launch) -> None:
    """Says it without being asked."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    running.upstream.reply = [response(COMPLETION)]
    answer = await running.chat()
    assert answer.body == COMPLETION
    assert running.upstream.requests[0].body == CHAT_BODY
    assert await used(running, answer) == (3, 2, "engine")


async def test_an_engine_that_says_nothing_is_estimated(proxy: Launch) -> None:
    """Three characters in three events are three tokens."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    running.upstream.reply = streaming(*by_event(usages.VLLM_CHAT_UNASKED))
    answer = await running.chat(STREAM_BODY)
    assert answer.body == usages.VLLM_CHAT_UNASKED
    prompt, completion, source = await used(running, answer)
    assert 3 <= completion <= 16
    assert source == "estimate"
    assert 0 < prompt < 100


@pytest.mark.parametrize("figure", [10**12, LIMIT])
async def test_an_engine_that_boasts_is_not_believed(proxy: Launch, figure: int) -> None:
    """A trillion tokens would lock its clients out, and so would a million."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    boast = usages.event(usages.usage_chunk(figure, figure))
    running.upstream.reply = streaming(usages.event(usages.WORDS[0]), boast)
    for _ in range(3):
        answer = await running.chat(STREAM_BODY)
        assert answer.status == 200
        prompt, completion, source = await used(running, answer)
        assert (prompt < 100, source) == (True, "estimate")
        assert 1 <= completion <= 16


@pytest.mark.parametrize(
    ("path", "body", "stated"),
    [
        pytest.param("/v1/embeddings", {"input": [""] * 2048}, 6_144, id="embeddings"),
        pytest.param(
            "/v1/rerank", {"query": "x" * 100, "documents": [""] * 2040}, 59_160, id="documents"
        ),
        pytest.param("/v1/embeddings", {"input": ""}, 3, id="one"),
    ],
)
async def test_empty_inputs_are_charged(
    proxy: Launch, path: str, body: dict[str, object], stated: int
) -> None:
    """Engines put tokens of their own around each; and where they say nothing, or too much."""
    running = await proxy(key_tokens_per_minute=LIMIT, endpoints="embeddings,rerank")
    for said in (stated, None, 10**7):
        usage = None if said is None else {"prompt_tokens": said, "total_tokens": said}
        running.upstream.reply = [response(json.dumps({"data": [], "usage": usage}).encode())]
        answer = await running.ask("POST", path, {**BEARER, **JSON}, json.dumps(body).encode())
        prompt, completion, source = await used(running, answer)
        assert completion == 0
        if said == stated:
            assert (prompt, source) == (stated, "engine")
        else:
            assert source == "estimate"
            assert stated // 2 <= prompt <= 3 * stated


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_refusal_costs_nothing(proxy: Launch, status: int) -> None:
    """And says what it says, also where the body was not the client's own."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    refusal = b'{"error":{"message":"no"},"usage":{"prompt_tokens":5,"completion_tokens":5}}'
    running.upstream.reply = [response(refusal, status)]
    answer = await running.chat(STREAM_BODY)
    assert (answer.status, answer.body) == (status, refusal)
    line = await running.log.of(answer)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (None, None)


async def test_what_was_held_back_arrives_before_a_stream_breaks_off(proxy: Launch) -> None:
    """The end of the choice, for which nothing came any more; and what came is what is charged."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    word, last = usages.event(usages.WORDS[0]), usages.event(usages.LAST)
    running.upstream.reply = streaming(word, last, end=End.FIN)
    client = await running.connect()
    await client.send(STREAM)
    await client.read_head()
    assert await client.read_chunk() == word
    assert await client.read_chunk() == last
    with pytest.raises(BrokenOff):
        await client.read_chunk()
    line = await running.log.nth(0)
    assert 2 <= line["completion_tokens"] <= 16
    assert line["usage"] == "estimate"


@pytest.mark.parametrize(
    ("request_", "reply", "completions"),
    [
        pytest.param(
            STREAM,
            [SSE_HEAD, *[chunk(usages.event(usages.WORDS[0]))] * 5, End.SILENCE],
            range(5, 17),
            id="a stream: what was sent, and what time there was for more",
        ),
        pytest.param(STREAM, [End.SILENCE], [0], id="a stream of which nothing had come"),
        pytest.param(
            PLAIN, [End.SILENCE], [16], id="an answer in one piece: all that it may have become"
        ),
        pytest.param(
            PLAIN,
            [response(COMPLETION[:-9], content_length=len(COMPLETION)), End.SILENCE],
            [16],
            id="an answer in one piece, in the middle of it",
        ),
    ],
)
async def test_who_leaves_is_charged(
    proxy: Launch, request_: bytes, reply: Script, completions: Sequence[int]
) -> None:
    """Never nothing: the engine was at work."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    running.upstream.reply = reply
    client = await running.connect()
    await client.send(request_)
    await running.upstream.request(0)
    if SSE_HEAD in reply:
        await client.read_head()
        # What comes in one packet goes on in one chunk.
        left = 5 * len(usages.event(usages.WORDS[0]))
        while left:
            left -= len(await client.read_chunk())
    elif reply != [End.SILENCE]:
        await client.read_head()
        await client.read_available()
    client.close()
    line = await running.log.nth(0)
    assert line["outcome"] == "client_disconnected"
    assert line["prompt_tokens"] > 0
    assert line["completion_tokens"] in completions
    assert line["usage"] == "estimate"


async def test_who_leaves_a_stream_that_holds_its_tokens_back_is_charged(proxy: Launch) -> None:
    """The engine has had time, 0.1 s, for all that the request may generate."""
    running = await proxy(key_tokens_per_minute=LIMIT, sse_keepalive_seconds=0.02)
    running.upstream.reply = [SSE_HEAD, chunk(usages.event(usages.ROLE)), End.SILENCE]
    client = await running.connect()
    await client.send(STREAM)
    await client.read_head()
    assert await client.read_chunk() == usages.event(usages.ROLE)
    for _ in range(5):
        assert await client.read_chunk() == COMMENT
    client.close()
    line = await running.log.nth(0)
    assert (line["completion_tokens"], line["usage"]) == (16, "estimate")


async def test_an_upstream_that_is_not_there_costs_nothing(proxy: Launch) -> None:
    """Nothing was asked of it."""
    running = await proxy(
        key_tokens_per_minute=LIMIT, upstream_url=f"http://127.0.0.1:{free_port()}"
    )
    answer = await running.chat()
    assert answer.status == 503
    line = await running.log.of(answer)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (None, None)


async def test_an_upstream_that_never_accepts_costs_nothing(proxy: Launch) -> None:
    """Nor does it if its client does not wait for the connection."""
    with deaf_port() as port:
        running = await proxy(
            key_tokens_per_minute=LIMIT,
            upstream_url=f"http://127.0.0.1:{port}",
            connect_timeout_seconds=60,
        )
        before = connecting(port)
        client = await running.connect()
        await client.send(PLAIN)
        await until(lambda: connecting(port) > before)
        client.close()
        line = await running.log.nth(0)
    assert line["outcome"] == "client_disconnected"
    assert (line["prompt_tokens"], line["completion_tokens"]) == (None, None)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        pytest.param([End.RESET], 502, id="it closes the connection"),
        pytest.param([b"HTTP/1.1 200 OK\r\n", End.FIN], 502, id="in the middle of its head"),
        pytest.param([End.SILENCE], 504, id="it says nothing in time"),
    ],
)
async def test_an_upstream_that_fails_before_it_answers_costs_nothing(
    proxy: Launch, reply: Script, status: int
) -> None:
    """It was asked, and there is no answer that anybody could have had."""
    running = await proxy(key_tokens_per_minute=LIMIT, first_byte_timeout_seconds=0.2)
    running.upstream.reply = reply
    answer = await running.chat()
    assert answer.status == status
    line = await running.log.of(answer)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (None, None)


async def test_over_another_transport(proxy: Launch) -> None:
    """One that does not say when a request is sent: it counts from when it is to be."""
    running = await proxy(key_tokens_per_minute=LIMIT, transport=httpx.AsyncHTTPTransport())
    assert await used(running, await running.chat()) == (3, 2, "engine")


async def test_the_end_of_a_choice_waits_for_no_more_than_the_next_event(proxy: Launch) -> None:
    """Every other event arrives before the next is sent."""
    running = await proxy(key_tokens_per_minute=LIMIT)
    word, last = usages.event(usages.WORDS[0]), usages.event(usages.LAST)
    gates = [asyncio.Event(), asyncio.Event()]
    running.upstream.reply = [
        SSE_HEAD, chunk(word), gates[0], chunk(last), chunk(usages.event(usages.usage_chunk(1, 2))),
        gates[1], chunk(b"data: [DONE]\n\n"), LAST_CHUNK,
    ]  # fmt: skip
    client = await running.connect()
    await client.send(STREAM)
    await client.read_head()
    assert await client.read_chunk() == word
    gates[0].set()
    assert await client.read_chunk() == last
    gates[1].set()
    assert await client.read_chunk() == b"data: [DONE]\n\n"
    assert await client.read_chunk() == b""


async def test_comments_come_between_what_the_client_has(proxy: Launch) -> None:
    """Also while a part of an event is held back, which no client could do anything with."""
    running = await proxy(key_tokens_per_minute=LIMIT, sse_keepalive_seconds=0.02)
    word, last = usages.event(usages.WORDS[0]), usages.event(usages.LAST)
    gates = [asyncio.Event(), asyncio.Event()]
    running.upstream.reply = [
        SSE_HEAD, chunk(word[:50]), gates[0], chunk(word[50:] + last), gates[1],
        chunk(usages.event(usages.usage_chunk(1, 2))), LAST_CHUNK,
    ]  # fmt: skip
    client = await running.connect()
    await client.send(STREAM)
    await client.read_head()
    pieces: list[bytes] = []
    for gate in gates:
        pieces += [await client.read_chunk() for _ in range(3)]
        while pieces[-1] != COMMENT:
            pieces.append(await client.read_chunk())
        gate.set()
    answer = b"".join(pieces) + (await client.read_rest()).body
    assert answer.replace(COMMENT, b"") == word + last
    assert set(answer.split(b"\n\n")) <= {*(word + last + COMMENT).split(b"\n\n")}
