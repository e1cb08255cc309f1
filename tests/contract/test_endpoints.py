"""Promise 1: what is not in the table cannot be reached, and what is, only in the one way."""

import pytest

from proxy.endpoints import ENDPOINTS, Endpoint
from tests.contract.tables.endpoints import (
    BODIES,
    ELSEWHERE,
    MODELS,
    OTHER_METHODS,
    QUERIES,
    QUERIES_WITH_KEYS,
)
from tests.harness.client import RawResponse
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch
from tests.harness.upstream import response

ORIGIN = "https://chat.example.org"


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: row.name)
async def test_each_endpoint_reaches_its_own_path(proxy: Launch, row: Endpoint) -> None:
    """With its method, its path and the client's exact body; under its name in log and metrics."""
    front = await proxy(endpoints=row.name)
    front.upstream.reply = [response(b'{"object":"anything"}')]
    body = BODIES.get(row.name, CHAT_BODY) if row.body is not None else b""
    answer = await front.ask(row.method, row.path.decode(), {**BEARER, **JSON}, body)
    assert (answer.status, answer.body) == (200, b'{"object":"anything"}')
    (request,) = front.upstream.requests
    assert (request.method, request.target) == (row.method.encode(), row.path)
    assert request.body == body
    line = await front.log.of(answer)
    assert (line["endpoint"], line["outcome"]) == (row.name, "ok")
    front.assert_counted(line)


@pytest.mark.parametrize(
    "path",
    ELSEWHERE,
)
async def test_everything_else_is_404(proxy: Launch, path: str) -> None:
    """For those who have a key: in JSON, with a hint, and nothing forwarded."""
    front = await proxy()
    answer = await front.ask("GET", path, {**BEARER, "Accept": "text/html"})
    await front.assert_refused(answer, 404, "not_found")
    assert "ends in /v1" in answer.json()["error"]["message"]
    assert path not in front.log.text or path == "/"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    OTHER_METHODS,
)
async def test_another_method_is_405(proxy: Launch, method: str, path: str, allow: bytes) -> None:
    """With Allow; it never reaches inference."""
    front = await proxy()
    answer = await front.ask(method, path, BEARER)
    assert (answer.status, answer.header(b"allow")) == (405, allow)
    if method != "HEAD":  # which has no body to read
        await front.assert_refused(answer, 405, "method_not_allowed")
    assert front.upstream.requests == []


async def test_a_refusal_on_an_anthropic_route_is_in_its_shape(proxy: Launch) -> None:
    """The 405 knows its row."""
    front = await proxy()
    answer = await front.ask("GET", "/v1/messages", BEARER)
    assert answer.json()["type"] == "error"
    await front.assert_refused(answer, 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("endpoints", "served"),
    [
        pytest.param("models", {"models"}, id="narrowed"),
        pytest.param("models,score,rerank", {"models", "score", "rerank"}, id="widened"),
    ],
)
async def test_the_operator_says_what_is_served(
    proxy: Launch, endpoints: str, served: set[str]
) -> None:
    """PROXY_ENDPOINTS is the whole list."""
    front = await proxy(endpoints=endpoints)
    for row in ENDPOINTS:
        answer = await front.ask("PUT", row.path.decode(), BEARER)
        assert answer.status == (405 if row.name in served else 404)


@pytest.mark.parametrize(
    "query",
    QUERIES,
)
async def test_the_query_goes_along_as_it_came(proxy: Launch, query: str) -> None:
    """Order, repeats, escapes and empty values; it is in no log."""
    front = await proxy()
    answer = await front.ask("POST", f"{CHAT}?{query}", {**BEARER, **JSON}, CHAT_BODY)
    assert answer.status == 200
    assert front.upstream.requests[0].target == f"{CHAT}?{query}".encode()
    await front.log.of(answer)
    assert query == "?" or query not in front.log.text


@pytest.mark.parametrize("query", QUERIES_WITH_KEYS)
async def test_a_key_in_the_query_is_refused(proxy: Launch, query: str) -> None:
    """Logs and histories keep queries; ours does not."""
    front = await proxy()
    answer = await front.ask("POST", f"{CHAT}?{query}", {**BEARER, **JSON}, CHAT_BODY)
    await front.assert_refused(answer, 400, "key_in_query")
    assert "canary" not in front.log.text + answer.body.decode()


