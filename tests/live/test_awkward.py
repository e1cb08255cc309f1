"""Answers that are not what an SDK expects: they come out as they are, or as an error of ours.

From vLLM with a key of its own and from `transformers serve`, both real; and, byte by byte, what
those that are hard to provoke were seen to send. Each is also read by the OpenAI SDK, because an
error that nobody can read is half an error.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.harness import upstream as upstreams
from tests.harness.engines import Engine, Engines, Kind, cache, free_port
from tests.harness.figures import Figures
from tests.harness.running import BEARER, CHAT, JSON, KEY, Launch, Running
from tests.harness.tap import tap_of
from tests.harness.upstream import SSE_HEAD, End, Script, chunk
from tests.live.conftest import ENGINE_KEY, Live, available, not_tested

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4}'
HELLO: Any = [{"role": "user", "content": "hi"}]
TITLE = "Awkward answers"


def sdk(running: Running) -> openai.AsyncOpenAI:
    """The SDK as people set it up, without its retries."""
    base_url = f"http://127.0.0.1:{running.port}/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0)


# vLLM with a key.


@pytest.mark.parametrize("key", ["sk-not-this-one", None], ids=["a wrong key", "no key"])
async def test_a_key_that_the_engine_refuses_is_a_fault_of_ours(
    live: Live, guarded: Engine, key: str | None, figures: Figures
) -> None:
    """Directly a 401 whose error is a string; through the proxy a 502 that gives nothing away."""
    direct = await guarded.ask("POST", CHAT, BODY)
    assert (direct.status, direct.body) == (401, b'{"error":"Unauthorized"}')
    running = await live(behind=guarded, upstream_api_key=key)
    response = await running.chat(BODY)
    error = response.json()["error"]
    assert (response.status, error["code"]) == (502, "upstream_error")
    for secret in (b"Unauthorized", b"sk-not-this-one", KEY.encode(), b"127.0.0.1"):
        assert secret not in response.body
    assert "sk-not-this-one" not in running.log.text
    async with sdk(running) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="m", messages=HELLO)
    assert caught.value.status_code == 502
    assert error["message"] in caught.value.message
    figures.add(TITLE, "vLLM: a key that it refuses", direct="401, a string", through="502")


async def test_the_engine_is_shown_its_own_key(live: Live, guarded: Engine) -> None:
    """And never the client's."""
    running = await live(behind=guarded, upstream_api_key=ENGINE_KEY)
    assert (await running.chat(BODY)).status == 200
    tap = tap_of(running)
    assert tap.requests[0].header(b"authorization") == f"Bearer {ENGINE_KEY}".encode()
    assert KEY.encode() not in bytes(tap.connections[0].received)


async def test_an_engine_with_a_key_is_ready(live: Live, guarded: Engine) -> None:
    """Its /health wants none, and is shown none: who answers there need not be it."""
    running = await live(behind=guarded, upstream_api_key=ENGINE_KEY, monitor_transport=None)
    assert (await running.ask_admin("GET", "/readyz")).status == 200
    assert tap_of(running).requests[0].header(b"authorization") is None


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        pytest.param("POST", "/invocations", BODY, id="whole chats without a key"),
        pytest.param("POST", "/tokenize", b'{"model":"m","prompt":"hi"}', id="the tokenizer"),
        pytest.param("GET", "/metrics", b"", id="the metrics"),
        pytest.param("GET", "/load", b"", id="the load"),
    ],
)
async def test_what_the_engine_leaves_open_the_proxy_does_not(
    live: Live, guarded: Engine, method: str, target: str, body: bytes
) -> None:
    """The engine's own key guards what begins with /v1 and little more."""
    assert (await guarded.ask(method, target, body)).status == 200
    running = await live(behind=guarded, upstream_api_key=ENGINE_KEY)
    assert (await running.ask(method, target, JSON, body)).status == 401
    assert (await running.ask(method, target, {**BEARER, **JSON}, body)).status == 404
    assert tap_of(running).heard_nothing


# transformers serve.


