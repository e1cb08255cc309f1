"""What the transport sends, which connections it uses, and when it asks twice."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from proxy.names import Names
from proxy.upstream import target, transport
from proxy.upstream.transport import KEEPALIVE_EXPIRY_SECONDS
from tests.harness import upstream as harness
from tests.harness.deaf import deaf_port
from tests.harness.forwarding import until
from tests.harness.upstream import COMPLETION, SSE_HEAD, End, Script, Upstream, event, response

Transport = httpx.AsyncBaseTransport


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[Transport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        yield made


async def ask(
    asked: Transport,
    upstream: Upstream,
    to: bytes = b"/v1/chat/completions",
    body: bytes = b"{}",
    **seconds: float,
) -> bytes:
    """One request as `proxy.forward` makes it, and the body of its answer."""
    request = httpx.Request(
        "POST",
        upstream.url if upstream.port else "http://localhost",
        headers=[(b"host", b"x"), (b"content-length", b"%d" % len(body))],
        stream=httpx.ByteStream(body),
        extensions={"target": to, "timeout": {"connect": 5.0, **seconds}},
    )
    answer = await asked.handle_async_request(request)
    try:
        return await answer.aread()
    finally:
        await answer.aclose()


@pytest.mark.parametrize(
    "to",
    [
        b"/v1/chat/completions",
        b"/v1/models?a=1&a=2&b=",
        b"/v1/models?q=%2B+%20%zz",
        b"/v1/models?x={\"'<>|^`}[]",
        b"/v1/models?/../../metrics",
        b"/v1/models??",
        b"/v1/models?",
    ],
)
async def test_the_target_is_sent_byte_for_byte(
    asked: Transport, upstream: Upstream, to: bytes
) -> None:
    """Nothing on the way quotes, decodes or normalises it."""
    await ask(asked, upstream, to)
    assert upstream.requests[0].target == to


async def test_no_field_is_added(asked: Transport, upstream: Upstream) -> None:
    """The upstream gets the fields that it was to get, in order, and nothing of a library's."""
    await ask(asked, upstream)
    assert upstream.requests[0].headers == ((b"host", b"x"), (b"content-length", b"2"))


async def test_a_connection_is_used_again(asked: Transport, upstream: Upstream) -> None:
    """One after the other go over one connection."""
    for _ in range(5):
        assert await ask(asked, upstream) == COMPLETION
    assert [received.connection for received in upstream.requests] == [0] * 5


async def test_as_many_connections_as_requests(asked: Transport, upstream: Upstream) -> None:
    """More than httpx's hundred at once wait for nothing but the upstream."""
    gate = asyncio.Event()
    upstream.reply = [gate, response(b"{}")]
    tasks = [asyncio.create_task(ask(asked, upstream)) for _ in range(150)]
    await upstream.request(149)
    gate.set()
    assert await asyncio.gather(*tasks) == [b"{}"] * 150


def test_idle_connections_are_given_up_before_the_upstream_does() -> None:
    """uvicorn, on which most engines run, gives up after 5 s."""
    assert KEEPALIVE_EXPIRY_SECONDS == 5 - 2


async def test_a_connection_that_the_upstream_closed_is_not_used(
    asked: Transport, upstream: Upstream
) -> None:
    """Nor one that it said something on that nobody asked for: both are seen before asking."""
    await ask(asked, upstream)
    upstream.connections[0].close()
    await until(lambda: not idle(asked))
    await ask(asked, upstream)
    upstream.connections[1].transport.write(b"HTTP/1.1 408 Too Late\r\n\r\n")
    await until(lambda: not idle(asked))
    await ask(asked, upstream)
    assert [received.connection for received in upstream.requests] == [0, 1, 2]


def idle(asked: Transport) -> list[object]:
    """The connections that wait for a request."""
    return list(asked.pool.idle)  # type: ignore[attr-defined] # a test of its inside


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param([End.FIN], id="closed when the request came"),
        pytest.param([End.RESET], id="reset when the request came"),
    ],
)
async def test_a_stale_connection_is_replaced(
    asked: Transport, upstream: Upstream, stale: Script
) -> None:
    """A reused connection that ends before any byte of an answer costs the client nothing."""
    upstream.script.extend([[response(b"1")], stale, [response(b"2")]])
    assert await ask(asked, upstream) == b"1"
    assert await ask(asked, upstream) == b"2"
    assert [received.connection for received in upstream.requests] == [0, 0, 1]
    assert len(idle(asked)) == 1


@pytest.mark.parametrize(
    "first",
    [
        pytest.param([End.FIN], id="closed"),
        pytest.param([End.RESET], id="reset"),
        pytest.param([b"HTTP/1.1 2", End.FIN], id="closed within the head"),
    ],
)
async def test_a_new_connection_that_breaks_is_not_replaced(
    asked: Transport, upstream: Upstream, first: Script
) -> None:
    """Then it is not the connection's age that was at fault."""
    upstream.script.append(first)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        await ask(asked, upstream)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "second",
    [
        pytest.param([b"H", End.FIN], id="after one byte"),
        pytest.param([b"HTTP/1.1 2", End.RESET], id="within the status line"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n", End.FIN], id="after an interim response"),
        pytest.param([SSE_HEAD, event("a"), End.RESET], id="in mid-stream"),
    ],
)
async def test_a_request_that_was_looked_at_is_not_repeated(
    asked: Transport, upstream: Upstream, second: Script
) -> None:
    """One byte of an answer means that the request has begun: doing it twice is not ours."""
    upstream.script.extend([[response(b"1")], second])
    await ask(asked, upstream)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        await ask(asked, upstream)
    assert [received.connection for received in upstream.requests] == [0, 0]


