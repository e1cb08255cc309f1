"""The composition root: what it refuses to build, and what it answers besides requests."""

import io
import socket
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from proxy import app
from proxy.config import load
from proxy.server.listeners import ListenError

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
