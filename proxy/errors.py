"""Every way in which a request can end badly, as one tree of exceptions.

::

    ProxyError                      never raised itself
    ├── Refusal                     expected: the client asked for what is not given, or a limit was met
    │   ├── MissingApiKey           401  missing_api_key
    │   ├── InvalidApiKey           403  invalid_api_key
    │   ├── NotFound                404  not_found
    │   ├── MethodNotAllowed        405  method_not_allowed
    │   ├── ModelNotFound           404  model_not_found
    │   ├── RequestTimeout          408  request_timeout
    │   ├── BodyTooLarge            413  body_too_large
    │   ├── TargetTooLong           414  target_too_long
    │   ├── UnsupportedMediaType    415  unsupported_media_type
    │   ├── MisdirectedRequest      421  misdirected_request
    │   ├── RateLimitExceeded       429  rate_limit_exceeded
    │   ├── TooManyFailures         429  too_many_failures
    │   ├── HeadTooLarge            431  head_too_large
    │   ├── BadRequest              400  never raised itself
    │   │   ├── InvalidHttp              invalid_http
    │   │   ├── KeyInQuery               key_in_query
    │   │   ├── InvalidJson              invalid_json
    │   │   ├── BodyTooComplex           body_too_complex
    │   │   ├── InvalidValue             invalid_value
    │   │   ├── ContextLengthExceeded    context_length_exceeded
    │   │   ├── ToolsTooLarge            tools_too_large
    │   │   ├── ParametersTooLarge       parameters_too_large
    │   │   ├── OutputTooLarge           output_too_large
    │   │   ├── TooManyChoices           too_many_choices
    │   │   ├── TooManyInputs            too_many_inputs
    │   │   ├── FieldRefused             field_refused
    │   │   ├── MediaRefused             media_refused
    │   │   ├── RequestExceedsRateLimit  request_exceeds_rate_limit
    │   │   └── RequestExceedsCapacity   request_exceeds_capacity
    │   ├── Overloaded              503  overloaded
    │   └── ShuttingDown            503  shutting_down
    ├── Fault                       unexpected: ours or the upstream's
    │   ├── InternalError           500  internal_error
    │   ├── LimitsUnavailable       503  limits_unavailable
    │   ├── UpstreamError           502  upstream_error
    │   ├── UpstreamUnavailable     503  upstream_unavailable
    │   └── UpstreamTimeout         504  upstream_timeout
    └── ClientDisconnected          499  client_disconnected (logged, never sent: nobody is there)

A refusal is a value with a reason: ``reason`` is the same word in the log line, in the metric label
and in the ``code`` of the error body. Messages are for the client: they name what was wrong, the
limit, the measured value and the setting, and never an address, a key or a traceback.
"""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Header fields: lowercase names and values as latin-1 bytes, order and repeats kept."""


class Dialect(StrEnum):
    """Whose error shape a route speaks. That of OpenAI's Responses differs in its events only."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


class Reason(StrEnum):
    """Why a request was not served. Closed: nothing else becomes a metric label."""

    MISSING_API_KEY = "missing_api_key"
    INVALID_API_KEY = "invalid_api_key"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    REQUEST_TIMEOUT = "request_timeout"
    BODY_TOO_LARGE = "body_too_large"
    TARGET_TOO_LONG = "target_too_long"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    MISDIRECTED_REQUEST = "misdirected_request"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    TOO_MANY_FAILURES = "too_many_failures"
    HEAD_TOO_LARGE = "head_too_large"
    INVALID_HTTP = "invalid_http"
    KEY_IN_QUERY = "key_in_query"
    INVALID_JSON = "invalid_json"
    BODY_TOO_COMPLEX = "body_too_complex"
    INVALID_VALUE = "invalid_value"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    TOOLS_TOO_LARGE = "tools_too_large"
    PARAMETERS_TOO_LARGE = "parameters_too_large"
    OUTPUT_TOO_LARGE = "output_too_large"
    TOO_MANY_CHOICES = "too_many_choices"
    TOO_MANY_INPUTS = "too_many_inputs"
    FIELD_REFUSED = "field_refused"
    MEDIA_REFUSED = "media_refused"
    REQUEST_EXCEEDS_RATE_LIMIT = "request_exceeds_rate_limit"
    REQUEST_EXCEEDS_CAPACITY = "request_exceeds_capacity"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    INTERNAL_ERROR = "internal_error"
    LIMITS_UNAVAILABLE = "limits_unavailable"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    CLIENT_DISCONNECTED = "client_disconnected"

    @property
    def is_fault(self) -> bool:
        """Whether something failed that should not have, so that somebody should look."""
        return self in _FAULTS

    @property
    def is_refusal(self) -> bool:
        """Whether this proxy said no."""
        return not self.is_fault and self is not Reason.CLIENT_DISCONNECTED


_FAULTS = frozenset(
    {
        Reason.INTERNAL_ERROR,
        Reason.LIMITS_UNAVAILABLE,
        Reason.UPSTREAM_ERROR,
        Reason.UPSTREAM_UNAVAILABLE,
        Reason.UPSTREAM_TIMEOUT,
    }
)