async def test_a_key_in_the_query_is_no_credential(proxy: Launch) -> None:
    """It lets nobody in."""
    front = await proxy()
    answer = await front.ask("GET", f"{MODELS}?key={BEARER['Authorization'][7:]}")
    await front.assert_refused(answer, 401, "missing_api_key")


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        pytest.param("/v1/realtime", {}, 401, id="a stranger"),
        pytest.param("/v1/realtime", BEARER, 404, id="a path that is not served"),
        pytest.param(CHAT, BEARER, 405, id="a path that is"),
    ],
)
async def test_websockets_are_refused(
    proxy: Launch, path: str, key: dict[str, str], status: int
) -> None:
    """A request to become one is an ordinary request."""
    front = await proxy()
    answer = await front.ask("GET", path, {**UPGRADE, **key})
    assert (answer.status, answer.interim) == (status, [])
    assert front.upstream.requests == []


@pytest.mark.parametrize("query", ["", "?probe=1"])
async def test_the_probe_needs_no_key(proxy: Launch, query: str) -> None:
    """It says that the process serves, and asks nobody."""
    front = await proxy()
    answer = await front.ask("GET", f"/healthz{query}")
    assert (answer.status, answer.json()) == (200, {"status": "ok"})
    head = await front.ask("HEAD", f"/healthz{query}")
    assert (head.status, head.body) == (200, b"")
    assert head.header(b"content-length") == answer.header(b"content-length")
    assert front.upstream.connections == []


async def test_the_probe_answers_no_other_method(proxy: Launch) -> None:
    """405 with Allow, without a key."""
    front = await proxy()
    answer = await front.ask("POST", "/healthz", JSON, b"{}")
    assert answer.header(b"allow") == b"GET, HEAD"
    await front.assert_refused(answer, 405, "method_not_allowed")


def preflight(origin: str = ORIGIN) -> dict[str, str]:
    """What a browser asks before a page may call us."""
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }


def cors(answer: RawResponse) -> dict[bytes, bytes]:
    """The fields of a response that are about CORS."""
    return {name: value for name, value in answer.headers if name.startswith(b"access-control-")}


async def test_cors_is_off(proxy: Launch) -> None:
    """A preflight is a request without a key, and no answer lets a page read it."""
    front = await proxy()
    refused = await front.ask("OPTIONS", CHAT, preflight())
    assert refused.status == 401
    assert cors(refused) == cors(await front.chat(Origin=ORIGIN)) == {}


async def test_a_preflight_of_an_allowed_page_is_answered_here(proxy: Launch) -> None:
    """Without a key, with a request id, and nothing forwarded."""
    front = await proxy(cors_origins=ORIGIN)
    answer = await front.ask("OPTIONS", CHAT, preflight())
    assert answer.status == 200
    fields = cors(answer)
    assert fields[b"access-control-allow-origin"] == ORIGIN.encode()
    assert b"POST" in fields[b"access-control-allow-methods"]
    assert b"x-stainless-os" in fields[b"access-control-allow-headers"]
    assert b"access-control-allow-credentials" not in fields
    assert answer.header(b"x-request-id")
    assert answer.header(b"x-content-type-options") == b"nosniff"
    assert front.upstream.requests == []
    assert (await front.log.of(answer))["outcome"] == "ok"


async def test_an_allowed_page_may_read_answers_and_refusals(proxy: Launch) -> None:
    """Both, or its user never learns why."""
    front = await proxy(cors_origins=ORIGIN)
    good = await front.chat(Origin=ORIGIN)
    bad = await front.ask("POST", CHAT, {**JSON, "Origin": ORIGIN}, CHAT_BODY)
    assert (good.status, bad.status) == (200, 401)
    for answer in (good, bad):
        assert cors(answer)[b"access-control-allow-origin"] == ORIGIN.encode()
        assert b"X-Request-Id" in cors(answer)[b"access-control-expose-headers"]


async def test_an_allowed_page_may_read_what_is_relayed(proxy: Launch) -> None:
    """A field that the operator lets through is not hidden from scripts only."""
    front = await proxy(cors_origins=ORIGIN, response_headers="x-served-by")
    exposed = cors(await front.chat(Origin=ORIGIN))[b"access-control-expose-headers"]
    assert b"x-served-by" in exposed.split(b", ")


async def test_another_page_may_not(proxy: Launch) -> None:
    """It gets no permission, in either step; its preflight is a request without a key."""
    front = await proxy(cors_origins=ORIGIN)
    refused = await front.ask("OPTIONS", CHAT, preflight("https://evil.example"))
    await front.assert_refused(refused, 401, "missing_api_key")
    assert cors(refused) == {}
    answer = await front.chat(Origin="https://evil.example")
    assert b"access-control-allow-origin" not in cors(answer)
