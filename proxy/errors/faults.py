"""What failed that should not have, and the client that left."""

from proxy.errors.base import Dialect, Fault, ProxyError
from proxy.errors.reasons import Reason


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
