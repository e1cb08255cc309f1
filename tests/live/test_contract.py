"""The tables of the contract in front of real engines: the same rows as in `tests/contract`.

What is refused does not reach the engine, not even by a byte. What passes reaches it as the table
says, and the engine has no trouble with it: whatever it thinks of the request, it answers.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.endpoints import ENDPOINTS, Endpoint
from tests.contract.tables import auth, caps, endpoints, errors, headers, untouched
from tests.harness.client import RawResponse, request_bytes
from tests.harness.engines import Engine
from tests.harness.figures import Figures
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Running
from tests.harness.tap import tap_of
from tests.live.conftest import Live

OUTPUT_TOKENS = 8
"""The cap where a row asks for as much as it gets: the model is real, if small."""

COUNT = "Rows of the contract"


class Tally:
    """The rows that were compared with an engine, for the figures."""

    def __init__(self, figures: Figures, engine: Engine) -> None:
        self._figures = figures
        self._engine = engine

    def add(self, column: str) -> None:
        """One row more."""
        row = self._figures.tables.get(COUNT, {}).get(self._engine.name, {})
        self._figures.add(COUNT, self._engine.name, **{column: int(row.get(column, 0)) + 1})


@pytest.fixture
def tally(figures: Figures, engine: Engine) -> Tally:
    """Counts what has been compared."""
    return Tally(figures, engine)


async def assert_kept_away(
    running: Running, response: RawResponse, status: int, code: str, tally: Tally
) -> None:
    """It is refused in four ways, and the engine has not even been connected to."""
    await running.assert_refused(response, status, code)
    assert tap_of(running).heard_nothing
    tally.add("refused")


# What llama.cpp calls its own fault: a model that makes no embeddings, tools without a type.
OWN_FAULTS = [b"This server does not support", b"Failed to parse tools"]


async def assert_arrived(
    running: Running, response: RawResponse, body: bytes, tally: Tally
) -> RawResponse:
    """The engine got exactly this body, and its answer is whole and is its own."""
    (request,) = running.upstream.requests
    assert hashlib.sha256(request.body).digest() == hashlib.sha256(body).digest(), request.body
    assert response.complete
    assert bytes(tap_of(running).answers[0]).startswith(b"HTTP/1.1 %d " % response.status)
    line = await running.log.of(response)
    outcome = "ok" if response.status < 500 else "upstream_error"
    assert (line["outcome"], line["upstream_status"]) == (outcome, response.status)
    assert response.status < 500 or any(words in response.body for words in OWN_FAULTS)
    tally.add("passed")
    return response


def bounded(body: bytes, field: bytes, tokens: int = OUTPUT_TOKENS) -> bytes:
    """The body with a bound spliced in, as the proxy does it."""
    return body.replace(b"{", b'{"%b":%d,' % (field, tokens), 1)


# Promise 1: nobody unknown gets in.


@pytest.mark.parametrize("path", auth.PATHS)
async def test_a_stranger_reaches_no_path(live: Live, tally: Tally, path: str) -> None:
    """Whatever the engine would have there."""
    running = await live()
    for method in ("GET", "POST"):
        response = await running.ask(method, path)
        assert (response.status, response.header(b"www-authenticate")) == (401, b"Bearer")
    assert tap_of(running).heard_nothing
    tally.add("refused")


@pytest.mark.parametrize("fields", auth.NO_CREDENTIAL)
async def test_no_usable_credential(
    live: Live, tally: Tally, fields: list[tuple[str, str]]
) -> None:
    """401."""
    running = await live()
    response = await running.ask("POST", CHAT, [*fields, *JSON.items()], CHAT_BODY)
    await assert_kept_away(running, response, 401, "missing_api_key", tally)


@pytest.mark.parametrize("key", auth.WRONG_KEYS)
async def test_a_wrong_key(live: Live, tally: Tally, key: str) -> None:
    """403."""
    running = await live()
    response = await running.chat(Authorization=f"Bearer {key}")
    await assert_kept_away(running, response, 403, "invalid_api_key", tally)


@pytest.mark.parametrize("value", auth.GOOD_BEARERS)
async def test_the_key_gets_in(live: Live, tally: Tally, value: str) -> None:
    """And stays here."""
    running = await live()
    response = await running.chat(Authorization=value)
    await assert_arrived(running, response, CHAT_BODY, tally)
    assert response.status == 200
    assert KEY.encode() not in bytes(running.upstream.connections[0].received)


@pytest.mark.parametrize(("fields", "status"), auth.ANTHROPIC)
async def test_anthropic_routes(
    live: Live, tally: Tally, fields: list[tuple[str, str]], status: int
) -> None:
    """With either credential."""
    running = await live()
    response = await running.ask("POST", "/v1/messages", [*fields, *JSON.items()], CHAT_BODY)
    if status == 200:
        await assert_arrived(running, response, CHAT_BODY, tally)
        assert response.status == 200
        assert response.json()["type"] == "message"
        return
    code = {401: "missing_api_key", 403: "invalid_api_key"}[status]
    await assert_kept_away(running, response, status, code, tally)


# Promise 1 again: nothing of the engine is reachable but the table.


@pytest.mark.parametrize("path", endpoints.ELSEWHERE)
async def test_everything_else_is_404(live: Live, tally: Tally, path: str) -> None:
    """Also what this engine serves there."""
    running = await live()
    response = await running.ask("GET", path, BEARER)
    await assert_kept_away(running, response, 404, "not_found", tally)


@pytest.mark.parametrize(("method", "path", "allow"), endpoints.OTHER_METHODS)
async def test_another_method(
    live: Live, tally: Tally, method: str, path: str, allow: bytes
) -> None:
    """405."""
    running = await live()
    response = await running.ask(method, path, BEARER)
    assert (response.status, response.header(b"allow")) == (405, allow)
    assert tap_of(running).heard_nothing
    tally.add("refused")


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: row.name)
async def test_each_endpoint(live: Live, tally: Tally, row: Endpoint) -> None:
    """Reaches the engine's own path with the client's exact body."""
    running = await live(endpoints=row.name)
    body = endpoints.BODIES.get(row.name, CHAT_BODY) if row.body is not None else b""
    response = await running.ask(row.method, row.path.decode(), {**BEARER, **JSON}, body)
    await assert_arrived(running, response, body, tally)
    assert running.upstream.requests[0].target == row.path


@pytest.mark.parametrize("query", endpoints.QUERIES)
async def test_the_query(live: Live, tally: Tally, query: str) -> None:
    """As it came."""
    running = await live()
    response = await running.ask("POST", f"{CHAT}?{query}", {**BEARER, **JSON}, CHAT_BODY)
    await assert_arrived(running, response, CHAT_BODY, tally)
    assert running.upstream.requests[0].target == f"{CHAT}?{query}".encode()


@pytest.mark.parametrize("query", endpoints.QUERIES_WITH_KEYS)
async def test_a_key_in_the_query(live: Live, tally: Tally, query: str) -> None:
    """400."""
    running = await live()
    response = await running.ask("POST", f"{CHAT}?{query}", {**BEARER, **JSON}, CHAT_BODY)
    await assert_kept_away(running, response, 400, "key_in_query", tally)


# Promise 2: no request costs more than its caps.

BOUNDS = {
    "chat.completions": b"max_tokens",
    "completions": b"max_tokens",
    "responses": b"max_output_tokens",
    "messages": b"max_tokens",
}


@pytest.mark.parametrize(("endpoint", "place"), caps.AT_THE_CAP)
async def test_one_character_too_many(
    live: Live, tally: Tally, endpoint: str, place: Callable[[int], dict[str, Any]]
) -> None:
    """400."""
    running = await live()
    body = json.dumps(place(caps.CAP + 1)).encode()
    response = await running.ask("POST", caps.PATHS[endpoint], {**BEARER, **JSON}, body)
    await assert_kept_away(running, response, 400, "context_length_exceeded", tally)


@pytest.mark.parametrize(("endpoint", "place"), caps.AT_THE_CAP)
async def test_as_many_characters_as_there_may_be(
    live: Live, tally: Tally, endpoint: str, place: Callable[[int], dict[str, Any]]
) -> None:
    """They arrive with a bound, and the engine says no more than that."""
    running = await live(max_output_tokens=OUTPUT_TOKENS)
    body = json.dumps(place(caps.CAP)).encode()
    response = await running.ask("POST", caps.PATHS[endpoint], {**BEARER, **JSON}, body)
    bound = BOUNDS.get(endpoint)
    share = OUTPUT_TOKENS // (2 if endpoint == "completions" else 1)  # which has two prompts
    expected = body if bound is None else bounded(body, bound, share)
    await assert_arrived(running, response, expected, tally)
    if response.status == 200 and bound is not None:
        usage = response.json()["usage"]
        said = usage.get("completion_tokens", usage.get("output_tokens"))
        assert said <= OUTPUT_TOKENS


@pytest.mark.parametrize(("endpoint", "body", "code"), caps.WAYS_AROUND)
async def test_ways_around_the_caps(
    live: Live, tally: Tally, endpoint: str, body: dict[str, Any], code: str
) -> None:
    """400, each with its code."""
    running = await live()
    raw = json.dumps(body).encode()
    response = await running.ask("POST", caps.PATHS[endpoint], {**BEARER, **JSON}, raw)
    await assert_kept_away(running, response, 400, code, tally)


@pytest.mark.parametrize(("body", "code", "status"), caps.NO_STRICT_JSON)
async def test_bodies_that_are_no_strict_json(
    live: Live, tally: Tally, body: bytes, code: str, status: int
) -> None:
    """Whatever the engine's own parser would make of them."""
    running = await live()
    await assert_kept_away(running, await running.chat(body), status, code, tally)


