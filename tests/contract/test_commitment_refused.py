"""An upstream that refuses the request after its stream was begun: told, and counted as a refusal."""

import asyncio
import json

import pytest

from tests.harness.committed import COMMITTING, MESSAGES, committed, told
from tests.harness.running import BEARER, CHAT, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import End, Step, response

pytestmark = pytest.mark.both_ways

OWN = {"message": "no such model", "type": "NotFoundError", "param": None, "code": 404}
PLAIN = [(b"Content-Type", b"text/plain")]


async def answered(running: Running, *reply: Step, path: str = CHAT) -> dict[str, object]:
    """The error in the one event of a stream that was begun before the upstream said this."""
    gate = asyncio.Event()
    running.upstream.reply = [gate, *reply]
    client = await committed(running, path)
    gate.set()
    _, data = told(await client.read_rest())
    error: dict[str, object] = data["error"]
    return error


@pytest.mark.parametrize(
    ("body", "status", "message", "kind", "code"),
    [
        pytest.param(
            json.dumps({"error": OWN}).encode(),
            404,
            "no such model",
            "NotFoundError",
            404,
            id="in its own words",
        ),
        pytest.param(
            b'{"error": "Too many"}',
            429,
            "Too many",
            "invalid_request_error",
            "upstream_error",
            id="a bare string",
        ),
        pytest.param(
            b'{"object":"error","message":"too long","type":"BadRequestError","code":400}',
            400,
            "too long",
            "BadRequestError",
            400,
            id="without an envelope",
        ),
        pytest.param(
            b'{"detail":"Unexpected keys"}',
            422,
            "Unexpected keys",
            "invalid_request_error",
            "upstream_error",
            id="as FastAPI says it",
        ),
        pytest.param(
            b"",
            404,
            "The model server answered with status 404.",
            "invalid_request_error",
            "upstream_error",
            id="without a word",
        ),
        pytest.param(
            b'{"error":"' + b"x" * 70_000 + b'"}',
            400,
            "The model server answered with status 400.",
            "invalid_request_error",
            "upstream_error",
            id="in more words than an error has",
        ),
    ],
)
async def test_a_refusal(
    proxy: Launch, body: bytes, status: int, *, message: str, kind: str, code: object
) -> None:
    """The line and the count are those that it has without the comments before it."""
    running = await proxy(**COMMITTING)
    error = await answered(running, response(body, status))
    assert (error["message"], error["type"], error["code"]) == (message, kind, code)
    running.upstream.reply = [response(body, status)]
    await running.chat(STREAM_BODY)
    late, soon = await running.log.nth(0), await running.log.nth(1)
    names = ("status", "outcome", "level", "upstream_status", "fault")
    assert [late.get(name) for name in names] == [status, "ok", "info", status, None]
    assert [soon.get(name) for name in names] == [late.get(name) for name in names]
    labels = {"endpoint": "chat.completions", "status": str(status), "outcome": "ok"}
    assert running.metric("bulwark_requests_total", **labels) == 2
    refusals = running.metric(
        "bulwark_refusals_total", endpoint="chat.completions", reason="upstream_error"
    )
    assert refusals == 0


async def test_a_refusal_for_anthropics_clients(proxy: Launch) -> None:
    """A type that they know, where the upstream has none."""
    running = await proxy(**COMMITTING)
    error = await answered(running, response(b"no", 400, PLAIN), path=MESSAGES)
    assert error == {
        "type": "invalid_request_error",
        "message": "The model server answered with status 400.",
    }


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(response(b"{}", 500), "status 500", id="an error of its own"),
        pytest.param(response(b"{}", 401), "own key", id="it refuses us, and not the client"),
        pytest.param(response(b"{}", 307), "redirect", id="it is elsewhere"),
        pytest.param(response(b"{}", 200), "something else", id="an answer that is no stream"),
        pytest.param(
            response(b'{"error":"no', 400, content_length=99), "broke off", id="half a refusal"
        ),
    ],
)
async def test_what_is_a_failure(proxy: Launch, reply: bytes, message: str) -> None:
    """Whatever else comes in place of the events is the upstream's fault."""
    running = await proxy(**COMMITTING)
    error = await answered(running, reply, End.FIN)
    assert message in str(error["message"])
    assert (error["type"], error["code"]) == ("server_error", "upstream_error")
    line = await running.log.nth(0)
    assert (line["status"], line["outcome"], line["level"]) == (200, "upstream_error", "error")


async def test_the_next_request_on_the_same_connection(proxy: Launch) -> None:
    """A stream that ended with a refusal has ended: the connection goes on."""
    running = await proxy(**COMMITTING)
    gate = asyncio.Event()
    running.upstream.reply = [gate, response(b"{}", 400)]
    client = await committed(running)
    gate.set()
    assert (await client.read_rest()).complete
    running.upstream.reply = [response(b"{}", 418)]
    assert (await client.request("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY)).status == 418
