"""What every error has, and how it is told to a client."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from proxy.errors.reasons import Reason

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Header fields: lowercase names and values as latin-1 bytes, order and repeats kept."""


class Dialect(StrEnum):
    """Whose error shape a route speaks. That of OpenAI's Responses differs in its events only."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


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


def _json(shape: dict[str, object]) -> bytes:
    # In ASCII, because some readers of events end a line at U+0085 or U+2028 too (str.splitlines).
    return json.dumps(shape, separators=(",", ":")).encode()
