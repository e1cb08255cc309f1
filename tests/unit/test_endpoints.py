"""The endpoint table: exact bytes, deny by default."""

import pytest

from proxy.endpoints import ENDPOINTS, BodyKind, Endpoint, EndpointTable
from proxy.errors import Dialect, MethodNotAllowed, NotFound

DEFAULT = EndpointTable.named(())
OFF_BY_DEFAULT = {"rerank", "score"}


def test_the_default_table() -> None:
    """Everything but rerank and score is served without being named."""
    assert {row.name for row in DEFAULT.served} == {row.name for row in ENDPOINTS} - OFF_BY_DEFAULT


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: row.name)
def test_each_row_is_found_by_its_method_and_path(row: Endpoint) -> None:
    """Where it is served, and only then."""
    only = EndpointTable.named((row.name,))
    assert only.served == (row,)
    route = only.match(row.method, row.path)
    assert (route.endpoint, route.refusal) == (row, None)
    others = EndpointTable.named(tuple(other.name for other in ENDPOINTS if other != row))
    assert isinstance(others.match(row.method, row.path).refusal, NotFound)


def test_every_body_has_one_endpoint() -> None:
    """A kind of body that no endpoint takes would be a rule that nobody meets."""
    assert sorted(row.body for row in ENDPOINTS if row.body) == sorted(BodyKind)


def test_the_dialects() -> None:
    """Anthropic's routes are the ones under /v1/messages; OpenAI's Responses have own events."""
    others = {
        b"/v1/messages": Dialect.ANTHROPIC,
        b"/v1/messages/count_tokens": Dialect.ANTHROPIC,
        b"/v1/responses": Dialect.RESPONSES,
    }
    for row in ENDPOINTS:
        assert row.dialect is others.get(row.path, Dialect.OPENAI)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(b"/v1/models/", id="a slash behind"),
        pytest.param(b"//v1/models", id="a slash before"),
        pytest.param(b"/v1//models", id="a slash within"),
        pytest.param(b"/v1/v1/models", id="the prefix twice"),
        pytest.param(b"/models", id="no prefix"),
        pytest.param(b"/v1/Models", id="another case"),
        pytest.param(b"/v1%2Fmodels", id="an encoded slash"),
        pytest.param(b"/v1/%6dodels", id="an encoded letter"),
        pytest.param(b"/v1/models%00", id="an encoded NUL"),
        pytest.param(b"/v1/models;x", id="a path parameter"),
        pytest.param(b"/v1/./models", id="a dot segment"),
        pytest.param(b"/v1/../v1/models", id="two dots"),
        pytest.param(b"/v1/models/m", id="one model"),
        pytest.param(b"/v1/models/org%2Fname", id="one model with an encoded slash"),
        pytest.param(b"/v1", id="the prefix alone"),
        pytest.param(b"/", id="the root"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"*", id="the asterisk form"),
        pytest.param(b"/metrics", id="the upstream's metrics"),
        pytest.param(b"/v1/../metrics", id="the upstream's metrics by two dots"),
        pytest.param(b"/docs", id="documentation"),
        pytest.param(b"/health", id="the upstream's health"),
        pytest.param(b"/tokenize", id="a control endpoint"),
        pytest.param(b"/v1/load_lora_adapter", id="a control endpoint under v1"),
        pytest.param(b"/v1/rerank", id="an endpoint that is off"),
        pytest.param(b"/v1/chat/completions/render", id="a path below an endpoint"),
    ],
)
def test_everything_else_is_not_found(path: bytes) -> None:
    """404, with the base URL and the table in the message, for whoever may read it."""
    route = DEFAULT.match("GET", path)
    assert route.endpoint is None
    assert isinstance(route.refusal, NotFound)
    assert "ends in /v1" in route.refusal.message
    assert "POST /v1/chat/completions" in route.refusal.message
    assert "/v1/rerank" not in route.refusal.message


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        pytest.param("GET", b"/v1/chat/completions", b"POST", id="GET where POST is"),
        pytest.param("POST", b"/v1/models", b"GET", id="POST where GET is"),
        pytest.param("HEAD", b"/v1/models", b"GET", id="HEAD where GET is"),
        pytest.param("DELETE", b"/v1/models", b"GET", id="DELETE"),
        pytest.param("OPTIONS", b"/v1/models", b"GET", id="OPTIONS"),
        pytest.param("get", b"/v1/models", b"GET", id="a method in lower case"),
        pytest.param("FOO", b"/v1/messages", b"POST", id="a method nobody knows"),
    ],
)
def test_another_method_is_not_allowed(method: str, path: bytes, allow: bytes) -> None:
    """405 with Allow; the row is known, so that the error is in its dialect."""
    route = DEFAULT.match(method, path)
    assert route.endpoint is not None
    assert isinstance(route.refusal, MethodNotAllowed)
    assert route.refusal.response_headers() == [(b"allow", allow)]


def test_names_narrow_and_widen() -> None:
    """PROXY_ENDPOINTS is the whole list, in the table's order."""
    assert [row.name for row in EndpointTable.named(("score", "models")).served] == [
        "models",
        "score",
    ]


def test_an_unknown_name_is_an_error() -> None:
    """With the names that there are."""
    with pytest.raises(ValueError, match="unknown endpoint chat; known are models, chat"):
        EndpointTable.named(("chat",))
