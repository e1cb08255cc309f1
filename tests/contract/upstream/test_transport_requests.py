"""Requests that are not like the product's own, and deadlines before there is a connection."""

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import httpx
import pytest

from proxy.upstream import target, transport
from proxy.upstream.request import FIELDS
from proxy.upstream.transport.transport import Transport
from tests.harness.deaf import deaf_port
from tests.harness.forwarding import until
from tests.harness.upstream import End, Upstream, response


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[Transport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        assert isinstance(made, Transport)
        yield made


async def test_a_body_that_is_made_while_it_is_sent(asked: Transport, upstream: Upstream) -> None:
    """It goes with its length, and the path is that of the URL."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    upstream.reply = [response(b"{}")]
    request = httpx.Request("POST", "http://x/v1/a?b=%20", content=pieces())
    answer = await asked.handle_async_request(request)
    assert await answer.aread() == b"{}"
    assert upstream.requests[0].body == b"abc"
    assert upstream.requests[0].target == b"/v1/a?b=%20"
    assert upstream.requests[0].header(b"content-length") == b"3"
    assert upstream.requests[0].header(b"transfer-encoding") is None


@pytest.mark.parametrize(
    ("fields", "extensions"),
    [
        pytest.param([(b"host", b"x"), (b"a", b"b\r\nc: d")], {}, id="a line end in a value"),
        pytest.param([(b"host", b"x"), (b"a\n", b"b")], {}, id="a line end in a name"),
        pytest.param([(b"host", b"x"), (b"content-length", b"9")], {}, id="another length"),
        pytest.param([(b"host", b"x")], {"target": b"/a b"}, id="a space in the target"),
        pytest.param([(b"host", b"x")], {"target": b""}, id="no target"),
        pytest.param([], {}, id="no Host"),
    ],
)
async def test_what_could_be_read_in_two_ways_is_not_sent(
    asked: Transport,
    upstream: Upstream,
    fields: list[tuple[bytes, bytes]],
    extensions: dict[str, Any],
) -> None:
    """Nor is a connection opened for it."""
    stream = httpx.ByteStream(b"{}")
    request = httpx.Request("POST", "http://x", stream=stream, extensions=extensions)
    request.headers = httpx.Headers(fields)
    with pytest.raises(httpx.LocalProtocolError):
        await asked.handle_async_request(request)
    assert upstream.connections == []


async def test_fields_as_they_are_sent(asked: Transport, upstream: Upstream) -> None:
    """Where somebody has them they are taken, in place of httpx's, and are looked at as those are."""
    fields = [(b"host", b"x"), (b"a", b"b"), (b"content-length", b"2")]
    stream = httpx.ByteStream(b"{}")
    request = httpx.Request("POST", "http://y", stream=stream, extensions={FIELDS: fields})
    await (await asked.handle_async_request(request)).aread()
    assert upstream.requests[0].headers == tuple(fields)
    fields.append((b"c", b"\n"))
    with pytest.raises(httpx.LocalProtocolError):
        await asked.handle_async_request(request)


async def test_behind_connect_there_is_no_answer(asked: Transport, upstream: Upstream) -> None:
    """It is refused as any other request that is not HTTP's to answer, and nothing is opened."""
    request = httpx.Request("connect", "http://x", headers=[(b"host", b"x")])
    with pytest.raises(httpx.LocalProtocolError):
        await asked.handle_async_request(request)
    assert upstream.connections == []


async def test_timeouts_that_change(asked: Transport, upstream: Upstream) -> None:
    """Each request has its own, also where the object that says them is the same."""
    upstream.reply = [End.SILENCE]
    seconds: dict[str, float | None] = {"first_byte": 0.05}
    request = httpx.Request("GET", "http://x", extensions={"timeout": seconds})
    with pytest.raises(httpx.ReadTimeout):
        await asked.handle_async_request(request)
    seconds["first_byte"] = None
    task = asyncio.create_task(asked.handle_async_request(request))
    await upstream.request(1)
    assert asked.pool.busy[0]._due == inf, "nothing bounds it"
    await asked.aclose()
    with pytest.raises(httpx.ReadError):
        await task


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        pytest.param({"connect": 0.05, "total": 9.0}, httpx.ConnectTimeout, id="connecting"),
        pytest.param({"connect": 9.0, "total": 0.05}, httpx.ReadTimeout, id="the whole"),
    ],
)
async def test_nobody_takes_the_connection(seconds: dict[str, float], error: type) -> None:
    """The error says which time ran out."""
    with deaf_port() as port:
        async with transport.build(target.parse(f"http://127.0.0.1:{port}")) as deaf:
            request = httpx.Request("GET", "http://x", extensions={"timeout": seconds})
            with pytest.raises(error):
                await deaf.handle_async_request(request)


async def test_an_idle_connection_is_given_up(asked: Transport, upstream: Upstream) -> None:
    """By itself, before the upstream does."""
    upstream.reply = [response(b"{}")]
    request = httpx.Request("GET", "http://x")
    await (await asked.handle_async_request(request)).aread()
    assert len(asked.pool.idle) == 1
    await until(lambda: not asked.pool.idle)
    await upstream.connection_closed(0)
