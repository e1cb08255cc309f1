"""Where a client is, through the real server: what the log says, and for whom an account is."""

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from proxy.middleware.clients import ClientAddress
from proxy.server.protocol import ProtocolLimits
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch
from tests.harness.served import Echo, serving

TUNNEL: dict[str, Any] = {"trusted_proxies": "127.0.0.1", "client_ip_header": "CF-Connecting-IP"}
LIST: dict[str, Any] = {
    "trusted_proxies": "127.0.0.0/8, 10.0.0.0/8",
    "client_ip_header": "X-Forwarded-For",
}
ELSEWHERE: dict[str, Any] = {"trusted_proxies": "127.0.0.2", "client_ip_header": "CF-Connecting-IP"}

SPOOFED = [
    ("X-Forwarded-For", "192.0.2.66"),
    ("X-Real-IP", "192.0.2.66"),
    ("Forwarded", "for=192.0.2.66"),
]


@pytest.mark.parametrize(
    ("settings", "fields", "client"),
    [
        pytest.param({}, [("CF-Connecting-IP", "192.0.2.7")], "127.0.0.1", id="nobody is trusted"),
        pytest.param(ELSEWHERE, [("CF-Connecting-IP", "192.0.2.7")], "127.0.0.1", id="another is"),
        pytest.param(TUNNEL, [("CF-Connecting-IP", "192.0.2.7")], "192.0.2.7", id="the tunnel"),
        pytest.param(TUNNEL, [("cf-connecting-ip", "2001:DB8:0::7")], "2001:db8::7", id="IPv6"),
        pytest.param(TUNNEL, [], "127.0.0.1", id="a header that the tunnel did not set"),
        pytest.param(TUNNEL, SPOOFED, "127.0.0.1", id="other headers"),
        pytest.param(
            TUNNEL,
            [("CF-Connecting-IP", '1.2.3.4","outcome":"ok')],
            "127.0.0.1",
            id="a forged line",
        ),
        pytest.param(
            TUNNEL,
            [("CF-Connecting-IP", "192.0.2.66"), ("CF-Connecting-IP", "192.0.2.7")],
            "127.0.0.1",
            id="twice",
        ),
        pytest.param(LIST, [("X-Forwarded-For", "192.0.2.7")], "192.0.2.7", id="a list"),
        pytest.param(
            LIST, [("X-Forwarded-For", "192.0.2.66, 192.0.2.7, 10.0.0.9")], "192.0.2.7", id="hops"
        ),
        pytest.param(
            LIST,
            [("X-Forwarded-For", "192.0.2.66"), ("X-Forwarded-For", "192.0.2.7")],
            "192.0.2.7",
            id="two fields",
        ),
        pytest.param(LIST, [("X-Forwarded-For", "evil\tlog")], "127.0.0.1", id="junk in a list"),
    ],
)
async def test_the_log_says_where_a_client_is(
    proxy: Launch, settings: dict[str, Any], fields: list[tuple[str, str]], client: str
) -> None:
    """With an answer and with a refusal alike; what else was said is nowhere in it."""
    front = await proxy(**settings)
    answer = await front.ask("POST", CHAT, [*BEARER.items(), *JSON.items(), *fields], CHAT_BODY)
    refusal = await front.ask("POST", CHAT, [*JSON.items(), *fields], CHAT_BODY)
    assert (answer.status, refusal.status) == (200, 401)
    for response in (answer, refusal):
        assert (await front.log.of(response))["client"] == client
    for said in ("192.0.2.66", "evil", "1.2.3.4"):
        assert said not in front.log.text
    assert b"192.0.2" not in bytes(front.upstream.connections[0].received)


async def test_ten_thousand_hops_are_served_like_one(proxy: Launch) -> None:
    """As many as a head can hold."""
    front = await proxy(**LIST)
    hops = "10.1.1.1," * 3_000 + "192.0.2.7"
    answer = await front.chat(X_Forwarded_For=hops)
    assert answer.status == 200
    assert (await front.log.of(answer))["client"] == "192.0.2.7"


@pytest.mark.parametrize("settings", [{}, {"trusted_proxies": "127.0.0.1"}])
async def test_who_resets_the_connection_is_not_believed(
    proxy: Launch, settings: dict[str, Any]
) -> None:
    """His address cannot be asked for any more; his request arrives all the same.

    uvicorn has no address for him, as for a client by a Unix socket.
    """
    front = await proxy(client_ip_header="CF-Connecting-IP" if settings else None, **settings)
    # Without giving the loop a chance to accept it in between.
    with socket.create_connection(("127.0.0.1", front.port)) as client:
        fields = {**BEARER, **JSON, "CF-Connecting-IP": "192.0.2.66"}
        client.sendall(request_bytes("POST", CHAT, fields, CHAT_BODY))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line = await front.log.nth(0)
    assert (line["client"], line["outcome"]) == ("unknown", "client_disconnected")
    assert "192.0.2.66" not in front.log.text


async def test_who_comes_by_a_unix_socket_is_told_apart(tmp_path: Path) -> None:
    """By what our own server says of its own side; he is believed no more."""
    echo, path = Echo(), str(tmp_path / "s")
    async with serving(echo, 120, ProtocolLimits()) as served:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(served.connection, path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(request_bytes("GET", "/", {"CF-Connecting-IP": "192.0.2.7"}))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        server.close()
    (scope,) = echo.scopes
    for address in (ClientAddress(), ClientAddress(("0.0.0.0/0", "::/0"), "CF-Connecting-IP")):
        assert address(dict(scope)) == "unix"
