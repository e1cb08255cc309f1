"""Why a request was not served: the one word that log, metrics and error bodies share."""

from enum import StrEnum


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
    TOO_MANY_CONNECTIONS = "too_many_connections"
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
    CONNECTIONS_EXHAUSTED = "connections_exhausted"
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