@pytest.mark.parametrize(("encoding", "status"), caps.ENCODINGS)
async def test_encodings(live: Live, tally: Tally, encoding: str, status: int) -> None:
    """Only what is not one passes."""
    running = await live()
    response = await running.chat(**{"Content-Encoding": encoding})
    if status == 200:
        await assert_arrived(running, response, CHAT_BODY, tally)
    else:
        await assert_kept_away(running, response, status, "unsupported_media_type", tally)


@pytest.mark.parametrize(("content_type", "status"), caps.CONTENT_TYPES)
async def test_content_types(
    live: Live, tally: Tally, content_type: str | None, status: int
) -> None:
    """Only JSON passes, and with its clamp."""
    running = await live(max_output_tokens=OUTPUT_TOKENS)
    fields = {**BEARER, **({"Content-Type": content_type} if content_type else {})}
    body = CHAT_BODY.replace(b"16}", b"99999}")
    response = await running.ask("POST", CHAT, fields, body)
    if status == 200:
        expected = body.replace(b"99999", b"%d" % OUTPUT_TOKENS)
        answer = await assert_arrived(running, response, expected, tally)
        assert answer.json()["usage"]["completion_tokens"] <= OUTPUT_TOKENS
    else:
        await assert_kept_away(running, response, status, "unsupported_media_type", tally)