class ProxyError(Exception):
    """A request that ends without its answer.

    Args:
        message: One or two sentences for the client.
        param: The request field at fault, as a dotted path (``messages[3].content``), if one is.
        retry_after_seconds: Whole seconds after which trying again makes sense.
        headers: More response fields (``Allow``, ``WWW-Authenticate``).
    """

    status: ClassVar[int]
    reason: ClassVar[Reason]
    openai_type: ClassVar[str] = "invalid_request_error"
    anthropic_type: ClassVar[str] = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: int | None = None,
        headers: RawHeaders = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.headers = tuple(headers)

    def body(self, dialect: Dialect, request_id: str) -> bytes:
        """The error as JSON in the shape that the route's clients parse.

        Source: the OpenAI API reference, "Error codes"; the Anthropic API reference, "Errors".
        """
        error = self._error(dialect)
        if dialect is Dialect.ANTHROPIC:
            return _json({"type": "error", "error": error, "request_id": request_id})
        return _json({"error": error})

    def event(self, dialect: Dialect, request_id: str) -> bytes:
        """The error as the last server-sent event of a stream.

        Source: the OpenAI API reference, "Responses", "Streaming events"; the Anthropic API
        reference, "Streaming messages", "Error events". OpenAI's SDKs raise on any event with a
        member ``error``, and hand a Responses event without one on as if it were output.
        """
        body = self.body(dialect, request_id)
        if dialect is Dialect.RESPONSES:
            error = self._error(dialect)
            told = {name: error.get(name) for name in ("code", "message", "param")}
            body = _json({"type": "error", **told, "sequence_number": 0, "error": error})
        name = b"" if dialect is Dialect.OPENAI else b"event: error\n"
        return b"%bdata: %b\n\n" % (name, body)

    def _error(self, dialect: Dialect) -> dict[str, object]:
        """What is wrong, without the envelope around it."""
        if dialect is Dialect.ANTHROPIC:
            return {"type": self.anthropic_type, "message": self.message}
        return {
            "message": self.message,
            "type": self.openai_type,
            "param": self.param,
            "code": self.reason.value,
        }

    def response_headers(self) -> list[tuple[bytes, bytes]]:
        """The fields that belong to this error, besides those that every response has."""
        fields = list(self.headers)
        if self.retry_after_seconds is not None:
            fields.append((b"retry-after", str(self.retry_after_seconds).encode()))
        return fields


class Refusal(ProxyError):  # noqa: N818 - an expected answer is no error
    """An expected "no". Logged as a warning, without a traceback."""


class Fault(ProxyError):  # noqa: N818 - the word of the log and the design
    """Something failed that should not have: here or at the upstream. Logged as an error."""

    openai_type = "server_error"
    anthropic_type = "api_error"


class MissingApiKey(Refusal):
    """No credential, a malformed one, or two that disagree."""

    status = 401
    reason = Reason.MISSING_API_KEY
    openai_type = anthropic_type = "authentication_error"

    def __init__(self, message: str) -> None:
        # RFC 9110 §11.6.1: a 401 must carry a challenge.
        super().__init__(message, headers=[(b"www-authenticate", b"Bearer")])


class InvalidApiKey(Refusal):
    """Unknown, expired and disabled keys alike: the three must not be told apart from outside."""

    status = 403
    reason = Reason.INVALID_API_KEY
    openai_type = anthropic_type = "permission_error"

    def __init__(self) -> None:
        super().__init__("This API key is not valid here. Ask the server's owner for a key.")


class NotFound(Refusal):
    """A path that is not in the endpoint table."""

    status = 404
    reason = Reason.NOT_FOUND
    anthropic_type = "not_found_error"


class MethodNotAllowed(Refusal):
    """A path of the table, asked with another method."""

    status = 405
    reason = Reason.METHOD_NOT_ALLOWED


class ModelNotFound(Refusal):
    """A model that is not served, or not to this key: the two must not be told apart."""

    status = 404
    reason = Reason.MODEL_NOT_FOUND
    anthropic_type = "not_found_error"


class RequestTimeout(Refusal):
    """The head or the body of the request did not arrive in time."""

    status = 408
    reason = Reason.REQUEST_TIMEOUT


class BodyTooLarge(Refusal):
    """More bytes of body than the cap, announced or sent."""

    status = 413
    reason = Reason.BODY_TOO_LARGE
    anthropic_type = "request_too_large"


class TargetTooLong(Refusal):
    """A request target or a query string over its limit."""

    status = 414
    reason = Reason.TARGET_TOO_LONG


class UnsupportedMediaType(Refusal):
    """A body that is not plain ``application/json``, or one with a content encoding."""

    status = 415
    reason = Reason.UNSUPPORTED_MEDIA_TYPE


class MisdirectedRequest(Refusal):
    """A Host that the admin listener does not answer to (DNS rebinding)."""

    status = 421
    reason = Reason.MISDIRECTED_REQUEST


class RateLimitExceeded(Refusal):
    """The key has had what it was given, for now."""

    status = 429
    reason = Reason.RATE_LIMIT_EXCEEDED
    openai_type = anthropic_type = "rate_limit_error"


