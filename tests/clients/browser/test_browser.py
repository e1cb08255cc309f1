"""Plain fetch in a real browser, from a page of another origin, with CORS on."""

import asyncio
import json
import socket
import subprocess
from collections import Counter
from typing import Any

import pytest

from tests.clients.browser.conftest import Pages
from tests.clients.conftest import Client
from tests.harness import javascript
from tests.harness import upstream as upstreams
from tests.harness.figures import Figures
from tests.harness.hangup import stops_the_model
from tests.harness.javascript import Program
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Launch, Running

pytestmark = pytest.mark.clients

STREAMED = CHAT_BODY[:-1] + b',"stream":true}'
BODY = CHAT_BODY.decode()
FIRST = upstreams.completion_chunk({"content": "a"})


@pytest.fixture(scope="module")
def tried() -> Client:
    """Whom this module tries."""
    javascript.require_installed()
    command = [str(javascript.home() / "browser"), "--version", "--no-sandbox"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603 - ours
    name, version, *_ = said.stdout.split()
    return Client(f"fetch of {name}", version)


def chat(running: Running, page: str, **more: Any) -> dict[str, Any]:
    """A chat asked for by a script of a page."""
    url = f"http://127.0.0.1:{running.port}{CHAT}"
    return {"page": page, "url": url, "headers": {**BEARER, **JSON}, "body": BODY, **more}


def methods(running: Running) -> list[str]:
    """What the log says was asked, in order."""
    return [line["method"] for line in running.log.requests()]


async def test_a_chat(front: Launch, pages: Pages, browser: Program, model: str) -> None:
    """After a preflight, which is answered here, the page has its answer and our request id."""
    running = await front(cors_origins=pages.listed)
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]})
    (seen,) = await browser.play("ask", **chat(running, pages.listed, body=body))
    assert (seen["status"], seen["type"]) == (200, "cors")
    assert json.loads(seen["text"])["choices"][0]["message"]["content"]
    preflight, request = running.log.requests()
    assert (preflight["method"], preflight["status"]) == ("OPTIONS", 200)
    assert request["request_id"] == seen["headers"]["x-request-id"]


async def test_a_second_chat_needs_no_second_preflight(
    proxy: Launch, pages: Pages, browser: Program
) -> None:
    """The browser remembers what it may, as it is told to."""
    running = await proxy(cors_origins=pages.listed)
    seen = await browser.play("ask", **chat(running, pages.listed, times=3))
    assert [answer["status"] for answer in seen] == [200] * 3
    assert methods(running) == ["OPTIONS", "POST", "POST", "POST"]
    assert [request.method for request in running.upstream.requests] == [b"POST"] * 3


async def test_a_list_of_models(front: Launch, pages: Pages, browser: Program, model: str) -> None:
    """A GET with a key is asked for beforehand too."""
    running = await front(cors_origins=pages.listed)
    url = f"http://127.0.0.1:{running.port}/v1/models"
    (seen,) = await browser.play("ask", page=pages.listed, url=url, method="GET", headers=BEARER)
    assert model in seen["text"]
    assert methods(running) == ["OPTIONS", "GET"]


async def test_a_stream_is_live(proxy: Launch, pages: Pages, browser: Program) -> None:
    """The page has read the first piece before the model has said the second."""
    running = await proxy(cors_origins=pages.listed)
    gate = asyncio.Event()
    second = upstreams.completion_chunk({"content": "b"})
    running.upstream.reply = [
        upstreams.SSE_HEAD,
        upstreams.event(FIRST),
        gate,
        upstreams.event(second),
        upstreams.chunk(upstreams.DONE),
        upstreams.LAST_CHUNK,
    ]
    await browser.begin("read", **chat(running, pages.listed, body=STREAMED.decode()))
    assert (await browser.told()).encode() == upstreams.sse(FIRST)
    gate.set()
    rest = upstreams.sse(second) + upstreams.DONE
    read = b""
    while len(read) < len(rest):
        read += (await browser.told()).encode()
    assert read == rest
    assert await browser.result() == 200


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param("stop", id="AbortController"),
        pytest.param("closeTheTab", id="the tab is closed"),
    ],
)
async def test_leaving_a_stream_stops_the_model(
    proxy: Launch,
    pages: Pages,
    browser: Program,
    figures: Figures,
    scene: str,
) -> None:
    """The upstream's connection is closed within a second."""
    running = await proxy(cors_origins=pages.listed)
    running.upstream.reply = [upstreams.SSE_HEAD, upstreams.event(FIRST), upstreams.End.SILENCE]
    await browser.begin(scene, **chat(running, pages.listed, body=STREAMED.decode()))
    assert await browser.told() == "leaving"
    await stops_the_model(running, figures, f"Chromium, {scene}")
    await browser.result()


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        pytest.param({"headers": JSON}, (401, "missing_api_key"), id="no key"),
        pytest.param(
            {"headers": {**JSON, "Authorization": "Bearer wrong"}},
            (403, "invalid_api_key"),
            id="a wrong key",
        ),
        pytest.param(
            {"body": json.dumps({"messages": [{"role": "user", "content": "x" * 10_001}]})},
            (400, "context_length_exceeded"),
            id="a prompt over the cap",
        ),
        pytest.param({"padding": 3_000_000}, (413, "body_too_large"), id="a body over the cap"),
        pytest.param(
            {"headers": {**BEARER, "Content-Type": "text/plain"}},
            (415, "unsupported_media_type"),
            id="not JSON",
        ),
        pytest.param(
            {"headers": {**BEARER, **JSON, "X-Long": "x" * 40_000}},
            (431, "head_too_large"),
            id="a head over its limit, which no application sees",
        ),
    ],
)
async def test_a_page_can_read_why(
    proxy: Launch,
    pages: Pages,
    browser: Program,
    more: dict[str, Any],
    wanted: tuple[int, str],
) -> None:
    """A refusal's status, body and request id are not hidden from the script."""
    running = await proxy(cors_origins=pages.listed)
    (seen,) = await browser.play("ask", **chat(running, pages.listed, **more))
    assert (seen.get("status"), json.loads(seen["text"])["error"]["code"]) == wanted
    assert len(seen["headers"]["x-request-id"]) == 32
    assert running.upstream.requests == []


