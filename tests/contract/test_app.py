"""The composition root: what it refuses to build, and what it answers besides requests."""

import asyncio
import dataclasses
import io
import json
import socket
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from proxy import app
from proxy.config import load
from proxy.server.listeners import ListenError
from tests.harness.client import RawClient
from tests.harness.running import Lines

CANARY = "canary0123456789"
ENVIRON = {"PROXY_ALLOW_ANONYMOUS": "true", "PROXY_PORT": "0", "PROXY_ADMIN_PORT": "0"}


async def test_a_websocket_is_closed_before_it_opens() -> None:
    """Should a server ever offer one."""
    settings = load(ENVIRON)
    bulwark = app.build(
        settings, app.key_store(settings), registry=CollectorRegistry(), log_stream=io.BytesIO()
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/realtime", "headers": []}
    await bulwark.public(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    for close in bulwark.closing:
        await close()


@pytest.mark.parametrize("setting", ["PROXY_PORT", "PROXY_ADMIN_PORT"])
def test_a_port_in_use_is_told_with_its_setting_and_nothing_stays_bound(setting: str) -> None:
    """Whichever of the two it is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1 port {port} \({setting}\): Address"):
            app.bind(load({**ENVIRON, setting: str(port)}))


def test_addresses_of_ipv6_are_served() -> None:
    """Where the machine has it."""
    try:
        public, admin = app.bind(load({**ENVIRON, "PROXY_HOST": "::1"}))
    except ListenError:
        pytest.skip("this machine has no IPv6")
    with public, admin:
        assert public.family == socket.AF_INET6


async def test_a_bug_beside_the_requests_is_told_and_ends_none() -> None:
    """What failed, by name; requests are served all the same."""

    async def watching() -> None:
        raise KeyError(CANARY)

    settings = load(ENVIRON)
    log = Lines()
    built = app.build(
        settings, app.key_store(settings), registry=CollectorRegistry(), log_stream=log
    )
    bulwark = dataclasses.replace(built, attendants=[watching])
    public, admin = app.bind(settings)
    stop, ready = asyncio.Event(), asyncio.Event()
    port = public.getsockname()[1]
    served = asyncio.create_task(bulwark.serve(public, admin, on_ready=ready.set, stop=stop))
    await ready.wait()
    await log.until(lambda: '"failed"' in log.text)
    async with await RawClient.open("127.0.0.1", port) as client:
        assert (await client.request("GET", "/healthz")).status == 200
    stop.set()
    assert await served == 0
    (line,) = [line for line in map(json.loads, log.text.splitlines()) if line["event"] == "failed"]
    assert (line["level"], line["fault"]) == ("error", "KeyError")
    assert line["part"].endswith("watching")
    assert CANARY not in log.text
