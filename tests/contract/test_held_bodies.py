"""Bodies that are held: nobody keeps all others out by sending many, or by not sending them."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.harness.client import RawClient, request_bytes
from tests.harness.forwarding import until
from tests.harness.keys import bearer, key_file
from tests.harness.running import CHAT, CHAT_BODY, JSON, Launch, Running

HELD = "bulwark_buffered_bytes"


async def half_sent(front: Running, stack: AsyncExitStack, key: str, size: int) -> RawClient:
    """A client that goes silent with the last byte of its body unsent."""
    client = await stack.enter_async_context(await front.connect())
    body = CHAT_BODY + b" " * (size - len(CHAT_BODY))
    await client.send(request_bytes("POST", CHAT, {**bearer(key), **JSON}, body)[:-1])
    return client


async def held(front: Running, size: int) -> None:
    """Returns when so many bytes have been received."""
    await until(lambda: front.metric(HELD) == size)


async def test_half_sent_bodies_of_one_key_leave_room_for_others(
    proxy: Launch, tmp_path: Path
) -> None:
    """It is refused at its share, with 429: what there is beyond is for the others."""
    path, (greedy, modest) = key_file(tmp_path, "", "")
    front = await proxy(keys_file=path, max_body_bytes=1024, max_buffered_bytes=4096)
    async with AsyncExitStack() as stack:
        for count in range(1, 4):
            await half_sent(front, stack, greedy, 1024)
            await held(front, count * 1023)
        answer = await (await half_sent(front, stack, greedy, 1024)).read_response(method="POST")
        await front.assert_refused(answer, 429, "rate_limit_exceeded")
        assert "PROXY_MAX_BUFFERED_BYTES" in answer.json()["error"]["message"]
        assert answer.header(b"retry-after") == b"5"
        served = await front.ask("POST", CHAT, {**bearer(modest), **JSON}, CHAT_BODY)
        assert served.status == 200
    await front.idle()
    assert front.metric(HELD) == 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param("concurrency = 1", 429, id="a key that may have one request at once"),
        pytest.param("concurrency = 2", 200, id="a key that may have two"),
    ],
)
async def test_a_body_on_its_way_is_a_request(
    proxy: Launch, tmp_path: Path, fields: str, status: int
) -> None:
    """Of a key with a concurrency, so many are received at once."""
    path, (key, other) = key_file(tmp_path, fields, "concurrency = 1")
    front = await proxy(keys_file=path)
    async with AsyncExitStack() as stack:
        await half_sent(front, stack, key, 1024)
        await held(front, 1023)
        answer = await front.ask("POST", CHAT, {**bearer(key), **JSON}, CHAT_BODY)
        assert answer.status == status
        served = await front.ask("POST", CHAT, {**bearer(other), **JSON}, CHAT_BODY)
        assert served.status == 200
    await front.idle()
    served = await front.ask("POST", CHAT, {**bearer(key), **JSON}, CHAT_BODY)
    assert served.status == 200