async def test_there_is_one_more_try_and_no_third(asked: Transport, upstream: Upstream) -> None:
    """An upstream that closes every connection is down."""
    upstream.script.extend([[response(b"1")], [End.FIN], [End.FIN]])
    await ask(asked, upstream)
    with pytest.raises(httpx.RemoteProtocolError):
        await ask(asked, upstream)
    assert len(upstream.requests) == 3


async def test_a_slow_reader_gets_everything(asked: Transport, upstream: Upstream) -> None:
    """A body that does not fit into the kernel's buffers waits, and loses nothing."""
    upstream.reads = False
    upstream.reply = [response(b"1")]
    body = bytes(range(256)) * 50_000
    task = asyncio.create_task(ask(asked, upstream, body=body))
    connection = await upstream.connection(0)
    await until(lambda: bool(write_paused(asked)))
    connection.transport.resume_reading()
    assert await task == b"1"
    assert upstream.requests[0].body == body


def write_paused(asked: Transport) -> list[object]:
    """The connections that the other side does not read."""
    busy = asked.pool.busy  # type: ignore[attr-defined] # a test of its inside
    return [connection for connection in busy if connection.write_blocked]


async def test_a_transport_keeps_to_the_limits_that_it_is_given(
    asked: Transport, upstream: Upstream
) -> None:
    """We give it none for reading and writing; whoever does gets them."""
    upstream.reply = [End.SILENCE]
    with pytest.raises(httpx.ReadTimeout):
        await ask(asked, upstream, read=0.05)
    upstream.reads = False
    with pytest.raises(httpx.WriteTimeout):
        await ask(asked, upstream, body=b" " * 12_000_000, write=0.05)


async def test_refused() -> None:
    """Nobody listens there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        async with transport.build(target.parse(f"http://127.0.0.1:{port}")) as asked:
            with pytest.raises(httpx.ConnectError):
                await ask(asked, Upstream(url=f"http://127.0.0.1:{port}", port=port))


async def test_an_address_that_swallows_everything(upstream: Upstream) -> None:
    """The name's other one is asked soon, and at once the next time."""
    names = Names(lambda _host: ["127.0.0.2", "127.0.0.1"])
    url = f"http://engine.example:{upstream.port}"
    upstream.script.extend([[response(b"1"), End.FIN], [response(b"2"), End.FIN]])
    with deaf_port("127.0.0.2", upstream.port):
        async with transport.build(target.parse(url), names) as asked:
            there = Upstream(url=url, port=upstream.port)
            assert await ask(asked, there, connect=0.5) == b"1"
            started = time.monotonic()
            assert await ask(asked, there, connect=0.5) == b"2"
            assert time.monotonic() - started < 0.25


async def test_no_such_host() -> None:
    """The name does not resolve."""
    url = "http://no-such-host.invalid:80"
    async with transport.build(target.parse(url)) as asked:
        with pytest.raises(httpx.ConnectError):
            await ask(asked, Upstream(url=url, port=80))


async def test_a_unix_socket(tmp_path: Path) -> None:
    """The same, without a network between the two."""
    async with (
        harness.serve(tmp_path / "vllm.sock") as upstream,
        transport.build(target.parse(upstream.url)) as asked,
    ):
        upstream.script.extend([[response(b"1")], [response(b"2")], [End.FIN], [response(b"3")]])
        assert [await ask(asked, upstream) for _ in range(3)] == [b"1", b"2", b"3"]
        assert [received.connection for received in upstream.requests] == [0, 0, 0, 1]


async def test_no_such_unix_socket(tmp_path: Path) -> None:
    """A socket that is not there yet is an upstream that is not there yet."""
    url = f"unix://{tmp_path}/none.sock"
    async with transport.build(target.parse(url)) as asked:
        with pytest.raises(httpx.ConnectError):
            await ask(asked, Upstream(url=url))


async def test_environment_proxies_are_not_for_us(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that was set for somebody else does not redirect prompts."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with transport.build(target.parse(upstream.url)) as asked:
        assert await ask(asked, upstream) == COMPLETION


async def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority that the system trusts is trusted, and connections are used again."""
    monkeypatch.setenv("SSL_CERT_FILE", str(harness.CERTIFICATE))
    async with (
        harness.serve(tls=True) as upstream,
        transport.build(target.parse(upstream.url)) as asked,
    ):
        upstream.script.extend([[response(b"1")], [response(b"2" * 100_000)], [End.FIN]])
        assert await ask(asked, upstream) == b"1"
        assert await ask(asked, upstream) == b"2" * 100_000
        assert await ask(asked, upstream) == COMPLETION
        assert [received.connection for received in upstream.requests] == [0, 0, 0, 1]


async def test_an_unknown_authority_is_not_trusted() -> None:
    """Whoever cannot prove who it is gets no request."""
    async with (
        harness.serve(tls=True) as upstream,
        transport.build(target.parse(upstream.url)) as asked,
    ):
        with pytest.raises(httpx.ConnectError):
            await ask(asked, upstream)
        assert upstream.requests == []


async def test_plain_text_is_not_tls(upstream: Upstream) -> None:
    """An upstream without TLS is not asked as if it had it, and the handshake has a deadline."""
    url = upstream.url.replace("http:", "https:")
    async with transport.build(target.parse(url)) as asked:
        with pytest.raises(httpx.ConnectTimeout):
            await ask(asked, Upstream(url=url, port=upstream.port), connect=0.1)
        await upstream.all_closed()
    assert upstream.requests == []
