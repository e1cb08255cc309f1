"""Every way in which a request can end badly, rendered in both dialects."""

import inspect
import json
from collections.abc import Iterator

import pytest

from proxy import errors
from proxy.errors import (
    BadRequest,
    ClientDisconnected,
    Dialect,
    Fault,
    InvalidApiKey,
    MissingApiKey,
    Overloaded,
    ProxyError,
    Reason,
    Refusal,
)

ABSTRACT = {ProxyError, Refusal, Fault, BadRequest}
# Retried by the official SDKs, besides 5xx. Source: openai-python and anthropic-sdk-python,
# _base_client._should_retry.
RETRIED = {408, 409, 429}


def concrete(root: type[ProxyError] = ProxyError) -> Iterator[type[ProxyError]]:
    """Every class that is raised."""
    for cls in root.__subclasses__():
        if cls not in ABSTRACT:
            yield cls
        yield from concrete(cls)


ALL = sorted(concrete(), key=lambda cls: cls.__name__)


def make(cls: type[ProxyError]) -> ProxyError:
    """One of this class, as its raisers make it."""
    if "message" in inspect.signature(cls).parameters:
        return cls('It is "é" too <large>.')
    return cls()  # type: ignore[call-arg] # these have one message for everybody


@pytest.mark.parametrize("cls", ALL)
def test_rendered_for_openai_clients(cls: type[ProxyError]) -> None:
    """The shape that OpenAI's SDKs parse, with the reason as the code."""
    error = make(cls)
    shape = json.loads(error.body(Dialect.OPENAI, "r1"))
    assert shape == {
        "error": {
            "message": error.message,
            "type": cls.openai_type,
            "param": None,
            "code": cls.reason.value,
        }
    }
    assert error.message


@pytest.mark.parametrize("cls", ALL)
def test_rendered_for_anthropic_clients(cls: type[ProxyError]) -> None:
    """The shape that Anthropic's SDKs parse, with the request id."""
    error = make(cls)
    assert json.loads(error.body(Dialect.ANTHROPIC, "r1")) == {
        "type": "error",
        "error": {"type": cls.anthropic_type, "message": error.message},
        "request_id": "r1",
    }


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("dialect", Dialect)
def test_told_as_an_event(cls: type[ProxyError], dialect: Dialect) -> None:
    """One event of the route's kind, which every SDK raises on: it has a member ``error``."""
    error = make(cls)
    lines = error.event(dialect, "r1").decode().split("\n")
    name = lines[:-3]
    data = json.loads(lines[-3].removeprefix("data: "))
    assert lines[-2:] == ["", ""]
    assert name == ([] if dialect is Dialect.OPENAI else ["event: error"])
    assert data["error"] == json.loads(error.body(dialect, "r1"))["error"]
    if dialect is Dialect.RESPONSES:
        assert (data["type"], data["sequence_number"]) == ("error", 0)
        assert (data["message"], data["code"]) == (error.message, cls.reason.value)


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        pytest.param(
            Dialect.OPENAI,
            {"message": "no", "type": "server_error", "param": None, "code": 404, "x": 1},
            id="OpenAI",
        ),
        pytest.param(
            Dialect.ANTHROPIC,
            {"message": "no", "type": "api_error", "code": 404, "x": 1},
            id="Anthropic",
        ),
    ],
)
def test_the_upstreams_own_error_is_told(dialect: Dialect, expected: dict[str, object]) -> None:
    """What it says replaces what we would, and what it leaves out is ours."""
    error = errors.UpstreamError("ours", told={"message": "no", "code": 404, "x": 1})
    assert json.loads(error.body(dialect, "r"))["error"] == expected


def test_the_field_at_fault_is_named() -> None:
    """OpenAI's clients get its dotted path."""
    error = errors.InvalidValue("No.", param="messages[3].content")
    assert json.loads(error.body(Dialect.OPENAI, "r"))["error"]["param"] == "messages[3].content"


def test_every_reason_has_its_error_and_every_error_its_reason() -> None:
    """The enum is closed: no word without an error, no two errors with one word."""
    assert sorted(cls.reason for cls in ALL) == sorted(Reason)


@pytest.mark.parametrize("cls", ALL)
def test_a_reason_knows_whether_it_is_a_refusal_or_a_fault(cls: type[ProxyError]) -> None:
    """The log and the metrics see the word only."""
    assert cls.reason.is_fault == issubclass(cls, Fault)
    assert cls.reason.is_refusal == issubclass(cls, Refusal)


@pytest.mark.parametrize("cls", ALL)
def test_the_tree_in_the_docstring_is_the_tree(cls: type[ProxyError]) -> None:
    """Whoever reads the module reads the truth: name, status and reason on one line."""
    lines = [line.split() for line in (errors.__doc__ or "").splitlines()]
    (words,) = [line for line in lines if cls.__name__ in line]
    assert cls.reason.value in words
    # The 400s have theirs at BadRequest.
    assert str(cls.status) in words or issubclass(cls, BadRequest)


def test_policy_refusals_are_not_retried() -> None:
    """An SDK asks once and shows the message; but for what passes by waiting."""
    passing = (
        errors.RequestTimeout,
        errors.RateLimitExceeded,
        errors.TooManyFailures,
        errors.TooManyConnections,
    )
    for cls in concrete(Refusal):
        if cls.status < 500:
            assert (cls.status in RETRIED) == (cls in passing)


def test_a_401_carries_a_challenge() -> None:
    """RFC 9110 §11.6.1."""
    assert MissingApiKey("No.").response_headers() == [(b"www-authenticate", b"Bearer")]


def test_a_403_says_the_same_to_everyone() -> None:
    """Unknown, expired and disabled keys look alike."""
    assert InvalidApiKey().message == InvalidApiKey().message
    assert "www-authenticate" not in str(InvalidApiKey().response_headers())


def test_retry_after_comes_last() -> None:
    """Whole seconds, beside the error's own fields."""
    error = Overloaded("Full.", retry_after_seconds=5, headers=[(b"allow", b"GET")])
    assert error.response_headers() == [(b"allow", b"GET"), (b"retry-after", b"5")]


def test_the_number_of_a_client_that_left() -> None:
    """499 is what nginx logs."""
    assert ClientDisconnected().status == 499
