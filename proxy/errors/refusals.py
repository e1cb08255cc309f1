"""What is expected and said no to: each is raised where it is decided."""

from proxy.errors.base import Refusal
from proxy.errors.reasons import Reason


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


class TooManyConnections(Refusal):
    """One address holds as many connections as one may."""

    status = 429
    reason = Reason.TOO_MANY_CONNECTIONS
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


class ConnectionsExhausted(Refusal):
    """All clients together hold as many connections as this proxy serves."""

    status = 503
    reason = Reason.CONNECTIONS_EXHAUSTED
    openai_type = "server_error"
    anthropic_type = "overloaded_error"


class ShuttingDown(Refusal):
    """The drain's deadline passed before the request was answered."""

    status = 503
    reason = Reason.SHUTTING_DOWN
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
