"""The two allow-lists, as tables: for every field that crosses, its neighbour that does not."""

import pytest

from proxy.headers import may_be_relayed, to_client, to_upstream

_SECRETS = {b"authorization": b"Bearer canary", b"cookie": b"canary", b"x-api-key": b"canary"}


def upstream_fields(*headers: tuple[bytes, bytes], api_key: bytes | None = None) -> list[object]:
    """What the upstream gets of these fields, besides the four that every request has of ours."""
    fields = to_upstream(
        headers, host=b"up:8000", request_id=b"req-1", api_key=api_key, content_length=2
    )
    ours = {b"host", b"accept-encoding", b"x-request-id", b"content-length"}
    return [field for field in fields if field[0] not in ours]


@pytest.mark.parametrize(
    "field",
    [
        pytest.param((b"content-type", b"application/json"), id="the type of the body"),
        pytest.param((b"accept", b"text/event-stream"), id="what the client accepts"),
        pytest.param((b"user-agent", b"OpenAI/Python 3.57"), id="the client's own name, not ours"),
        pytest.param((b"anthropic-version", b"2023-06-01"), id="the version of Anthropic's API"),
        pytest.param((b"anthropic-beta", b"tools-2024"), id="the betas of Anthropic's API"),
        pytest.param((b"openai-organization", b"org-1"), id="any field of OpenAI's own"),
        pytest.param((b"user-agent", b"caf\xe9"), id="a value that is not ASCII, byte for byte"),
    ],
)
def test_crosses_to_the_upstream(field: tuple[bytes, bytes]) -> None:
    """These reach the upstream as they came."""
    assert upstream_fields(field) == [field]


