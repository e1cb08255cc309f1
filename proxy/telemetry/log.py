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


class _RequestLine(msgspec.Struct, gc=False):
    """The canonical line, its fields in their order: half of what a dictionary of them takes."""

    timestamp: str
    level: LogLevel
    event: str
    request_id: str
    client: str
    key_id: str | None
    method: str
    endpoint: str | None
    status: int
    outcome: str
    upstream_status: int | None
    stream: bool
    bytes_in: int
    bytes_out: int
    prompt_chars: int
    output_tokens_bound: int
    prompt_tokens: int | None
    completion_tokens: int | None
    usage: str | None
    clamped: str | None
    queued_seconds: float
    first_byte_seconds: float | None
    duration_seconds: float
    fault: str | msgspec.UnsetType


_DATE_CHARS = len("2026-01-31T23:59:59")


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
        self._second = -1
        self._date = self._zone = ""
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
        # By position, in the order of the fields: by name it would take a dictionary again.
        line = _RequestLine(
            self._timestamp(),
            level,
            "request",
            context.request_id,
            context.client,
            principal.key_id if principal is not None else None,
            context.method if context.method in _METHODS else "other",
            endpoint.name if endpoint is not None else None,
            context.final_status,
            _WORDS[outcome],
            context.upstream_status or None,
            context.stream,
            context.bytes_in,
            context.bytes_out,
            context.prompt_chars,
            context.output_tokens_bound,
            context.prompt_tokens,
            context.completion_tokens,
            _usage_source(context),
            context.clamped or None,
            round(context.queued_seconds, 4),
            round(first_byte - started, 4) if first_byte else None,
            round(ended - started, 4),
            context.fault or msgspec.UNSET,
        )
        self._writer.write(self._render(line) + b"\n")

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
        now = self._now()
        # All but the milliseconds is the same for a second: writing it down takes four times a
        # look at the clock.
        second = int(now.timestamp())
        if second != self._second:
            text = now.isoformat(timespec="seconds")
            self._second, self._date, self._zone = second, text[:_DATE_CHARS], text[_DATE_CHARS:]
        return f"{self._date}.{now.microsecond // 1000:03d}{self._zone}"


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

    def __call__(self, line: dict[str, object] | _RequestLine) -> bytes:
        items = line if isinstance(line, dict) else msgspec.structs.asdict(line)
        given = {
            name: value
            for name, value in items.items()
            if value is not None and value is not msgspec.UNSET
        }
        return self._render(None, "", given).encode()
