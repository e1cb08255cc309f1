"""Which heads become a request, and what is said to the others."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.harness.client import RawClient, request_bytes
from tests.harness.served import Echo, Receive, Scope, Send, Serve, answer

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"
REQUEST = HEAD + b"Content-Length: 2\r\n\r\n{}"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


def of_size(size: int) -> bytes:
    """A request without a body whose head has so many bytes."""
    head = b"GET /v1/x HTTP/1.1\r\nHost: h\r\nX: "
    return head + b"a" * (size - len(head) - 4) + b"\r\n\r\n"


def with_fields(count: int) -> bytes:
    """A request without a body and with so many fields."""
    return b"GET /v1/x HTTP/1.1\r\nHost: h\r\n" + b"X: 1\r\n" * (count - 1) + b"\r\n"


def with_target(size: int) -> bytes:
    """A request without a body whose target has so many bytes."""
    return b"GET /" + b"x" * (size - 1) + b" HTTP/1.1\r\nHost: h\r\n\r\n"


REFUSED = [
    # Limits, each with its neighbour among the accepted
    pytest.param(of_size(32 * 1024 + 1), 431, "head_too_large", id="a head of 32 KiB and a byte"),
    pytest.param(
        HEAD + b"X:" + b" " * 40_000 + b"1\r\n\r\n",
        431,
        "head_too_large",
        id="a head that is large by white space, which the parser drops",
    ),
    pytest.param(
        HEAD + b"X: " + b"a" * 1_000_000, 431, "head_too_large", id="a field that does not end"
    ),
    pytest.param(HEAD + b"a" * 1_000_000, 431, "head_too_large", id="a name that does not end"),
    pytest.param(with_fields(101), 431, "head_too_large", id="101 fields"),
    pytest.param(with_target(8 * 1024 + 1), 414, "target_too_long", id="a target over 8 KiB"),
    pytest.param(b"GET /" + b"x" * 40_000, 414, "target_too_long", id="a target without an end"),
    # The target
    pytest.param(
        REQUEST.replace(b"/v1/x", b"http://h/v1/x"), 400, "invalid_http", id="absolute-form"
    ),
    pytest.param(
        REQUEST.replace(b"/v1/x", b"HTTPS://h/v1/x"), 400, "invalid_http", id="absolute-form, TLS"
    ),
    pytest.param(
        b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_http", id="authority-form"
    ),
    pytest.param(
        b"CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_http", id="CONNECT to a path"
    ),
    pytest.param(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_http", id="asterisk-form"),
    pytest.param(REQUEST.replace(b"/v1/x", b"/v1/x#f"), 400, "invalid_http", id="a fragment"),
    pytest.param(
        REQUEST.replace(b"/v1/x", b"/v1/x?a#b"), 400, "invalid_http", id="a '#' in the query"
    ),
    pytest.param(
        REQUEST.replace(b"/v1/x", b"/v1/\xc3\xa9"), 400, "invalid_http", id="a target in UTF-8"
    ),
    pytest.param(
        REQUEST.replace(b"/v1/x", b"/v1/\x00"), 400, "invalid_http", id="NUL in the target"
    ),
    pytest.param(
        REQUEST.replace(b"/v1/x", b"/v1/\tx"), 400, "invalid_http", id="a tab in the target"
    ),
    pytest.param(
        REQUEST.replace(b"/v1/x", b"/v1 x"), 400, "invalid_http", id="a space in the target"
    ),
    # Version and method
    pytest.param(REQUEST.replace(b"1.1", b"2.0"), 400, "invalid_http", id="HTTP/2.0"),
    pytest.param(REQUEST.replace(b"1.1", b"0.9"), 400, "invalid_http", id="HTTP/0.9"),
    pytest.param(REQUEST.replace(b"1.1", b"1.2"), 400, "invalid_http", id="HTTP/1.2"),
    pytest.param(b"GET /v1/x\r\n\r\n", 400, "invalid_http", id="no version"),
    pytest.param(REQUEST.replace(b"HTTP", b"RTSP"), 400, "invalid_http", id="RTSP"),
    pytest.param(
        REQUEST.replace(b"POST", b"DESCRIBE").replace(b"HTTP", b"RTSP"),
        400,
        "invalid_http",
        id="RTSP with a method of its own",
    ),
    pytest.param(
        REQUEST.replace(b"POST", b"SOURCE").replace(b"HTTP", b"ICE"), 400, "invalid_http", id="ICE"
    ),
    pytest.param(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_http", id="the preface of HTTP/2"
    ),
    pytest.param(REQUEST.replace(b"POST", b"BREW"), 400, "invalid_http", id="an unknown method"),
    pytest.param(REQUEST.replace(b"POST", b"post"), 400, "invalid_http", id="a lowercase method"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01", 400, "invalid_http", id="a TLS handshake"),
    # Host
    pytest.param(REQUEST.replace(b"Host: h\r\n", b""), 400, "invalid_http", id="no Host"),
    pytest.param(b"GET /v1/x HTTP/1.0\r\n\r\n", 400, "invalid_http", id="no Host, by HTTP/1.0"),
    pytest.param(
        REQUEST.replace(b"Host: h", b"Host: h\r\nHost: g"), 400, "invalid_http", id="two Hosts"
    ),
    pytest.param(
        REQUEST.replace(b"Host: h", b"Host: h\r\nhost: h"), 400, "invalid_http", id="Host twice"
    ),
    pytest.param(REQUEST.replace(b"Host: h", b"Host: h, g"), 400, "invalid_http", id="Host: h, g"),
    pytest.param(REQUEST.replace(b"Host: h", b"Host: h/x"), 400, "invalid_http", id="Host: h/x"),
    pytest.param(REQUEST.replace(b"Host: h", b"Host: h#"), 400, "invalid_http", id="Host: h#"),
    pytest.param(
        REQUEST.replace(b"Host: h", b"Host: a@h"), 400, "invalid_http", id="a user in Host"
    ),
    pytest.param(
        REQUEST.replace(b"Host: h", b"Host: h:80x"), 400, "invalid_http", id="no number in Host"
    ),
    # Framing
    pytest.param(
        HEAD + b"Content-Length: 4\r\n" + CHUNKED, 400, "invalid_http", id="length, then chunked"
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"\r\n\r\n2", b"\r\nContent-Length: 4\r\n\r\n2"),
        400,
        "invalid_http",
        id="chunked, then length",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"gzip, chunked"),
        400,
        "invalid_http",
        id="gzip, chunked",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"chunked, chunked"),
        400,
        "invalid_http",
        id="chunked, chunked",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"chunked, identity"),
        400,
        "invalid_http",
        id="chunked, identity",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"identity"), 400, "invalid_http", id="identity"
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"xchunked"), 400, "invalid_http", id="xchunked"
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b'"chunked"'), 400, "invalid_http", id="quoted chunked"
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"chunked;a=b"),
        400,
        "invalid_http",
        id="chunked with a parameter",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"chunked "),
        400,
        "invalid_http",
        id="chunked and a space",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"chunked\t"),
        400,
        "invalid_http",
        id="chunked and a tab",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"chunked", b"chunk\x0bed"),
        400,
        "invalid_http",
        id="chunked with a vertical tab",
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b" chunked", b""), 400, "invalid_http", id="no coding at all"
    ),
    pytest.param(
        HEAD + b"Transfer-Encoding: chunked\r\n" + CHUNKED,
        400,
        "invalid_http",
        id="chunked given twice",
    ),
    pytest.param(
        HEAD.replace(b"1.1", b"1.0") + CHUNKED, 400, "invalid_http", id="chunked by HTTP/1.0"
    ),
    pytest.param(
        HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        400,
        "invalid_http",
        id="the same length twice",
    ),
    pytest.param(
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        400,
        "invalid_http",
        id="two lengths",
    ),
    *(
        pytest.param(
            HEAD + b"Content-Length: " + value + b"\r\n\r\n{}",
            400,
            "invalid_http",
            id=f"a length of {value!r}",
        )
        for value in (b"2, 2", b"+2", b"-2", b"0x2", b"2.0", b"", b"2 2", b"9" * 20, b"\xb2")
    ),
    # Fields
    pytest.param(REQUEST.replace(b"\r\n", b"\n"), 400, "invalid_http", id="bare LF everywhere"),
    pytest.param(
        HEAD + b"X: 1\nContent-Length: 2\r\n\r\n{}", 400, "invalid_http", id="bare LF after a field"
    ),
    pytest.param(HEAD + b"\n", 400, "invalid_http", id="bare LF as the end of the head"),
    pytest.param(
        REQUEST.replace(b"1.1\r\n", b"1.1\n"), 400, "invalid_http", id="bare LF after the line"
    ),
    pytest.param(HEAD + b"X: a\rb: c\r\n\r\n", 400, "invalid_http", id="bare CR in a value"),
    pytest.param(HEAD + b"X: 1\r\n 2\r\n\r\n", 400, "invalid_http", id="a folded field"),
    pytest.param(HEAD + b"X: 1\r\n\t2\r\n\r\n", 400, "invalid_http", id="a field folded by a tab"),
    pytest.param(
        b"GET /v1/x HTTP/1.1\r\n Host: h\r\n\r\n", 400, "invalid_http", id="a folded first field"
    ),
    pytest.param(HEAD + b"X : 1\r\n\r\n", 400, "invalid_http", id="a space before the colon"),
    pytest.param(HEAD + b": 1\r\n\r\n", 400, "invalid_http", id="a field without a name"),
    pytest.param(HEAD + b"X\r\n\r\n", 400, "invalid_http", id="a field without a colon"),
    pytest.param(HEAD + b"X\xff: 1\r\n\r\n", 400, "invalid_http", id="a name beyond ASCII"),
    *(
        pytest.param(
            HEAD + b"X: a" + byte + b"b\r\n\r\n", 400, "invalid_http", id=f"{byte!r} in a value"
        )
        for byte in (b"\x00", b"\x01", b"\x0b", b"\x1f", b"\x7f")
    ),
    pytest.param(HEAD + b"X\x00: 1\r\n\r\n", 400, "invalid_http", id="NUL in a name"),
]


@pytest.mark.parametrize("packet_bytes", [0, 1000], ids=["in one packet", "in many packets"])
@pytest.mark.parametrize(("data", "status", "code"), REFUSED)
async def test_a_head_is_refused(
    serve: Serve, data: bytes, status: int, code: str, packet_bytes: int
) -> None:
    """One error in the OpenAI shape, then the end; the application hears nothing."""
    app = Echo()
    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        await send_in_packets(client, data, packet_bytes or len(data))
        response = await client.read_response()
        rest = await client.read_until_closed()
    assert (response.status, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.complete
    assert rest == b""
    assert app.scopes == []
    assert [(str(said.reason), peer) for said, peer in served.refusals] == [(code, "127.0.0.1")]
    fields = dict(response.headers)
    assert len(fields) == len(response.headers), "a field occurs twice"
    assert len(fields.pop(b"x-request-id")) == 32
    assert fields == {
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(response.body),
        b"connection": b"close",
        b"x-content-type-options": b"nosniff",
        b"date": b"Thu, 01 Jan 2026 00:00:00 GMT",
    }


@pytest.mark.parametrize("cut", range(8, 26))
async def test_another_protocol_is_refused_wherever_its_name_is_cut(serve: Serve, cut: int) -> None:
    """The parser would take it for HTTP."""
    app = Echo()
    served = await serve(app, linger_seconds=0.1)
    data = REQUEST.replace(b"HTTP", b"RTSP")
    async with await served.connect() as client:
        await client.send(data[:cut])
        await served.has_read(cut)
        await client.send(data[cut:])
        assert (await client.read_response()).status == 400
    assert app.scopes == []


async def send_in_packets(client: RawClient, data: bytes, size: int) -> None:
    """Sends data in packets, until the server has had enough."""
    for at in range(0, len(data), size):
        try:
            await client.send(data[at : at + size])
        except ConnectionError:
            return


ACCEPTED = [
    pytest.param(of_size(32 * 1024), b"", id="a head of 32 KiB"),
    pytest.param(with_fields(100), b"", id="100 fields"),
    pytest.param(with_target(8 * 1024), b"", id="a target of 8 KiB"),
    pytest.param(REQUEST, b"{}", id="a length"),
    pytest.param(HEAD + CHUNKED, b"{}", id="chunked"),
    pytest.param(HEAD + CHUNKED.replace(b"chunked", b"CHUNKED"), b"{}", id="chunked in capitals"),
    pytest.param(HEAD + CHUNKED.replace(b" chunked", b"\t chunked"), b"{}", id="space, chunked"),
    pytest.param(HEAD + b"Content-Length: 002\r\n\r\n{}", b"{}", id="a length with zeros"),
    pytest.param(HEAD + b"Content-Length: 2 \t\r\n\r\n{}", b"{}", id="a length with white space"),
    pytest.param(HEAD + b"\r\n", b"", id="neither: no body"),
    pytest.param(b"\r\n" + REQUEST, b"{}", id="an empty line before"),
    pytest.param(b"\r\n\r\n\r\n" + REQUEST, b"{}", id="empty lines before"),
    pytest.param(REQUEST.replace(b"Host: h", b"HOST:h"), b"{}", id="HOST:h"),
    pytest.param(REQUEST.replace(b"Host: h", b"Host:"), b"{}", id="an empty Host"),
    pytest.param(REQUEST.replace(b"Host: h", b"Host: a_b-c.d:80"), b"{}", id="a Host with a port"),
    pytest.param(REQUEST.replace(b"Host: h", b"Host: [::1]:80"), b"{}", id="a Host by IPv6"),
    pytest.param(HEAD + b"X: a\xffb\r\n\r\n", b"", id="obs-text in a value"),
    pytest.param(REQUEST.replace(b"1.1", b"1.0"), b"{}", id="HTTP/1.0 with a length"),
    pytest.param(
        HEAD + CHUNKED.replace(b"\r\n2\r\n", b'\r\n2;a="b;c";d\r\n'), b"{}", id="chunk extensions"
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"0\r\n", b"0\r\nX: 1\r\nAuthorization: y\r\n"), b"{}", id="trailers"
    ),
    pytest.param(
        HEAD + CHUNKED.replace(b"\r\n2\r\n", b"\r\n0002\r\n"), b"{}", id="a chunk size with zeros"
    ),
]


@pytest.mark.parametrize("packet_bytes", [0, 1], ids=["in one packet", "byte by byte"])
@pytest.mark.parametrize(("data", "body"), ACCEPTED)
async def test_a_head_is_accepted(
    serve: Serve, data: bytes, body: bytes, packet_bytes: int
) -> None:
    """The application gets the request once, without a trailer in its headers."""
    app = Echo()
    served = await serve(app)
    async with await served.connect() as client:
        await send_in_packets(client, data, packet_bytes or len(data))
        response = await client.read_response()
    assert (response.status, response.body, response.complete) == (200, b"ok", True)
    assert app.bodies == [body]
    assert served.refusals == []
    [scope] = app.scopes
    assert [name for name, _ in scope["headers"]].count(b"host") == 1
    assert b"authorization" not in dict(scope["headers"])


async def test_the_scope_has_the_bytes_of_the_target(serve: Serve) -> None:
    """What decides is ``raw_path``; the decoded path and the query come along."""
    app = Echo()
    served = await serve(app)
    async with await served.connect() as client:
        await client.request("GET", "//a/%2e%2E/b%2Fc?x=%41&y=?z", [("X", " 1 "), ("x", "2")])
    [scope] = app.scopes
    assert scope["raw_path"] == b"//a/%2e%2E/b%2Fc"
    assert scope["path"] == "//a/../b/c"
    assert scope["query_string"] == b"x=%41&y=?z"
    assert scope["http_version"] == "1.1"
    assert scope["root_path"] == ""
    assert scope["headers"] == [(b"host", b"bulwark.test"), (b"x", b"1"), (b"x", b"2")]


async def test_nobody_is_told_what_serves(serve: Serve) -> None:
    """No ``server`` field, and one ``date``."""
    served = await serve(Echo())
    async with await served.connect() as client:
        response = await client.request("GET", "/")
    assert response.values(b"server") == []
    assert len(response.values(b"date")) == 1


@pytest.mark.parametrize(
    "upgrade",
    [
        pytest.param(
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
            id="h2c, as Java's HttpClient asks for it",
        ),
        pytest.param("Upgrade: websocket\r\nConnection: upgrade\r\n", id="WebSocket"),
        pytest.param("Upgrade: h2c\r\n", id="without Connection"),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("packet_bytes", [0, 1], ids=["in one packet", "byte by byte"])
async def test_a_wish_to_upgrade_is_ignored(
    serve: Serve, upgrade: str, version: str, packet_bytes: int
) -> None:
    """The request is answered as if it had not asked, with its body."""
    app = Echo()
    served = await serve(app)
    data = f"POST /v1/x HTTP/{version}\r\nHost: h\r\n{upgrade}Content-Length: 2\r\n\r\n{{}}"
    async with await served.connect() as client:
        await send_in_packets(client, data.encode(), packet_bytes or len(data))
        response = await client.read_response()
        assert (response.status, app.bodies) == (200, [b"{}"])
        assert [scope["http_version"] for scope in app.scopes] == [version]
        if version == "1.1":
            again = await client.request("POST", "/", body=b"[]")
            assert (again.status, app.bodies[1:]) == (200, [b"[]"])


async def test_a_chunked_body_behind_a_wish_to_upgrade_is_read(serve: Serve) -> None:
    """And what follows it is another request."""
    app = Echo()
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\n" + CHUNKED)
        assert (await client.read_response()).status == 200
        assert (await client.request("GET", "/")).status == 200
    assert app.bodies == [b"{}", b""]


async def test_an_upgrade_smuggles_nothing(serve: Serve) -> None:
    """The rules of framing hold for it as well."""
    app = Echo()
    served = await serve(app, linger_seconds=0.1)
    data = HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n" + CHUNKED
    answered = await served.ask(data)
    assert answered.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert app.scopes == []


async def test_the_message_names_the_limit(serve: Serve) -> None:
    """A refusal says what was wrong and where the limit is."""
    served = await serve(Echo(), linger_seconds=0.1, max_head_bytes=200)
    answered = await served.ask(of_size(201))
    message = json.loads(answered.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert "larger than 200 bytes" in message


async def test_tls_on_this_port_is_named(serve: Serve) -> None:
    """The commonest wrong setting of a tunnel is in the log in plain words."""
    served = await serve(Echo(), linger_seconds=0.1)
    await served.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    [(refusal, _)] = served.refusals
    assert "TLS" in refusal.message


async def test_keep_alive_serves_one_after_the_other(serve: Serve) -> None:
    """Each request of a connection has its own limits and its own headers."""
    app = Echo()
    served = await serve(app, max_head_bytes=200, max_head_fields=5)
    async with await served.connect() as client:
        for _ in range(5):
            await client.send(with_fields(5))
            assert (await client.read_response()).status == 200
            await client.send(of_size(200))
            assert (await client.read_response()).status == 200
            await client.send(b"\r\n" + request_bytes("POST", "/", body=b"{}"))
            assert (await client.read_response()).status == 200
    assert len(app.scopes) == 15


async def test_a_client_without_an_address_is_unknown(serve: Serve, tmp_path: Path) -> None:
    """It is served and refused like any other."""
    served = await serve(Echo(), linger_seconds=0.1)
    path = str(tmp_path / "socket")
    server = await asyncio.get_running_loop().create_unix_server(served.connection, path)
    answered = []
    for data in (REQUEST.replace(b"Host: h", b"Host: h\r\nConnection: close"), b"GET *"):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(data)
        answered.append((await reader.read()).split(b"\r\n")[0])
        writer.close()
        await writer.wait_closed()
    server.close()
    assert answered == [b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request"]
    assert [client for _, client in served.refusals] == ["unknown"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET /" + b"x" * 50_000, id="a target"),
        pytest.param(HEAD + b"X: " + b"x" * 50_000, id="a field that is not over"),
        pytest.param(HEAD + b"X: " + b"x" * 50_000 + b"\r\nY", id="a field that is"),
        pytest.param(HEAD + b"Content-Length: 99999\r\n\r\n" + b"x" * 50_000, id="a body"),
    ],
)
async def test_what_was_refused_is_not_kept(serve: Serve, data: bytes) -> None:
    """While its client has time to read why: the connection is small again."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 401, b"who are you?")

    served = await serve(app, linger_seconds=60)
    async with await served.connect() as client:
        await client.send(data)
        assert (await client.read_response()).status in {401, 414, 431}
        [connection] = served.state.connections
        held = [value for value in vars(connection).values() if isinstance(value, bytes | list)]
        assert sum(map(len, held)) == 0
        assert connection.parser is None  # type: ignore[union-attr] # it keeps what is not over
        assert connection.cycle is None or not connection.cycle.body  # type: ignore[union-attr]
        assert all(refusal.__traceback__ is None for refusal, _ in served.refusals)
        await client.send(b"more")