@pytest.mark.parametrize(
    "field",
    [
        *[pytest.param(item, id=f"credentials in {item[0].decode()}") for item in _SECRETS.items()],
        pytest.param((b"api-key", b"canary"), id="credentials in api-key"),
        pytest.param((b"x-goog-api-key", b"canary"), id="credentials in x-goog-api-key"),
        pytest.param((b"proxy-authorization", b"canary"), id="credentials for a proxy"),
        pytest.param((b"x-data-parallel-rank", b"1"), id="a field that picks the GPU"),
        pytest.param((b"x-vllm-priority", b"-9"), id="a field that jumps the queue"),
        pytest.param((b"x-session-id", b"s"), id="a field that picks a cache"),
        pytest.param((b"traceparent", b"00-1-2-01"), id="tracing"),
        pytest.param((b"x-forwarded-for", b"1.2.3.4"), id="a forwarded-for field"),
        pytest.param((b"forwarded", b"for=1.2.3.4"), id="the standard forwarded field"),
        pytest.param((b"connection", b"close"), id="the client's connection"),
        pytest.param((b"keep-alive", b"1"), id="keep-alive"),
        pytest.param((b"te", b"trailers"), id="te"),
        pytest.param((b"upgrade", b"h2c"), id="an upgrade"),
        pytest.param((b"expect", b"100-continue"), id="expect"),
        pytest.param((b"transfer-encoding", b"chunked"), id="the client's framing"),
        pytest.param((b"content-length", b"999"), id="the client's length"),
        pytest.param((b"content-encoding", b"identity"), id="the body's encoding"),
        pytest.param((b"host", b"evil"), id="the client's Host"),
        pytest.param((b"accept-encoding", b"gzip"), id="what the client could decompress"),
        pytest.param((b"x-request-id", b"c1"), id="the client's request id"),
        pytest.param((b"anthropic-other", b"1"), id="a field of Anthropic's that is not listed"),
        pytest.param((b"openai", b"1"), id="a name that only begins like an allowed one"),
        pytest.param((b"x-unknown", b"1"), id="a field nobody thought of"),
    ],
)
def test_stays_behind(field: tuple[bytes, bytes]) -> None:
    """These never reach the upstream, and no value of theirs does."""
    fields = to_upstream(
        [field], host=b"up:8000", request_id=b"req-1", api_key=None, content_length=2
    )
    assert fields == [
        (b"host", b"up:8000"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", b"req-1"),
        (b"content-length", b"2"),
    ]


def test_the_upstream_gets_its_own_key_and_never_the_clients() -> None:
    """With a key of the upstream's set, that is the one Authorization it sees."""
    assert upstream_fields(*_SECRETS.items(), api_key=b"up-key") == [
        (b"authorization", b"Bearer up-key")
    ]


def test_repeated_fields_keep_their_count_and_order() -> None:
    """Two fields of one name are two fields, not one with a comma."""
    fields = [(b"anthropic-beta", b"a, b"), (b"accept", b"x"), (b"anthropic-beta", b"c")]
    assert upstream_fields(*fields) == fields


def test_fields_named_by_connection_stay_behind() -> None:
    """What Connection names is for one hop, even where it is on the list."""
    fields = [(b"connection", b"close, OpenAI-Beta ,"), (b"openai-beta", b"1"), (b"accept", b"x")]
    assert upstream_fields(*fields) == [(b"accept", b"x")]


def test_connection_cannot_remove_a_field_of_ours() -> None:
    """A client that names our fields in Connection changes nothing."""
    hostile = [(b"connection", b"host, x-request-id, content-length, authorization")]
    assert to_upstream(hostile, host=b"u", request_id=b"r", api_key=b"k", content_length=0) == [
        (b"host", b"u"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", b"r"),
        (b"authorization", b"Bearer k"),
        (b"content-length", b"0"),
    ]


def test_a_request_without_a_body_has_no_length() -> None:
    """GET goes out without Content-Length."""
    fields = to_upstream([], host=b"u", request_id=b"r", api_key=None, content_length=None)
    assert b"content-length" not in dict(fields)


@pytest.mark.parametrize(
    ("received", "sent"),
    [
        pytest.param(
            [(b"Content-Type", b"application/json"), (b"CONTENT-LENGTH", b"7")],
            [(b"content-type", b"application/json"), (b"content-length", b"7")],
            id="type and length cross, in any case of the name",
        ),
        pytest.param([(b"retry-after", b"30")], [(b"retry-after", b"30")], id="retry-after"),
        pytest.param(
            [(b"cache-control", b"no-store"), (b"content-type", b"text/plain")],
            [(b"cache-control", b"no-store"), (b"content-type", b"text/plain")],
            id="cache-control of what is no event stream",
        ),
        pytest.param(
            [(b"openai-processing-ms", b"5"), (b"anthropic-organization-id", b"o")],
            [(b"openai-processing-ms", b"5"), (b"anthropic-organization-id", b"o")],
            id="the fields of the two APIs",
        ),
        pytest.param(
            [(b"openai", b"1"), (b"x-anthropic-y", b"1")], [], id="names that resemble them"
        ),
        pytest.param([(b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2")], [], id="cookies"),
        pytest.param([(b"location", b"http://evil")], [], id="redirects"),
        pytest.param([(b"access-control-allow-origin", b"*")], [], id="CORS"),
        pytest.param([(b"server", b"uvicorn"), (b"date", b"now")], [], id="the upstream's server"),
        pytest.param([(b"x-request-id", b"r1")], [], id="the upstream's request id"),
        pytest.param([(b"x-ratelimit-remaining-requests", b"0")], [], id="rates that are not ours"),
        pytest.param([(b"x-bulwark-clamped", b"x")], [], id="fields that only the proxy sets"),
        pytest.param([(b"www-authenticate", b"Basic")], [], id="the upstream's challenge"),
        pytest.param([(b"x-unknown", b"1")], [], id="a field nobody thought of"),
        pytest.param(
            [(b"connection", b"close, Retry-After"), (b"retry-after", b"1"), (b"keep-alive", b"5")],
            [],
            id="hop-by-hop fields and those that Connection names",
        ),
        pytest.param(
            [(b"content-length", b"5"), (b"Transfer-Encoding", b"chunked")],
            [],
            id="a length beside a transfer coding is none",
        ),
        pytest.param(
            [(b"content-length", b"5"), (b"content-length", b"6")], [], id="two lengths are none"
        ),
        pytest.param(
            [(b"content-type", b"text/plain"), (b"content-type", b"text/html")],
            [(b"content-type", b"text/plain")],
            id="a second type is dropped",
        ),
    ],
)
def test_to_client(received: list[tuple[bytes, bytes]], sent: list[tuple[bytes, bytes]]) -> None:
    """The client gets what is listed, and nothing else."""
    assert to_client(received, extra=frozenset()) == sent


@pytest.mark.parametrize(
    "from_upstream",
    [
        pytest.param([], id="the upstream sends neither"),
        pytest.param(
            [(b"X-Accel-Buffering", b"yes"), (b"Cache-Control", b"no-cache")], id="it sends both"
        ),
        pytest.param([(b"cache-control", b"private"), (b"cache-control", b"x")], id="it sends two"),
    ],
)
@pytest.mark.parametrize("kind", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8"])
def test_event_streams_have_exactly_one_of_each_anti_buffering_field(
    kind: bytes, from_upstream: list[tuple[bytes, bytes]]
) -> None:
    """Server-sent events say once that nobody may cache or collect them."""
    assert to_client([(b"content-type", kind), *from_upstream], extra=frozenset()) == [
        (b"content-type", kind),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]


def test_only_event_streams_get_the_anti_buffering_fields() -> None:
    """A type that merely contains the words is no event stream."""
    received = [(b"content-type", b"application/text/event-stream"), (b"x-accel-buffering", b"no")]
    assert to_client(received, extra=frozenset()) == received[:1]


def test_the_operator_adds_names() -> None:
    """PROXY_RESPONSE_HEADERS widens the list by name, in any case of the upstream's."""
    received = [(b"X-Model-Version", b"7"), (b"x-model", b"8")]
    assert to_client(received, extra=frozenset({b"x-model-version"})) == [
        (b"x-model-version", b"7")
    ]


@pytest.mark.parametrize(
    "name",
    [
        b"set-cookie",
        b"location",
        b"transfer-encoding",
        b"connection",
        b"content-encoding",
        b"access-control-allow-origin",
        b"x-ratelimit-limit-requests",
        b"x-bulwark-clamped",
        b"x-request-id",
        b"x-accel-redirect",
    ],
)
def test_the_operator_cannot_add_what_is_ours_or_harmful(name: bytes) -> None:
    """Adding these by name changes nothing."""
    assert not may_be_relayed(name)
    assert to_client([(name, b"1")], extra=frozenset({name})) == []


def test_the_operator_may_add_any_other_name() -> None:
    """An ordinary name is the operator's to relay."""
    assert may_be_relayed(b"x-model-version")