async def test_eight_prompts_share_the_cap(live: Live, tally: Tally) -> None:
    """The engine's own count over all of them is within it."""
    running = await live(max_output_tokens=64)
    body = json.dumps({"model": "m", "prompt": ["a"] * 8, "max_tokens": 64}).encode()
    response = await running.ask("POST", "/v1/completions", {**BEARER, **JSON}, body)
    await assert_arrived(running, response, body.replace(b"64", b"8"), tally)
    assert response.status == 200
    # llama.cpp reports that of one prompt.
    assert response.json()["usage"]["completion_tokens"] <= 64


# Promise 3: what isn't governed isn't touched.


async def test_an_odd_body(live: Live, tally: Tally) -> None:
    """Byte for byte."""
    running = await live()
    await assert_arrived(running, await running.chat(untouched.ODD), untouched.ODD, tally)


async def test_after_a_clamp_only_the_value_differs(live: Live, tally: Tally) -> None:
    """And the response says what was done."""
    running = await live(max_output_tokens=OUTPUT_TOKENS)
    body = untouched.ODD.replace(b'"max_tokens":7', b'"max_tokens" : 99999 ')
    response = await running.chat(body)
    await assert_arrived(running, response, body.replace(b"99999", b"8"), tally)
    assert response.header(b"x-bulwark-clamped") == b"max_tokens 99999 -> 8"


