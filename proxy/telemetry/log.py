"""The log: one line a request, and a few about the server itself.

A line holds what ``RequestContext`` holds: no key, no prompt, no path, no query, no message of an
exception. Everything in it is a number, a word of ours, or an address, so no client can forge a
line or leave a secret in one.
"""

from collections.abc import Callable, MutableMapping
from datetime import datetime
from typing import Any, BinaryIO, Literal

import msgspec
import structlog

from proxy.context import RequestContext
from proxy.errors import Reason, Refusal

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]

# RFC 9110 §9.3 and RFC 5789. Any other method is a word of the client's.
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)


class Log:
    """Writes lines to a stream.

    Args:
        stream: Where to; each line is flushed.
        form: ``json``, or ``text``: the same as ``name=value`` pairs.
        level: The least severe level that is written.
        now: The wall clock, in UTC.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        form: LogFormat,
        level: LogLevel,
        now: Callable[[], datetime],
    ) -> None:
        self._now = now
        render = _as_json if form == "json" else _AsText()
        self._logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            structlog.BytesLogger(stream),
            processors=[self._stamp, render],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            cache_logger_on_first_use=True,
        )
        self._levels: dict[str, Callable[..., object]] = {
            "debug": self._logger.debug,
            "info": self._logger.info,
            "warning": self._logger.warning,
            "error": self._logger.error,
        }

    def request(self, context: RequestContext, *, ended: float, quiet: bool = False) -> None:
        """The canonical line of a request that has ended.

        Args:
            context: What is known of it.
            ended: When, on the clock of ``context.started``.
            quiet: Say it at ``debug`` if it went well: probes are no news.
        """
        endpoint, principal, outcome = context.endpoint, context.principal, context.outcome
        fields: dict[str, object] = {
            "request_id": context.request_id,
            "client": context.client,
            "key_id": principal.key_id if principal else None,
            "method": context.method if context.method in _METHODS else "other",
            "endpoint": endpoint.name if endpoint else None,
            "status": context.final_status,
            "outcome": outcome.value if outcome else "ok",
            "upstream_status": context.upstream_status or None,
            "stream": context.stream,
            "bytes_in": context.bytes_in,
            "bytes_out": context.bytes_out,
            "prompt_chars": context.prompt_chars,
            "output_tokens_bound": context.output_tokens_bound,
            "prompt_tokens": context.prompt_tokens,
            "completion_tokens": context.completion_tokens,
            "usage": _usage_source(context),
            "clamped": context.clamped or None,
            "queued_seconds": round(context.queued_seconds, 4),
            "first_byte_seconds": (
                round(context.first_byte - context.started, 4) if context.first_byte else None
            ),
            "duration_seconds": round(ended - context.started, 4),
        }
        if context.fault:
            fields["fault"] = context.fault
        self._levels[_level(outcome, quiet=quiet)]("request", **fields)

    def refused_early(self, refusal: Refusal, client: str, request_id: str) -> None:
        """The line of what was no request yet: the server refused it below ASGI."""
        self._logger.warning(
            "request",
            request_id=request_id,
            client=client,
            status=refusal.status,
            outcome=refusal.reason.value,
        )

    def server(self, event: str, *, level: LogLevel = "info", **fields: object) -> None:
        """A line about the server itself, of values that are no secrets."""
        self._levels[level](event, **fields)

    def _stamp(self, _: object, level: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        return {
            "timestamp": self._now().isoformat(timespec="milliseconds"),
            "level": level,
            "event": event.pop("event"),
            **event,
        }


def _usage_source(context: RequestContext) -> str | None:
    if context.prompt_tokens is None:
        return None
    return "estimate" if context.usage_estimated else "engine"


def _level(outcome: Reason | None, *, quiet: bool) -> LogLevel:
    if outcome is None:
        return "debug" if quiet else "info"
    if outcome.is_fault:
        return "error"
    return "warning" if outcome.is_refusal else "info"


def _as_json(_: object, __: str, event: MutableMapping[str, Any]) -> bytes:
    return msgspec.json.encode(event)


class _AsText:
    """``name=value`` pairs in the order they were given, for people and ``grep``."""

    def __init__(self) -> None:
        self._render = structlog.processors.LogfmtRenderer(bool_as_flag=False)

    def __call__(self, logger: object, level: str, event: MutableMapping[str, Any]) -> bytes:
        given = {name: value for name, value in event.items() if value is not None}
        return self._render(logger, level, given).encode()
