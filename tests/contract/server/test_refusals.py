"""What every refusal has, whichever layer says it: all ways to fail, on a real socket."""

from typing import Any

import pytest

from proxy.errors import Reason
from tests.contract.tables.refusals import CASES, ORIGIN, Case, gives_way
from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.fixtures import ending, proxy
from tests.harness.running import KEY, Launch

__all__ = ["ending", "proxy"]

WAITING = {429, 503, 504}
"""The statuses that say when to come again."""


def test_all_ways_to_fail_are_here() -> None:
    """But the one that nobody is told of."""
    assert {case.reason for case in CASES} == set(Reason) - {Reason.CLIENT_DISCONNECTED}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.status} {case.reason} {case.how}") for case in CASES]
)
async def test_a_refusal(proxy: Launch, case: Case) -> None:
    """Shape, fields, line, count, and an end of the connection where one was announced."""
    front = await proxy(cors_origins=ORIGIN, **case.settings)
    answer, client = await case.ask(front)
    assert (answer.status, answer.complete) == (case.status, True)
    assert_shape(answer, case.reason)
    assert_readable(answer, by_the_page=case.page_known)
    line = await front.log.of(answer)
    assert (line["status"], line["outcome"]) == (case.status, case.reason)
    assert line["level"] == ("error" if case.reason.is_fault else "warning")
    assert line["client"] == "127.0.0.1"
    if not case.operators:
        front.assert_counted(line)
    assert KEY not in front.log.text
    await assert_ends_as_it_says(answer, client)


def assert_shape(answer: RawResponse, code: str) -> None:
    """As OpenAI's clients parse it, under the fields that every answer has."""
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]
    names = [name for name, _ in answer.headers]
    assert len(names) == len(set(names))
    assert answer.header(b"content-type") == b"application/json"
    assert answer.header(b"content-length") == b"%d" % len(answer.body)
    assert len(answer.header(b"x-request-id") or b"") == 32
    assert answer.header(b"x-content-type-options") == b"nosniff"
    assert answer.header(b"date")
    assert (answer.header(b"retry-after") is not None) == (answer.status in WAITING)


def assert_readable(answer: RawResponse, *, by_the_page: bool) -> None:
    """What a browser needs before it shows an answer to a page."""
    allowed = answer.header(b"access-control-allow-origin")
    if by_the_page:
        assert allowed == ORIGIN.encode()
        assert answer.header(b"vary") == b"Origin"
        # What SDKs obey: one that cannot see it comes again when it was told not to.
        told = {name for name, _ in answer.headers if name.startswith((b"x-", b"retry-"))}
        exposed = (answer.header(b"access-control-expose-headers") or b"").lower().split(b", ")
        assert told - {b"x-content-type-options"} <= set(exposed)
    else:
        assert allowed is None


async def assert_ends_as_it_says(answer: RawResponse, client: RawClient) -> None:
    """A connection that is not closed takes another request; one that is ends in order."""
    if answer.header(b"connection") == b"close":
        assert await client.read_until_closed() == b""
        assert not client.was_reset
    else:
        again = {"Host": "localhost"}  # a name of the admin listener's, too
        assert (await client.request("GET", "/healthz", again)).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param("Origin: https://evil.example", id="another page"),
        pytest.param(f"Origin: {ORIGIN}.evil.example", id="one whose name begins so"),
        pytest.param(f"Origin: {ORIGIN}\r\nOrigin: {ORIGIN}", id="two of them"),
        pytest.param("Origin: null", id="a page without an origin"),
        pytest.param("X: x", id="no page"),
    ],
)
@pytest.mark.parametrize("target", ["/v1/models", "/" + "x" * 9_000])
async def test_no_other_page_may_read_it(proxy: Launch, origin: str, target: str) -> None:
    """Of either layer; and no cache mixes the two up."""
    front = await proxy(cors_origins=ORIGIN)
    client = await front.connect()
    await client.send(
        request_bytes("GET", target).replace(b"\r\n", f"\r\n{origin}\r\n".encode(), 1)
    )
    answer = await client.read_response()
    assert answer.status in {401, 414}
    assert_readable(answer, by_the_page=False)
    assert answer.header(b"vary") == b"Origin"


