"""How many places one key may hold, by the keys that there are besides it: on a running server."""

import asyncio
from pathlib import Path

import pytest

from tests.harness import forwarding
from tests.harness import upstream as upstreams
from tests.harness.client import RawClient, request_bytes
from tests.harness.keys import bearer, key_file
from tests.harness.running import CHAT, CHAT_BODY, JSON, Launch, Running

PATIENCE_SECONDS = 20.0


def alone(path: Path) -> str:
    """Leaves only the first of two keys in a file; gives the text that has both."""
    both = path.read_text()
    path.write_text(both[: both.rindex("[[key]]")])
    return both


async def reloaded(front: Running) -> None:
    """Another file is in force."""
    await front.log.until(lambda: "keys_reloaded" in front.log.text, within=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param("disabled = true", id="disabled"),
        pytest.param("expires = 2026-01-01T00:00:00Z", id="expired"),
    ],
)
async def test_a_key_that_may_not_be_used_takes_nobodys_place(
    proxy: Launch, tmp_path: Path, gone: str
) -> None:
    """Beside it, the only one that may be used has all of them, as if it were alone."""
    path, (first, _) = key_file(tmp_path, "", gone)
    front = await proxy(keys_file=path, api_keys=None, max_inflight=4, queue_size=0)
    gate = asyncio.Event()
    front.upstream.reply = [gate, upstreams.response(b"{}")]
    clients = [await front.connect() for _ in range(4)]
    for count, client in enumerate(clients):
        await client.send(request_bytes("POST", CHAT, {**bearer(first), **JSON}, CHAT_BODY))
        await front.upstream.request(count)
    gate.set()
    assert [(await client.read_response()).status for client in clients] == [200] * 4


async def test_a_second_key_takes_the_first_ones_last_places(proxy: Launch, tmp_path: Path) -> None:
    """One alone may hold all of them; beside another, three quarters."""
    path, (first, second) = key_file(tmp_path, "", "")
    both = alone(path)
    front = await proxy(keys_file=path, api_keys=None, max_inflight=4)
    gate = asyncio.Event()
    front.upstream.reply = [gate, upstreams.response(b"{}")]

    async def burst(count: int, key: str) -> list[RawClient]:
        clients = [await front.connect() for _ in range(count)]
        for client in clients:
            await client.send(request_bytes("POST", CHAT, {**bearer(key), **JSON}, CHAT_BODY))
        return clients

    clients = await burst(4, first)
    await front.upstream.request(3)
    gate.set()
    assert [(await client.read_response()).status for client in clients] == [200] * 4
    gate.clear()
    path.write_text(both)
    await reloaded(front)
    clients = await burst(4, first)
    await forwarding.until(lambda: front.metric("bulwark_queue_length") == 1)
    await front.upstream.request(4 + 2)
    assert len(front.upstream.requests) == 4 + 3
    clients += await burst(1, second)
    await front.upstream.request(4 + 3)
    gate.set()
    assert [(await client.read_response()).status for client in clients] == [200] * 5


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("POST", CHAT, CHAT_BODY, id="places at the engine"),
        pytest.param("GET", "/v1/models", b"", id="places for lists"),
    ],
)
async def test_a_second_key_finds_a_place_of_each_kind(
    proxy: Launch, tmp_path: Path, method: str, path: str, body: bytes
) -> None:
    """What the first may have no more of is said to it at once where nobody may wait."""
    file, (first, second) = key_file(tmp_path, "", "")
    both = alone(file)
    front = await proxy(keys_file=file, api_keys=None, max_inflight=4, queue_size=0)
    file.write_text(both)
    await reloaded(front)
    gate = asyncio.Event()
    front.upstream.reply = [gate, upstreams.response(b"{}")]

    async def sent(key: str) -> RawClient:
        client = await front.connect()
        await client.send(request_bytes(method, path, {**bearer(key), **JSON}, body))
        return client

    clients = []
    for count in range(3):
        clients.append(await sent(first))
        await front.upstream.request(count)
    refused = await (await sent(first)).read_response()
    assert (refused.status, refused.json()["error"]["code"]) == (503, "overloaded")
    assert "PROXY_KEY_MAX_INFLIGHT" in refused.json()["error"]["message"]
    clients.append(await sent(second))
    await front.upstream.request(3)
    gate.set()
    assert [(await client.read_response()).status for client in clients] == [200] * 4