async def test_the_headers_that_a_script_needs(
    proxy: Launch, pages: Pages, browser: Program
) -> None:
    """What was lowered, when to come back, and what the operator relays: exposed by name."""
    running = await proxy(cors_origins=pages.listed, response_headers="x-served-by")
    body = json.dumps({"messages": [], "max_tokens": 32_000})
    slow_down = upstreams.response(b"{}", 429, [(b"Retry-After", b"7")])
    served = upstreams.response(upstreams.COMPLETION, headers=[(b"X-Served-By", b"gpu-1")])
    running.upstream.script.extend([[served], [slow_down]])
    good, bad = await browser.play("ask", **chat(running, pages.listed, body=body, times=2))
    assert good["headers"]["x-bulwark-clamped"] == "max_tokens 32000 -> 4096"
    assert good["headers"]["x-served-by"] == "gpu-1"
    assert (bad["status"], bad["headers"]["retry-after"]) == (429, "7")


async def test_a_page_can_read_that_the_engine_is_away(
    front: Launch, pages: Pages, browser: Program
) -> None:
    """A fault says so and when to come back, as it does to every other client."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = await front(cors_origins=pages.listed, upstream_url=f"http://127.0.0.1:{port}")
    (seen,) = await browser.play("ask", **chat(running, pages.listed))
    assert (seen["status"], seen["headers"]["retry-after"]) == (503, "5")
    assert json.loads(seen["text"])["error"]["code"] == "upstream_unavailable"


async def test_413_is_readable(
    proxy: Launch, pages: Pages, browser: Program, figures: Figures
) -> None:
    """HF-05 for a browser: each time, though it was still sending."""
    running = await proxy(cors_origins=pages.listed)
    seen = await browser.play("ask", **chat(running, pages.listed, padding=3_000_000, times=20))
    saw = Counter(answer.get("status", answer.get("error")) for answer in seen)
    figures.add("413 read by", "fetch of Chromium, 3 MB", times=20, read=saw[413])
    assert saw == {413: 20}


@pytest.mark.parametrize("end", [upstreams.End.FIN, upstreams.End.RESET])
async def test_a_stream_that_dies_does_not_look_complete(
    proxy: Launch, pages: Pages, browser: Program, end: upstreams.End
) -> None:
    """Reading it to its end fails."""
    running = await proxy(cors_origins=pages.listed)
    running.upstream.reply = [upstreams.SSE_HEAD, upstreams.event(FIRST), end]
    (seen,) = await browser.play("ask", **chat(running, pages.listed, body=STREAMED.decode()))
    assert seen == {"error": "TypeError"}
    await running.idle()
    assert running.log.requests()[-1]["outcome"] == "upstream_error"


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_node_in_a_page(
    proxy: Launch, pages: Pages, browser: Program, streamed: bool
) -> None:
    """The SDK asks for a dozen permissions, gets them, and finds our request id."""
    running = await proxy(cors_origins=pages.listed)
    base = f"http://127.0.0.1:{running.port}"
    given = {"page": pages.listed, "base": base, "key": KEY, "streamed": streamed}
    seen = await browser.play("sdk", **given)
    assert seen["text"] == "Hello."
    preflight, request = running.log.requests()
    assert (preflight["method"], request["method"]) == ("OPTIONS", "POST")
    assert streamed or seen["id"] == request["request_id"]


# Pages that are not listed


async def test_another_page_gets_nothing(proxy: Launch, pages: Pages, browser: Program) -> None:
    """Its preflight is a request without a key, so the browser does not even ask."""
    running = await proxy(cors_origins=pages.listed)
    assert await browser.play("ask", **chat(running, pages.other)) == [{"error": "TypeError"}]
    (line,) = running.log.requests()
    assert (line["method"], line["status"]) == ("OPTIONS", 401)
    assert running.upstream.requests == []


async def test_no_page_gets_anything_unless_one_is_listed(
    proxy: Launch, pages: Pages, browser: Program
) -> None:
    """Which is the default."""
    running = await proxy()
    assert await browser.play("ask", **chat(running, pages.listed)) == [{"error": "TypeError"}]
    assert methods(running) == ["OPTIONS"]
    assert running.upstream.requests == []


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        pytest.param({}, [{"error": "TypeError"}], id="and would read the answer"),
        pytest.param(
            {"mode": "no-cors"},
            [{"status": 0, "type": "opaque", "headers": {}, "text": ""}],
            id="and does without the answer",
        ),
    ],
)
async def test_another_page_cannot_ask_without_permission(
    proxy: Launch, pages: Pages, browser: Program, more: dict[str, Any], seen: list[dict[str, Any]]
) -> None:
    """What a browser sends unasked carries no key and no JSON: it is refused and not readable."""
    running = await proxy(cors_origins=pages.listed)
    simple = {"headers": {"Content-Type": "text/plain"}}
    assert await browser.play("ask", **chat(running, pages.other, **simple, **more)) == seen
    (line,) = running.log.requests()
    assert (line["method"], line["status"], line["outcome"]) == ("POST", 401, "missing_api_key")
    assert running.upstream.requests == []
