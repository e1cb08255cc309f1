"""What goes wrong reaches users of the OpenAI SDK for Python as the right exception, at once.

In front of the misbehaving upstream, most of them: a refusal never gets that far.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from proxy.keepalive import COMMENT
from tests.clients.conftest import Client
from tests.harness import upstream as upstreams
from tests.harness.running import KEY, Launch, Running
from tests.harness.upstream import End, completion_chunk, event

pytestmark = pytest.mark.both_ways


@pytest.fixture(scope="module")
def tried() -> Client:
    """For the table."""
    return Client("openai-python", openai.__version__)


def client_of(running: Running, key: str = KEY, **options: Any) -> openai.AsyncOpenAI:
    """The SDK with its own two retries, unless told otherwise."""
    base_url = f"http://127.0.0.1:{running.port}/v1"
    return openai.AsyncOpenAI(**{"base_url": base_url, "api_key": key, **options})


async def hello(client: openai.AsyncOpenAI, content: object = "hi", **more: Any) -> object:
    """The smallest chat."""
    messages: Any = [{"role": "user", "content": content}]
    return await client.chat.completions.create(model="m", messages=messages, **more)


def picture(url: str) -> list[dict[str, object]]:
    """A message that is an image."""
    return [{"type": "image_url", "image_url": {"url": url}}]


Ask = Callable[[openai.AsyncOpenAI], Awaitable[object]]
BAD = openai.BadRequestError


@pytest.mark.parametrize(
    ("ask", "error", "code", "message"),
    [
        pytest.param(
            lambda c: hello(c, "x" * 10_001),
            BAD, "context_length_exceeded", "PROXY_MAX_PROMPT_CHARS",
            id="a prompt over the cap",
        ),
        pytest.param(
            lambda c: hello(c, "x" * 3_000_000),
            openai.APIStatusError, "body_too_large", "PROXY_MAX_BODY_BYTES",
            id="a body over the cap",
        ),
        pytest.param(
            lambda c: hello(c, extra_body={"prompt_embeds": "AAAA"}),
            BAD, "field_refused", "prompt_embeds",
            id="a field that replaces the prompt",
        ),
        pytest.param(
            lambda c: hello(c, max_tokens=-1), BAD, "invalid_value", "max_tokens",
            id="a negative bound",
        ),
        pytest.param(
            lambda c: hello(c, n=100), BAD, "too_many_choices", "PROXY_MAX_CHOICES",
            id="a hundred answers",
        ),
        pytest.param(
            lambda c: hello(c, tools=[{"type": "function", "function": {
                "name": "f", "description": "x" * 70_000}}]),
            BAD, "tools_too_large", "PROXY_MAX_SCHEMA_CHARS",
            id="tools over their cap",
        ),
        pytest.param(
            lambda c: hello(c, logit_bias={str(i): 1 for i in range(5000)}),
            BAD, "parameters_too_large", "logit_bias",
            id="a logit_bias without end",
        ),
        pytest.param(
            lambda c: hello(c, picture("http://127.0.0.1/x.png")),
            BAD, "media_refused", "data:",
            id="a picture to fetch",
        ),
        pytest.param(
            lambda c: c.embeddings.create(model="m", input=["x"] * 2049),
            BAD, "too_many_inputs", "the limit is 2,048",
            id="too many texts to embed",
        ),
        pytest.param(
            lambda c: c.responses.create(model="m", input="x", previous_response_id="resp_1"),
            BAD, "field_refused", "previous_response_id",
            id="a conversation that the engine keeps",
        ),
        pytest.param(
            lambda c: c.with_options(default_query={"api_key": KEY}).models.list(),
            BAD, "key_in_query", "replace it",
            id="the key in the URL",
        ),
        pytest.param(
            lambda c: hello(c.with_options(base_url=str(c.base_url) + "v1/")),
            openai.NotFoundError, "not_found", "ends in /v1",
            id="a base URL with one v1 too many",
        ),
        pytest.param(
            lambda c: hello(c.with_options(api_key="sk-wrong")),
            openai.PermissionDeniedError, "invalid_api_key", "Ask the server's owner",
            id="a wrong key",
        ),
        pytest.param(
            lambda c: hello(c, extra_headers={"Authorization": openai.Omit()}),
            openai.AuthenticationError, "missing_api_key", "Authorization: Bearer",
            id="no key",
        ),
    ],
)  # fmt: skip
async def test_a_refusal_is_told_in_one_call(
    proxy: Launch, ask: Ask, error: type[openai.APIStatusError], code: str, message: str
) -> None:
    """No status that the SDK would retry; its class, its code, its words, our request id."""
    running = await proxy()
    async with client_of(running) as client:
        assert client.max_retries == 2
        with pytest.raises(error, match=message) as caught:
            await ask(client)
    assert caught.value.code == code
    assert len(caught.value.request_id or "") == 32
    assert (await running.log.nth(0))["outcome"] == code
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []


async def test_too_much_output_can_be_refused(proxy: Launch) -> None:
    """Where the operator chose so."""
    running = await proxy(output_overflow="reject")
    async with client_of(running) as client:
        with pytest.raises(BAD) as caught:
            await hello(client, max_tokens=32_000)
    assert (caught.value.code, caught.value.param) == ("output_too_large", "max_tokens")
    await running.log.nth(0)
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        pytest.param(400, openai.BadRequestError, id="400"),
        pytest.param(404, openai.NotFoundError, id="404"),
        pytest.param(422, openai.UnprocessableEntityError, id="422"),
        pytest.param(429, openai.RateLimitError, id="429"),
        pytest.param(500, openai.InternalServerError, id="500"),
        pytest.param(503, openai.InternalServerError, id="503"),
    ],
)
async def test_the_upstreams_errors_are_its_own(
    proxy: Launch, status: int, error: type[openai.APIStatusError]
) -> None:
    """Its status, and the message that it wrote."""
    running = await proxy()
    body = b'{"error":{"message":"says the engine","type":"t","code":"c"}}'
    running.upstream.script.append([upstreams.response(body, status)])
    async with client_of(running, max_retries=0) as client:
        with pytest.raises(error, match="says the engine") as caught:
            await hello(client)
    assert (caught.value.status_code, caught.value.code) == (status, "c")


@pytest.mark.parametrize("status", [401, 403])
async def test_the_upstreams_refusal_of_our_key_is_no_users_fault(
    proxy: Launch, status: int
) -> None:
    """Nobody shall change a key that is right."""
    running = await proxy()
    running.upstream.reply = [upstreams.response(b'{"error":"Unauthorized"}', status)]
    async with client_of(running, max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await hello(client)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_error")


async def test_the_upstreams_429_is_retried_as_it_says(proxy: Launch) -> None:
    """The SDK sees its Retry-After, and then the answer."""
    running = await proxy()
    slow_down = b'{"error":{"message":"slow down","code":"rate_limit_exceeded"}}'
    headers = [(b"Content-Type", b"application/json"), (b"Retry-After", b"0.001")]
    running.upstream.script.append([upstreams.response(slow_down, 429, headers)])
    async with client_of(running, max_retries=1) as client:
        assert await hello(client)
    assert len(running.upstream.requests) == 2
    bodies = {request.body for request in running.upstream.requests}
    assert len(bodies) == 1


async def test_503_where_nobody_listens(proxy: Launch) -> None:
    """The code and the time to wait."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = await proxy(upstream_url=f"http://127.0.0.1:{port}")
    async with client_of(running, max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await hello(client)
    assert (caught.value.status_code, caught.value.code) == (503, "upstream_unavailable")
    assert caught.value.response.headers["retry-after"] == "5"


async def test_503_where_all_places_are_taken(proxy: Launch) -> None:
    """The one who waits for an answer is not disturbed by it."""
    running = await proxy(max_inflight=1, queue_size=0)
    answer = asyncio.Event()
    running.upstream.reply = [answer, upstreams.response(upstreams.COMPLETION)]
    async with client_of(running, max_retries=0) as client:
        first = asyncio.create_task(hello(client))
        await running.upstream.request(0)
        with pytest.raises(openai.InternalServerError) as caught:
            await hello(client)
        answer.set()
        assert await first
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
    assert float(caught.value.response.headers["retry-after"]) > 0


async def test_504_where_the_engine_is_silent(proxy: Launch) -> None:
    """The proxy's time-out is a status, not a broken connection."""
    running = await proxy(first_byte_timeout_seconds=0.2)
    running.upstream.reply = [End.SILENCE]
    async with client_of(running, max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await hello(client)
    assert (caught.value.status_code, caught.value.code) == (504, "upstream_timeout")


async def test_a_time_out_of_the_client_leaves_nothing_running(proxy: Launch) -> None:
    """Each try of the SDK is one request at the engine, and is given up there before the next."""
    running = await proxy()
    running.upstream.reply = [End.SILENCE]
    async with client_of(running, max_retries=1, timeout=0.3) as client:
        with pytest.raises(openai.APITimeoutError):
            await hello(client)
    await running.upstream.all_closed(within=1.0)
    await running.log.nth(1)
    assert len(running.upstream.requests) == 2
    assert [r["outcome"] for r in running.log.requests()] == ["client_disconnected"] * 2


async def test_a_cancelled_call_stops_the_model(proxy: Launch) -> None:
    """While the answer is pending: what asyncio.timeout and a closed tab of a notebook do."""
    running = await proxy()
    running.upstream.reply = [End.SILENCE]
    async with client_of(running) as client:
        call = asyncio.create_task(hello(client))
        await running.upstream.request(0)
        call.cancel()
        await running.upstream.connection_closed(0, within=1.0)
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (await running.log.nth(0))["outcome"] == "client_disconnected"
    assert len(running.log.requests()) == 1
    assert len(running.upstream.requests) == 1


async def test_closing_a_stream_stops_the_model(proxy: Launch) -> None:
    """What a user's stop button does."""
    running = await proxy()
    running.upstream.reply = [
        upstreams.SSE_HEAD,
        event(completion_chunk({"content": "a"})),
        End.SILENCE,
    ]
    async with client_of(running) as client, streamed(client) as stream:
        assert (await anext(aiter(stream))).choices
        await stream.close()
        await running.upstream.connection_closed(0, within=1.0)
    assert (await running.log.nth(0))["outcome"] == "client_disconnected"


@pytest.mark.parametrize("end", [End.RESET, End.FIN], ids=["RST", "FIN"])
async def test_a_stream_that_dies_does_not_look_complete(proxy: Launch, end: End) -> None:
    """The SDK raises; no [DONE] was invented, and nothing was asked twice."""
    running = await proxy()
    running.upstream.reply = [upstreams.SSE_HEAD, event(completion_chunk({"content": "a"})), end]
    async with client_of(running) as client, streamed(client) as stream:
        with pytest.raises(Exception, match=r"(?i)peer closed|connection") as caught:
            [chunk async for chunk in stream]
    assert "RemoteProtocolError" in (type(caught.value).__name__, *_causes(caught.value))
    assert (await running.log.nth(0))["outcome"] == "upstream_error"
    assert len(running.log.requests()) == 1
    assert len(running.upstream.requests) == 1


async def test_comments_are_no_chunks(proxy: Launch) -> None:
    """A stream that was kept alive looks to the SDK as one that was not."""
    running = await proxy(sse_keepalive_seconds=0.05)
    on = asyncio.Event()
    head, *chunks = upstreams.STREAMED_COMPLETION
    running.upstream.reply = [head, chunks[0], on, *chunks[1:]]
    async with client_of(running) as client, streamed(client) as stream:
        first = await anext(aiter(stream))
        asyncio.get_running_loop().call_later(0.3, on.set)
        rest = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in [first, *rest])
    assert (text, len(rest)) == ("Hello.", 3)
    texts = [part.split(b"\r\n")[1] for part in chunks if isinstance(part, bytes)]
    more = (await running.log.nth(0))["bytes_out"] - len(b"".join(texts))
    assert more > 0
    assert more % len(COMMENT) == 0


@pytest.mark.parametrize("comments_first", [False, True])
async def test_an_error_event_is_raised(proxy: Launch, comments_first: bool) -> None:
    """The engine's own in the middle of its stream, and ours for one that was begun without it."""
    running = await proxy(sse_keepalive_seconds=0.05, sse_commit_seconds=0.1)
    error = b'{"error":{"message":"out of pages","type":"t","code":"c"}}'
    answer = asyncio.Event()
    running.upstream.reply = (
        [answer, upstreams.response(error, 500)]
        if comments_first
        else [upstreams.SSE_HEAD, event(error.decode()), upstreams.LAST_CHUNK]
    )
    async with client_of(running) as client, streamed(client) as stream:
        assert stream.response.status_code == 200
        answer.set()
        with pytest.raises(openai.APIError, match="out of pages"):
            [chunk async for chunk in stream]
    assert len(running.upstream.requests) == 1


@asynccontextmanager
async def streamed(client: openai.AsyncOpenAI) -> AsyncIterator[openai.AsyncStream[Any]]:
    """The smallest stream."""
    stream: Any = await hello(client, stream=True)
    async with stream:
        yield stream


def _causes(error: BaseException) -> list[str]:
    """The classes of what it was raised from."""
    cause = error.__cause__
    return [] if cause is None else [type(cause).__name__, *_causes(cause)]