@pytest.fixture(scope="module")
def transformers(engines: Engines, figures: Figures) -> Iterator[Engine]:
    """`transformers serve`, from what vLLM has brought along."""
    available("vllm-stub")
    packages = cache() / "transformers" / "packages"
    if not packages.exists():
        not_tested(figures, "transformers serve", "install-transformers")
        pytest.skip("it is not installed: scripts/engines/install-transformers does that")
    model = cache() / "vllm" / "tiny-llama"
    kind = Kind(
        name="transformers",
        installer="install-transformers",
        home="vllm",
        command=(
            *("{home}/venv/bin/transformers", "serve", str(model)),
            *("--host", "127.0.0.1", "--port", "{port}", "--device", "cpu", "--dtype", "float32"),
        ),
        running="",
        waiting="",
        seats=1,
        environment={
            "PYTHONPATH": str(packages),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
    engine = Engine(kind, free_port(), engines.folder / "transformers.log")
    engine.start()
    yield engine
    engine.kill()


def served_model() -> str:
    """The only name that it answers to."""
    return str(cache() / "vllm" / "tiny-llama")


async def test_a_stream_without_done(live: Live, transformers: Engine, figures: Figures) -> None:
    """It arrives as it was sent, and the SDK sees its end."""
    running = await live(behind=transformers, engine="transformers", max_output_tokens=9)
    async with sdk(running) as client:
        stream = await client.chat.completions.create(
            model=served_model(), messages=HELLO, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 9
    assert b"[DONE]" not in bytes(tap_of(running).answers[0])
    assert tap_of(running).requests[0].json() == {
        "model": served_model(), "messages": HELLO, "stream": True, "max_tokens": 9,
    }  # fmt: skip
    figures.add(TITLE, "transformers: a stream without [DONE]", direct="200", through="200")


@pytest.mark.parametrize(
    ("method", "target", "fields", "status", "body"),
    [
        pytest.param(
            "GET", "/v1/models", "", 500, b"Internal Server Error", id="a plain 500 for models"
        ),
        pytest.param(
            "POST",
            CHAT,
            '"messages":"MODEL","max_tokens":1',
            None,
            b"messages must be a list",
            id="a body that we refuse first",
        ),
        pytest.param(
            "POST",
            CHAT,
            '"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"frobnicate":1',
            422,
            b"""{"detail":"Unexpected fields in the request: {'frobnicate'}"}""",
            id="a 422 with a detail",
        ),
    ],
)
async def test_errors_of_transformers_arrive_as_they_are(
    live: Live,
    transformers: Engine,
    figures: Figures,
    *,
    method: str,
    target: str,
    fields: str,
    status: int | None,
    body: bytes,
) -> None:
    """Their type says what they are, and nobody may take them for something else."""
    sent = f'{{"model":"{served_model()}",{fields}}}'.encode() if fields else b""
    running = await live(behind=transformers, engine="transformers")
    response = await running.ask(method, target, {**BEARER, **JSON}, sent)
    if status is None:
        assert response.status == 400
        assert body in response.body
        assert tap_of(running).heard_nothing
        return
    direct = await transformers.ask(method, target, sent)
    assert (direct.status, direct.body) == (status, body)
    assert (response.status, response.body) == (status, body)
    assert response.header(b"content-type") == direct.header(b"content-type")
    assert response.header(b"x-content-type-options") == b"nosniff"
    figures.add(TITLE, f"transformers: {method} {target}", direct=str(status), through=str(status))


# What is hard to provoke, as it was seen.


@dataclass(frozen=True)
class Awkward:
    """One answer.

    Attributes:
        script: What the engine sends.
        status: What the client gets with it.
        body: All of it.
        raised: What the SDK makes of it; None where it reads it to the end.
        says: What the SDK's error then says.
        complete: Whether the transfer ends as it should.
    """

    script: Script
    status: int
    body: bytes
    raised: type[Exception] | None
    says: str = ""
    complete: bool = True


def whole(status: int, content_type: bytes | None, body: bytes) -> Script:
    """An answer in one piece."""
    headers = [(b"date", b"Mon, 30 Nov 2026 08:00:00 GMT"), (b"server", b"uvicorn")]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    return [upstreams.response(body, status, headers)]


def events(*pieces: bytes, end: Script = (b"0\r\n\r\n",)) -> Script:
    """A stream, an event a chunk."""
    return [SSE_HEAD, *(chunk(piece) for piece in pieces), *end]


def delta(text: str) -> bytes:
    """A piece of a chat as vLLM sends it."""
    return (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
        b'"choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":null,'
        b'"token_ids":null}]}\n\n' % text.encode()
    )


JSON_TYPE = b"application/json"
DIED = (
    b'data: {"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the '
    b'root cause.","type":"InternalServerError","param":null,"code":500}}\n\n'
)
DONE = b"data: [DONE]\n\n"
SCALING = b'{"error":"The model is currently scaling. Please try again later."}'
NO_MODEL = (
    b'{"error":{"message":"The model `x` does not exist.","type":"invalid_request_error",'
    b'"param":"model","code":"model_not_found"}}'
)

AWKWARD = [
    pytest.param(
        Awkward(whole(503, JSON_TYPE, SCALING), 503, SCALING, openai.InternalServerError, "scaling"),
        id="vLLM: a 503 whose error is a string",
    ),
    pytest.param(
        Awkward(events(delta("Hel"), DIED, DONE), 200, delta("Hel") + DIED + DONE, openai.APIError, "EngineCore"),
        id="vLLM: an error in the middle of a stream",
    ),
    pytest.param(
        Awkward(events(DIED, DONE), 200, DIED + DONE, openai.APIError, "EngineCore"),
        id="vLLM: an error in place of a stream",
    ),
    pytest.param(
        Awkward(events(delta("Hel"), end=[End.FIN]), 200, delta("Hel"), openai.APIConnectionError, "Connection", complete=False),
        id="vLLM: a stream that is cut off",
    ),
    pytest.param(
        Awkward(whole(500, b"text/plain; charset=utf-8", b"Internal Server Error"), 500, b"Internal Server Error", openai.InternalServerError, "Internal Server Error"),
        id="Starlette: a plain 500",
    ),
    pytest.param(
        Awkward(whole(400, JSON_TYPE, b'{"detail":"There was an error parsing the body"}'), 400, b'{"detail":"There was an error parsing the body"}', openai.BadRequestError, "parsing the body"),
        id="FastAPI: a detail for an error",
    ),
    pytest.param(
        Awkward(whole(404, None, b""), 404, b"", openai.NotFoundError, "404"),
        id="vLLM's Rust front end: an empty 404",
    ),
    pytest.param(
        Awkward(whole(404, JSON_TYPE, NO_MODEL), 404, NO_MODEL, openai.NotFoundError, "does not exist"),
        id="vLLM's Rust front end: a code that is a word",
    ),
    pytest.param(
        Awkward(events(delta("Hel"), delta("lo.")), 200, delta("Hel") + delta("lo."), None),
        id="transformers: a stream without [DONE]",
    ),
    pytest.param(
        Awkward(events(delta("Hel") + delta("lo."), b"\n", DONE), 200, delta("Hel") + delta("lo.") + b"\n" + DONE, None),
        id="two events in a piece, and an empty line more",
    ),
]  # fmt: skip


@pytest.mark.parametrize("awkward", AWKWARD)
async def test_an_awkward_answer_comes_out_well(
    proxy: Launch, awkward: Awkward, figures: Figures, request: pytest.FixtureRequest
) -> None:
    """Byte by byte as it was sent, with its status; the SDK says what is in it."""
    running = await proxy()
    running.upstream.reply = awkward.script
    streams = b"event-stream" in b"".join(step for step in awkward.script if type(step) is bytes)
    body = BODY.replace(b"{", b'{"stream":true,', 1) if streams else BODY
    response = await running.chat(body)
    assert (response.status, response.body) == (awkward.status, awkward.body)
    assert response.complete == awkward.complete
    async with sdk(running) as client:
        read = functools.partial(_read, client, streams=streams)
        if awkward.raised is None:
            assert await read() == "Hello."
        else:
            with pytest.raises(awkward.raised) as caught:
                await read()
            assert awkward.says in _said(caught.value)
    if not awkward.complete:
        assert (await running.log.of(response))["outcome"] == "upstream_error"
    figures.add(
        TITLE,
        request.node.callspec.id,
        through=str(response.status),
        sdk=awkward.raised.__name__ if awkward.raised else "reads it",
    )


def _said(error: Exception) -> str:
    """What a program can learn from the SDK's error; its text may leave the answer's out."""
    answer = error.response.text if isinstance(error, openai.APIStatusError) else ""
    return f"{error} {answer}"


async def _read(client: openai.AsyncOpenAI, *, streams: bool) -> str:
    if not streams:
        return str(await client.chat.completions.create(model="m", messages=HELLO))
    stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


OPENMETRICS = (
    b"# HELP vllm_num_requests_running Requests in the batch.\n"
    b"# TYPE vllm_num_requests_running gauge\nvllm_num_requests_running 0\n# EOF\n"
)


@pytest.mark.parametrize(
    ("script", "ready"),
    [
        pytest.param(whole(200, None, b""), True, id="an empty 200"),
        pytest.param(whole(404, None, b""), True, id="an empty 404, of one that serves elsewhere"),
        pytest.param(
            whole(200, b"application/openmetrics-text; version=1.0.0; charset=utf-8", OPENMETRICS),
            True,
            id="OpenMetrics",
        ),
        pytest.param(
            whole(503, JSON_TYPE, b'{"error":{"message":"Loading model"}}'),
            False,
            id="a model that loads",
        ),
        pytest.param([End.FIN], False, id="nothing"),
    ],
)
async def test_readiness_does_not_mind_the_form_of_the_answer(
    proxy: Launch, script: Script, ready: bool
) -> None:
    """Whoever answers and does not say 5xx serves."""
    async with upstreams.serve() as upstream:
        upstream.reply = script
        running = await proxy(upstream_url=upstream.url, monitor_transport=None)
        response = await running.ask_admin("GET", "/readyz")
    assert response.status == (200 if ready else 503)


async def test_the_monitor_asks_for_health_and_metrics(live: Live, guarded: Engine) -> None:
    """And for nothing else: neither wants a key of a real one."""
    running = await live(behind=guarded, monitor_transport=None)
    assert (await running.ask_admin("GET", "/readyz")).status == 200
    assert [request.target for request in tap_of(running).requests[:2]] == [b"/health", b"/metrics"]
    assert tap_of(running).requests[1].header(b"authorization") is None
