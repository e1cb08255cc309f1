"""The log: one line a request, and a few about the server itself.

A line holds what ``RequestContext`` holds: no key, no prompt, no path, no query, no message of an
exception. Everything in it is a number, a word of ours, or an address, so no client can forge a
line or leave a secret in one.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import BinaryIO, Literal

import msgspec
import structlog

from proxy.context import RequestContext
from proxy.errors import Reason, Refusal
from proxy.telemetry.writer import LineWriter

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]

_SEVERITY: Mapping[LogLevel, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}

# An enumeration's own ``value`` is ten times a look-up.
_WORDS: Mapping[Reason | None, str] = {None: "ok", **{reason: reason.value for reason in Reason}}

# RFC 9110 §9.3 and RFC 5789. Any other method is a word of the client's.
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)


class Log:
    """Writes lines to a stream.

    Args:
        stream: Where to.
        form: ``json``, or ``text``: the same as ``name=value`` pairs.
        level: The least severe level that is written.
        now: The wall clock, in UTC.
        on_lost: Called with how many lines could not be written, whenever some could not.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        form: LogFormat,
        level: LogLevel,
        now: Callable[[], datetime],
        on_lost: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._now = now
        self._render = msgspec.json.Encoder().encode if form == "json" else _AsText()
        self._least = _SEVERITY[level]
        self._writer = LineWriter(stream, lost=self._lost_lines, on_lost=on_lost)

    def request(self, context: RequestContext, *, ended: float, quiet: bool = False) -> None:
        """The canonical line of a request that has ended.

        Args:
            context: What is known of it.
            ended: When, on the clock of ``context.started``.
            quiet: Say it at ``debug`` if it went well: probes are no news.
        """
        outcome = context.outcome
        level = _level(outcome, quiet=quiet)
        if _SEVERITY[level] < self._least:
            return
        endpoint, principal = context.endpoint, context.principal
        started, first_byte = context.started, context.first_byte
        line: dict[str, object] = {
            "timestamp": self._timestamp(),
            "level": level,
            "event": "request",
            "request_id": context.request_id,
            "client": context.client,
            "key_id": principal.key_id if principal is not None else None,
            "method": context.method if context.method in _METHODS else "other",
            "endpoint": endpoint.name if endpoint is not None else None,
            "status": context.final_status,
            "outcome": _WORDS[outcome],
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
            "first_byte_seconds": round(first_byte - started, 4) if first_byte else None,
            "duration_seconds": round(ended - started, 4),
        }
        if context.fault:
            line["fault"] = context.fault
        self._write(line)

    def refused_early(self, refusal: Refusal, client: str, request_id: str) -> None:
        """The line of what was no request yet: the server refused it below ASGI."""
        self.server(
            "request",
            level="warning",
            request_id=request_id,
            client=client,
            status=refusal.status,
            outcome=refusal.reason.value,
        )

    def server(self, event: str, *, level: LogLevel = "info", **fields: object) -> None:
        """A line about the server itself, of values that are no secrets."""
        if _SEVERITY[level] >= self._least:
            self._write(self._line(event, level, fields))

    def close(self) -> None:
        """Writes what still waits to be written, within a second; what comes later is written at once."""
        self._writer.close()

    def _line(self, event: str, level: LogLevel, fields: Mapping[str, object]) -> dict[str, object]:
        return {"timestamp": self._timestamp(), "level": level, "event": event, **fields}

    def _write(self, line: dict[str, object]) -> None:
        self._writer.write(self._render(line) + b"\n")

    def _lost_lines(self, number: int) -> bytes:
        """Stands where lines are missing, whatever the level: nobody should count on what is left."""
        return self._render(self._line("log_lines_dropped", "warning", {"lines": number})) + b"\n"

    def _timestamp(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


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


class _AsText:
    """``name=value`` pairs in the order they were given, for people and ``grep``."""

    def __init__(self) -> None:
        self._render = structlog.processors.LogfmtRenderer(bool_as_flag=False)

    def __call__(self, line: dict[str, object]) -> bytes:
        given = {name: value for name, value in line.items() if value is not None}
        return self._render(None, "", given).encode()