class TooManyFailures(Refusal):
    """One more wrong key from an address that has sent too many of them."""

    status = 429
    reason = Reason.TOO_MANY_FAILURES
    openai_type = anthropic_type = "rate_limit_error"


class HeadTooLarge(Refusal):
    """Too many header fields, or too many bytes of them."""

    status = 431
    reason = Reason.HEAD_TOO_LARGE


class BadRequest(Refusal):
    """What the client must change before it asks again. Never raised itself."""

    status = 400


class InvalidHttp(BadRequest):
    """Framing or syntax that two parsers could read differently."""

    reason = Reason.INVALID_HTTP


class KeyInQuery(BadRequest):
    """A credential in the query string, where logs and histories keep it."""

    reason = Reason.KEY_IN_QUERY


class InvalidJson(BadRequest):
    """A body that is not one strict JSON object."""

    reason = Reason.INVALID_JSON


class BodyTooComplex(BadRequest):
    """So many or so deep structures that reading them would hold up everyone else."""

    reason = Reason.BODY_TOO_COMPLEX


class InvalidValue(BadRequest):
    """A governed field of a type or range that is not accepted."""

    reason = Reason.INVALID_VALUE


class ContextLengthExceeded(BadRequest):
    """A prompt over the cap. Clients know this code and compact their history."""

    reason = Reason.CONTEXT_LENGTH_EXCEEDED


class ToolsTooLarge(BadRequest):
    """Tool definitions and schemas over their own cap."""

    reason = Reason.TOOLS_TOO_LARGE


class ParametersTooLarge(BadRequest):
    """Sampling parameters of unreasonable size."""

    reason = Reason.PARAMETERS_TOO_LARGE


class OutputTooLarge(BadRequest):
    """An output over the cap where the operator chose to refuse, not to clamp."""

    reason = Reason.OUTPUT_TOO_LARGE


class TooManyChoices(BadRequest):
    """More sequences in one request than allowed."""

    reason = Reason.TOO_MANY_CHOICES


class TooManyInputs(BadRequest):
    """More items in one list of inputs than allowed."""

    reason = Reason.TOO_MANY_INPUTS


class FieldRefused(BadRequest):
    """A field known to be hostile, or denied by the operator."""

    reason = Reason.FIELD_REFUSED


class MediaRefused(BadRequest):
    """A media part that is not a plain inline payload of a known type, or one too many."""

    reason = Reason.MEDIA_REFUSED


class RequestExceedsRateLimit(BadRequest):
    """More at once than a whole limit: waiting would not help, so that no SDK should retry."""

    reason = Reason.REQUEST_EXCEEDS_RATE_LIMIT


class RequestExceedsCapacity(BadRequest):
    """More tokens than the engine's cache holds, even were it empty."""

    reason = Reason.REQUEST_EXCEEDS_CAPACITY


class Overloaded(Refusal):
    """This proxy is full: the queue, its deadline, or the memory for bodies."""

    status = 503
    reason = Reason.OVERLOADED
    openai_type = "server_error"
    anthropic_type = "overloaded_error"


class ShuttingDown(Refusal):
    """The drain's deadline passed before the request was answered."""

    status = 503
    reason = Reason.SHUTTING_DOWN
    openai_type = "server_error"
    anthropic_type = "overloaded_error"


class InternalError(Fault):
    """A bug of ours."""

    status = 500
    reason = Reason.INTERNAL_ERROR


class LimitsUnavailable(Fault):
    """Nobody can say what the key has had, and the operator wants no guesses."""

    status = 503
    reason = Reason.LIMITS_UNAVAILABLE
    anthropic_type = "overloaded_error"


class UpstreamError(Fault):
    """The upstream answered something that must not or cannot be relayed.

    Args:
        message: Ours.
        told: The upstream's own error object, which is told in place of ours.
    """

    status = 502
    reason = Reason.UPSTREAM_ERROR

    def __init__(self, message: str, *, told: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self._told = told

    def _error(self, dialect: Dialect) -> dict[str, object]:
        return super()._error(dialect) | (self._told or {})


class UpstreamUnavailable(Fault):
    """The upstream cannot be connected to: it is starting, or down."""

    status = 503
    reason = Reason.UPSTREAM_UNAVAILABLE
    anthropic_type = "overloaded_error"


class UpstreamTimeout(Fault):
    """The upstream did not connect, answer or go on in time."""

    status = 504
    reason = Reason.UPSTREAM_TIMEOUT
    anthropic_type = "timeout_error"


class ClientDisconnected(ProxyError):  # noqa: N818 - an event, not an error
    """The client left. 499 is nginx's number for it; it appears in logs and metrics only."""

    status = 499
    reason = Reason.CLIENT_DISCONNECTED

    def __init__(self) -> None:
        super().__init__("The client closed the connection.")


def _json(shape: dict[str, object]) -> bytes:
    # In ASCII, because some readers of events end a line at U+0085 or U+2028 too (str.splitlines).
    return json.dumps(shape, separators=(",", ":")).encode()
