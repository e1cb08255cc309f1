"""Asks the upstream: with which fields, for how long, and what its failures are called here."""

from dataclasses import dataclass
from functools import partial

import httpx

from proxy import headers
from proxy.context import RequestContext
from proxy.endpoints import Endpoint
from proxy.lifeline import Deadline, Lifeline
from proxy.pipe import ON_SENT
from proxy.telemetry.usage import UsageMeter
from proxy.upstream import faults
from proxy.upstream.request import Request
from proxy.upstream.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long each phase may take, in seconds; each is ``PROXY_<NAME>_TIMEOUT_SECONDS``."""

    body: float = 30.0
    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 300.0
    total: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Whom to ask, and as whom.

    Attributes:
        api_key: The upstream's own key; None sends none.
    """

    transport: httpx.AsyncBaseTransport
    target: Target
    api_key: bytes | None = None


@dataclass(slots=True)  # not frozen: that takes a call for each field
class Question:
    """What the upstream is asked for one request.

    Attributes:
        body: What is sent to it; None where the endpoint has none.
        meter: What counts its answer; None where nobody has to know.
        models: Which of those that it lists the client may see; None is all.
    """

    endpoint: Endpoint
    query: bytes
    body: bytes | None = None
    meter: UsageMeter | None = None
    models: frozenset[str] | None = None


class Dispatch:
    """Sends questions to the upstream.

    Attributes:
        keeps_time: Whether the transport is ours, which keeps the time of an answer itself. Any other
            one of httpx's interface is timed from outside, but for connecting.
    """

    def __init__(self, upstream: Upstream, timeouts: Timeouts) -> None:
        self._upstream = upstream
        self._url = httpx.URL(upstream.target.url)
        self._authority = upstream.target.authority
        self.keeps_time: bool = getattr(upstream.transport, "keeps_time", False)
        self._timeouts = {"connect": timeouts.connect}
        if self.keeps_time:
            self._timeouts |= {"first_byte": timeouts.first_byte, "idle": timeouts.idle}
        self._first_byte = late(timeouts.first_byte, "answer", "FIRST_BYTE")

    async def ask(
        self, context: RequestContext, question: Question, lifeline: Lifeline
    ) -> httpx.Response:
        """The head of the upstream's answer.

        Raises:
            Fault: There is none, and why.
        """
        endpoint, body, meter = question.endpoint, question.body, question.meter
        fields = headers.to_upstream(
            context.headers,
            host=self._authority,
            request_id=context.request_id.encode(),
            api_key=self._upstream.api_key,
            content_length=None if body is None else len(body),
        )
        # The table's own path, never the client's, and the query byte for byte: httpx.URL would
        # requote the one and normalise the other.
        target = endpoint.path + (b"?" + question.query if question.query else b"")
        extensions: dict[str, object] = {"target": target, "timeout": self._timeouts}
        request = Request(endpoint.method, self._url, fields, body or b"", extensions)
        # Who keeps the time also says when the request is sent, and not only to be.
        lifeline.expect(None if self.keeps_time else self._first_byte)
        if meter is not None:
            if self.keeps_time:
                request.extensions[ON_SENT] = meter.asked
            else:
                meter.asked()
        try:
            return await self._upstream.transport.handle_async_request(request)
        except httpx.TransportError as exc:
            if meter is not None:
                meter.refused()
            if self.keeps_time and isinstance(exc, httpx.ReadTimeout):
                raise self._first_byte.error() from exc
            raise faults.translate(exc) from exc


def late(seconds: float, what: str, setting: str) -> Deadline:
    """How long the upstream may take to do this, which ``PROXY_<setting>_TIMEOUT_SECONDS`` says."""
    return Deadline(seconds, partial(faults.late, what, f"PROXY_{setting}_TIMEOUT_SECONDS"))
