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
    │   ├── TooManyConnections      429  too_many_connections
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
    │   ├── ConnectionsExhausted    503  connections_exhausted
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

from proxy.errors.base import Dialect, Fault, ProxyError, RawHeaders, Refusal
from proxy.errors.faults import (
    ClientDisconnected,
    InternalError,
    LimitsUnavailable,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.errors.reasons import Reason
from proxy.errors.refusals import (
    BadRequest,
    BodyTooComplex,
    BodyTooLarge,
    ConnectionsExhausted,
    ContextLengthExceeded,
    FieldRefused,
    HeadTooLarge,
    InvalidApiKey,
    InvalidHttp,
    InvalidJson,
    InvalidValue,
    KeyInQuery,
    MediaRefused,
    MethodNotAllowed,
    MisdirectedRequest,
    MissingApiKey,
    ModelNotFound,
    NotFound,
    OutputTooLarge,
    Overloaded,
    ParametersTooLarge,
    RateLimitExceeded,
    RequestExceedsCapacity,
    RequestExceedsRateLimit,
    RequestTimeout,
    ShuttingDown,
    TargetTooLong,
    ToolsTooLarge,
    TooManyChoices,
    TooManyConnections,
    TooManyFailures,
    TooManyInputs,
    UnsupportedMediaType,
)

__all__ = [
    "BadRequest",
    "BodyTooComplex",
    "BodyTooLarge",
    "ClientDisconnected",
    "ConnectionsExhausted",
    "ContextLengthExceeded",
    "Dialect",
    "Fault",
    "FieldRefused",
    "HeadTooLarge",
    "InternalError",
    "InvalidApiKey",
    "InvalidHttp",
    "InvalidJson",
    "InvalidValue",
    "KeyInQuery",
    "LimitsUnavailable",
    "MediaRefused",
    "MethodNotAllowed",
    "MisdirectedRequest",
    "MissingApiKey",
    "ModelNotFound",
    "NotFound",
    "OutputTooLarge",
    "Overloaded",
    "ParametersTooLarge",
    "ProxyError",
    "RateLimitExceeded",
    "RawHeaders",
    "Reason",
    "Refusal",
    "RequestExceedsCapacity",
    "RequestExceedsRateLimit",
    "RequestTimeout",
    "ShuttingDown",
    "TargetTooLong",
    "TooManyChoices",
    "TooManyConnections",
    "TooManyFailures",
    "TooManyInputs",
    "ToolsTooLarge",
    "UnsupportedMediaType",
    "UpstreamError",
    "UpstreamTimeout",
    "UpstreamUnavailable",
]