async def test_no_page_reads_where_none_is_listed(proxy: Launch) -> None:
    """CORS is off by default, below ASGI too."""
    front = await proxy()
    for target in ("/v1/models", "/" + "x" * 9_000):
        answer = await front.ask("GET", target, {"Origin": ORIGIN})
        assert_readable(answer, by_the_page=False)
        assert answer.header(b"vary") is None


@pytest.mark.parametrize(
    ("rest", "known"),
    [
        pytest.param(b"\r\nX", True, id="and the next has begun"),
        pytest.param(b"\r\n", False, id="and it might go on"),
        pytest.param(b"", False, id="nor is it all there"),
    ],
)
async def test_a_head_that_is_late_is_readable_as_far_as_it_came(
    proxy: Launch, rest: bytes, *, known: bool
) -> None:
    """The Origin has come."""
    front = await proxy(cors_origins=ORIGIN, max_idle_connections=1)
    client = await front.connect()
    await client.send(b"GET /v1/models HTTP/1.1\r\nOrigin: " + ORIGIN.encode() + rest)
    answer = await gives_way(front, client)
    assert answer.status == 408
    assert_readable(answer, by_the_page=known)


async def test_a_long_target_of_a_head_that_is_late(proxy: Launch) -> None:
    """What is wrong with it, and not only that it is late."""
    front = await proxy(max_idle_connections=1)
    client = await front.connect()
    await client.send(b"GET /" + b"x" * 9_000)
    assert (await gives_way(front, client)).status == 414


@pytest.mark.parametrize("size", [8 * 1024, 8 * 1024 + 1], ids=["as long as may be", "one more"])
async def test_a_long_target_is_judged_with_its_head(proxy: Launch, size: int) -> None:
    """However its packets are cut, its page can read the answer."""
    front = await proxy(cors_origins=ORIGIN)
    client = await front.connect()
    whole = request_bytes("GET", "/" + "x" * (size - 1), {"Origin": ORIGIN})
    for begin in range(0, len(whole), 1_400):
        await client.send(whole[begin : begin + 1_400])
    answer = await client.read_response()
    assert answer.status == (401 if size == 8 * 1024 else 414)
    assert_readable(answer, by_the_page=True)


async def test_a_target_and_a_head_without_an_end(proxy: Launch) -> None:
    """The first of the two limits is the one that is told."""
    front = await proxy(cors_origins=ORIGIN)
    client = await front.connect()
    await client.send(b"GET /" + b"x" * 9_000)
    await client.send(b" HTTP/1.1\r\nX: " + b"x" * 40_000)
    answer = await client.read_response()
    assert (answer.status, answer.json()["error"]["code"]) == (414, "target_too_long")


async def test_a_target_and_too_many_fields(proxy: Launch) -> None:
    """Likewise."""
    front = await proxy()
    answer = await front.ask("GET", "/" + "x" * 9_000, {f"X{n}": "x" for n in range(101)})
    assert (answer.status, answer.json()["error"]["code"]) == (414, "target_too_long")


@pytest.mark.parametrize(
    "target", [pytest.param("/" + "x" * 9_000, id="414"), pytest.param("*", id="400")]
)
async def test_a_refused_head_request_has_no_body(proxy: Launch, target: str) -> None:
    """RFC 9110 §9.3.2: it says how long the body would be."""
    front = await proxy()
    client = await front.connect()
    await client.send(request_bytes("HEAD", target))
    answer = await client.read_response(method="HEAD")
    assert answer.status in {400, 414}
    assert int(answer.header(b"content-length") or b"") > 50
    assert await client.read_until_closed() == b""


async def test_what_follows_a_head_request_has_a_body(proxy: Launch) -> None:
    """The parser remembers the method of the last one; what is no request has none."""
    front = await proxy()
    client = await front.connect()
    await client.send(request_bytes("HEAD", "/healthz"))
    assert (await client.read_response(method="HEAD")).status == 200
    await client.send(b"\x16\x03\x01")
    answer = await client.read_response()
    assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_http")
