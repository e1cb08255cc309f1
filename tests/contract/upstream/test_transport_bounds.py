"""How long a head may be, and which of a name's addresses serves: through real sockets."""

from collections.abc import AsyncIterator

import httpx
import pytest

from proxy.names import Names
from proxy.upstream import target, transport
from tests.harness.deaf import deaf_port
from tests.harness.upstream import End, Upstream, response

HEAD_BYTES, FIELDS = 64 * 1024, 128
PIECE_BYTES = 1000


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        yield made


async def ask(asked: httpx.AsyncBaseTransport, **extensions: object) -> httpx.Response:
    """The answer to one request, with its body."""
    answer = await asked.handle_async_request(
        httpx.Request(
            "POST",
            "http://localhost",
            headers=[(b"host", b"x")],
            stream=httpx.ByteStream(b"{}"),
            extensions={"target": b"/v1", "timeout": {"connect": 5.0, "total": 10.0}, **extensions},
        )
    )
    await answer.aread()
    return answer


def of_length(length: int) -> bytes:
    """A whole answer with a head of so many bytes."""
    bare = response(b"ok", headers=[(b"x", b"")])
    return response(b"ok", headers=[(b"x", b"a" * (length - len(bare) + len(b"ok")))])


def of_fields(count: int) -> bytes:
    """A whole answer with so many fields."""
    return response(b"ok", headers=[(b"x-%d" % n, b"a") for n in range(count - 1)])


INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: %b\r\n\r\n" % (b"a" * 1000)
BOUNDS = [
    pytest.param(of_length(HEAD_BYTES), {}, True, id="64 KiB"),
    pytest.param(of_length(HEAD_BYTES + 1), {}, False, id="a byte more"),
    pytest.param(INTERIM + of_length(HEAD_BYTES - len(INTERIM)), {}, True, id="64 KiB in two"),
    pytest.param(INTERIM + of_length(HEAD_BYTES - len(INTERIM) + 1), {}, False, id="more in two"),
    pytest.param(of_length(500), {"bulwark.max_head_bytes": 500}, True, id="what was asked for"),
    pytest.param(of_length(501), {"bulwark.max_head_bytes": 500}, False, id="more than that"),
    pytest.param(of_fields(FIELDS), {}, True, id="128 fields"),
    pytest.param(of_fields(FIELDS + 1), {}, False, id="129 fields"),
]


@pytest.mark.parametrize("cut", [False, True], ids=["in one", "in pieces"])
@pytest.mark.parametrize(("answer", "extensions", "fits"), BOUNDS)
async def test_how_long_a_head_may_be(
    asked: httpx.AsyncBaseTransport,
    upstream: Upstream,
    answer: bytes,
    *,
    extensions: dict[str, object],
    fits: bool,
    cut: bool,
) -> None:
    """A byte or a field more than may be is no answer, and the connection is closed."""
    size = PIECE_BYTES if cut else len(answer)
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    upstream.reply = pieces if fits else [*pieces, End.SILENCE]
    if fits:
        assert (await ask(asked, **extensions)).content == b"ok"
        assert upstream.open_connections == 1
    else:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(asked, **extensions)
        await upstream.all_closed()


async def test_a_head_without_end(asked: httpx.AsyncBaseTransport, upstream: Upstream) -> None:
    """It is given up at the bound, not when it is over."""
    upstream.reply = [of_length(HEAD_BYTES + 100)[: HEAD_BYTES + 1], End.SILENCE]
    with pytest.raises(httpx.RemoteProtocolError):
        await ask(asked)
    await upstream.all_closed()


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(["127.0.0.3", "127.0.0.2", "127.0.0.1"], id="refused, deaf"),
        pytest.param(["127.0.0.2", "127.0.0.3", "127.0.0.1"], id="deaf, refused"),
        pytest.param(["127.0.0.1", "127.0.0.2", "127.0.0.3"], id="the first one serves"),
    ],
)
async def test_the_address_that_serves(upstream: Upstream, order: list[str]) -> None:
    """One of a name's three refuses, one says nothing, and one serves: it is asked, once."""
    url = f"http://engine.example:{upstream.port}"
    upstream.reply = [response(b"ok")]
    with deaf_port("127.0.0.2", upstream.port):
        async with transport.build(target.parse(url), Names(lambda _host: order)) as asked:
            timeout = {"connect": 0.6, "total": 10.0}
            assert (await ask(asked, timeout=timeout)).content == b"ok"
            assert len(upstream.requests) == 1
        await upstream.all_closed()


async def test_no_address_serves(upstream: Upstream) -> None:
    """The last one's fault is what is told, in time."""
    url = f"http://engine.example:{upstream.port}"
    names = Names(lambda _host: ["127.0.0.2", "127.0.0.3"])
    with deaf_port("127.0.0.2", upstream.port):
        async with transport.build(target.parse(url), names) as asked:
            with pytest.raises(httpx.ConnectError) as told:
                await ask(asked, timeout={"connect": 0.4})
    assert isinstance(told.value.__cause__, ConnectionRefusedError)
    assert upstream.requests == []
