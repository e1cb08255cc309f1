"""Caps on connections through the whole product: settings, metrics, log, and the admin listener."""

import pytest

from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch
from tests.harness.upstream import End

PLAIN = request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)


async def test_a_full_public_listener(proxy: Launch) -> None:
    """One more is refused and counted; the operator still gets in, and reads how full it is."""
    running = await proxy(max_connections=1)
    running.upstream.reply = [End.SILENCE]
    busy = await running.connect()
    await busy.send(PLAIN)
    await running.upstream.request(0)
    more = await running.connect()
    response = await more.read_response()
    assert response.status == 503
    assert response.json()["error"]["code"] == "connections_exhausted"
    assert response.header(b"retry-after")
    metrics = (await running.ask_admin("GET", "/metrics")).body.decode()
    assert 'bulwark_connections{state="busy"} 1.0' in metrics
    assert 'bulwark_connections{state="idle"} 0.0' in metrics
    assert 'bulwark_connections_refused_total{reason="connections_exhausted"} 1.0' in metrics
    assert "connections_exhausted" in running.log.text
    busy.close()
    await running.idle()


async def test_one_address_has_so_many(proxy: Launch) -> None:
    """Whoever comes by a trusted proxy is not counted."""
    running = await proxy(max_connections_per_address=1)
    await running.connect()
    response = await (await running.connect()).read_response()
    assert response.status == 429
    assert response.json()["error"]["code"] == "too_many_connections"

    trusting = await proxy(
        max_connections_per_address=1,
        trusted_proxies="127.0.0.1",
        client_ip_header="X-Forwarded-For",
    )
    await trusting.connect()
    assert (await trusting.chat()).status == 200


WRONG = {"Authorization": "Bearer wrong"}


@pytest.mark.parametrize(
    ("asked", "gives_way"),
    [
        pytest.param([("/nope", BEARER)], False, id="that has shown a key"),
        pytest.param([("/nope", {})], True, id="that has shown none"),
        pytest.param([("/nope", WRONG)], True, id="that has shown a wrong one"),
        pytest.param([("/nope", BEARER)] * 2, False, id="that has shown one twice"),
        pytest.param(
            [("/nope", BEARER), ("/nope", WRONG)], True, id="whose key is not valid any more"
        ),
        pytest.param(
            [("/nope", BEARER), ("/healthz", BEARER)],
            True,
            id="that asks on where none is looked at",
        ),
        pytest.param(
            [("/nope", WRONG), ("/nope", BEARER)], False, id="that has shown a right one at last"
        ),
    ],
)
async def test_strangers_give_way_first(
    proxy: Launch, asked: list[tuple[str, dict[str, str]]], *, gives_way: bool
) -> None:
    """To each other, whoever of all has waited for the longest."""
    running = await proxy(max_idle_connections=2)
    client = await running.connect()
    for path, key in asked:
        assert (await client.request("GET", path, key)).status in {200, 401, 403, 404}
    for _ in range(9):
        other = await running.connect()
        assert (await other.request("GET", "/healthz")).status == 200
    if gives_way:
        assert await client.read_until_closed() == b""
    else:
        assert (await client.request("GET", "/healthz")).status == 200
    assert running.metric("bulwark_connections_refused_total", reason="idle") == 8


async def test_without_keys_all_are_strangers(proxy: Launch) -> None:
    """Where none is asked for, none is shown."""
    running = await proxy(api_keys=None, allow_anonymous=True, max_idle_connections=2)
    client = await running.connect()
    assert (await client.request("GET", "/nope")).status == 404
    for _ in range(2):
        await running.ask("GET", "/healthz")
        await running.connect()
    assert await client.read_until_closed() == b""


async def test_the_longest_idle_gives_way(proxy: Launch) -> None:
    """And is counted."""
    running = await proxy(max_idle_connections=1)
    idle = await running.connect()
    assert (await running.chat()).status == 200
    assert await idle.read_until_closed() == b""
    assert running.metric("bulwark_connections_refused_total", reason="idle") == 1