async def test_a_missing_bound_is_spliced_in(live: Live, tally: Tally) -> None:
    """Behind the opening brace."""
    running = await live(max_output_tokens=OUTPUT_TOKENS)
    body = untouched.ODD.replace(b'"max_tokens":7,', b"")
    await assert_arrived(running, await running.chat(body), bounded(body, b"max_tokens"), tally)


@pytest.mark.parametrize("tools", untouched.TOOLS)
async def test_tools_are_never_dropped(live: Live, tally: Tally, tools: bytes) -> None:
    """What this engine has against them, the client hears from it."""
    running = await live()
    body = CHAT_BODY.replace(b'"max_tokens"', tools + b',"max_tokens"')
    await assert_arrived(running, await running.chat(body), body, tally)


async def test_a_chunked_body(live: Live, tally: Tally) -> None:
    """Arrives with its length."""
    running = await live()
    client = await running.connect()
    head = request_bytes("POST", CHAT, {**BEARER, **JSON, "Transfer-Encoding": "chunked"})
    await client.send(head + b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(CHAT_BODY), CHAT_BODY))
    response = await client.read_response()
    await assert_arrived(running, response, CHAT_BODY, tally)
    assert response.status == 200


# What crosses in the head, and what a refusal looks like.


async def test_what_is_listed_crosses(live: Live, tally: Tally) -> None:
    """In its order, with repeats and spelling."""
    running = await live()
    fields = [*BEARER.items(), *JSON.items(), *headers.CROSSING]
    response = await running.ask("POST", CHAT, fields, CHAT_BODY)
    await assert_arrived(running, response, CHAT_BODY, tally)
    (request,) = running.upstream.requests
    names = {name.lower().encode() for name, _ in headers.CROSSING}
    assert [field for field in request.headers if field[0] in names] == [
        (name.lower().encode(), value.encode("latin-1")) for name, value in headers.CROSSING
    ]


async def test_no_secret_crosses(live: Live, tally: Tally) -> None:
    """Nor what the engine would believe: a rank, a priority, an id."""
    running = await live()
    fields = [*headers.STAYING, *JSON.items()]
    response = await running.ask("POST", CHAT, fields, CHAT_BODY)
    await assert_arrived(running, response, CHAT_BODY, tally)
    raw = bytes(running.upstream.connections[0].received)
    assert b"canary" not in raw
    assert KEY.encode() not in raw


async def test_an_answer_has_these_fields_and_no_others(live: Live, tally: Tally) -> None:
    """The engine's server, date and whatever else it sends stay behind."""
    running = await live()
    response = await running.chat()
    await assert_arrived(running, response, CHAT_BODY, tally)
    assert sorted(name for name, _ in response.headers) == [
        b"content-length",
        b"content-type",
        b"date",
        b"x-content-type-options",
        b"x-request-id",
    ]


@pytest.mark.parametrize(("request_", "status", "code"), errors.REFUSALS)
async def test_refusals(live: Live, tally: Tally, request_: bytes, status: int, code: str) -> None:
    """In one shape."""
    running = await live(max_body_bytes=1024)
    client = await running.connect()
    await client.send(request_)
    response = await client.read_response()
    await assert_kept_away(running, response, status, code, tally)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("request_", "status", "code"), errors.BELOW_ASGI)
async def test_refusals_below_asgi(
    live: Live, tally: Tally, request_: bytes, status: int, code: str
) -> None:
    """In the same."""
    running = await live()
    client = await running.connect()
    await client.send(request_)
    response = await client.read_response()
    assert (response.status, response.json()["error"]["code"]) == (status, code)
    assert tap_of(running).heard_nothing
    tally.add("refused")
