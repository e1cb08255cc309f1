"""The end of the chain: reads the request, has it judged, asks the upstream, passes the answer on.

The one place where a request meets everything that can end it or hold it up, and therefore where
everything that it holds is held: a lifeline, a lease on memory, a slot, an upstream response. Each
is one ``with`` block of one task, so that every way out gives back everything.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import httpx
from starlette.types import Receive, Scope, Send

from proxy import headers
from proxy.admission.buffers import BufferBudget
from proxy.admission.slots import Slots
from proxy.answer import Answer
from proxy.context import RequestContext
from proxy.endpoints import BodyKind, Endpoint
from proxy.errors import InternalError, RequestTimeout, UpstreamError
from proxy.intake import Intake
from proxy.lifeline import Deadline, Lifeline, Lifelines
from proxy.policy import Terms, Verdict
from proxy.policy.listing import redact_models
from proxy.policy.query import check_query
from proxy.principal import Principal
from proxy.relay import Relay
from proxy.upstream import faults
from proxy.upstream.target import Target

MAX_LISTING_BYTES = 1024 * 1024


class Judge(Protocol):
    """What decides about a body: ``proxy.policy.Policy``."""

    def check(self, kind: BodyKind, body: bytes, terms: Terms) -> Verdict:
        """The request that may pass in this one's place; raises a Refusal."""


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


class Forward:
    """The terminal ASGI application. The layers before it have found an endpoint and a principal.

    Args:
        slots: Of requests with a body.
        listing_slots: Of those without, which ask for a list and cost the engine nothing.
        redact: Whether model lists must not show where the models lie (``PROXY_PROFILE=strict``).
        max_body_bytes: The longest body that is read (``PROXY_MAX_BODY_BYTES``).
        max_response_bytes: The longest answer that is passed on (``PROXY_MAX_RESPONSE_BYTES``).
        response_headers: More fields to pass on, lowercase (``PROXY_RESPONSE_HEADERS``).
        keep_alive_seconds: As in ``Relay``.
        commit_seconds: How long the upstream may take to say anything before a stream is begun in
            its place; 0 waits for it (``PROXY_SSE_COMMIT_SECONDS``).
    """

    def __init__(
        self,
        *,
        policy: Judge,
        slots: Slots,
        listing_slots: Slots,
        buffers: BufferBudget,
        lifelines: Lifelines,
        upstream: Upstream,
        timeouts: Timeouts,
        max_body_bytes: int,
        max_response_bytes: int,
        response_headers: frozenset[bytes] = frozenset(),
        redact: bool = False,
        keep_alive_seconds: float = 0.0,
        commit_seconds: float = 0.0,
    ) -> None:
        self._policy = policy
        self._slots = slots
        self._listing_slots = listing_slots
        self._buffers = buffers
        self._lifelines = lifelines
        self._upstream = upstream
        self._url = httpx.URL(upstream.target.url)
        body_late = Deadline(timeouts.body, partial(_slow_body, timeouts.body))
        self._intake = Intake(max_body_bytes, body_late)
        self._redact = redact
        self._connect = {"connect": timeouts.connect}
        self._first_byte = _late(timeouts.first_byte, "answer", "FIRST_BYTE")
        self._total = _late(timeouts.total, "finish", "TOTAL")
        self._relay = Relay(
            idle=_late(timeouts.idle, "go on", "IDLE"),
            max_response_bytes=max_response_bytes,
            response_headers=response_headers,
            keep_alive_seconds=keep_alive_seconds,
        )
        # Without comments to follow, a head would keep nothing alive.
        self._commit_seconds = commit_seconds if keep_alive_seconds else 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request.

        Raises:
            ProxyError: Why it was not, or only partly, answered.
        """
        context = RequestContext.of(scope)
        endpoint = context.endpoint
        if endpoint is None:
            raise InternalError("No endpoint was found for this request.")
        query: bytes = scope["query_string"]
        check_query(query)
        with self._lifelines.hold(self._total) as lifeline, self._buffers.lease() as lease:
            body: bytes | None = None
            if endpoint.body is not None:
                body = await self._intake.read(context, receive, lifeline, lease)
                body = self._judged(context, endpoint.body, body)
            lifeline.watch(receive)
            # Apart: clients list the models first, and must not wait behind whole generations.
            slots = self._slots if endpoint.body is not None else self._listing_slots
            async with slots.hold() as context.queued_seconds:
                with self._begin(context, endpoint, send) as answer:
                    response = await self._ask(context, endpoint, query, body, lifeline)
                    context.upstream_status = response.status_code
                    await self._answer(endpoint, response, answer, lifeline)

    def _judged(self, context: RequestContext, kind: BodyKind, body: bytes) -> bytes:
        """What to send upstream: the very bytes unless something in them had to change."""
        verdict = self._policy.check(kind, body, _terms(context.principal))
        context.stream = verdict.stream
        context.clamped = verdict.clamped
        context.prompt_chars = verdict.cost.prompt_chars
        context.output_tokens_bound = verdict.cost.output_tokens * verdict.cost.sequences
        return verdict.body

    async def _ask(
        self,
        context: RequestContext,
        endpoint: Endpoint,
        query: bytes,
        body: bytes | None,
        lifeline: Lifeline,
    ) -> httpx.Response:
        fields = headers.to_upstream(
            context.headers,
            host=self._upstream.target.authority,
            request_id=context.request_id.encode(),
            api_key=self._upstream.api_key,
            content_length=None if body is None else len(body),
        )
        # The table's own path, never the client's, and the query byte for byte: httpx.URL would
        # requote the one and normalise the other.
        target = endpoint.path + (b"?" + query if query else b"")
        request = httpx.Request(
            endpoint.method,
            self._url,
            headers=fields,
            stream=httpx.ByteStream(body or b""),
            extensions={"target": target, "timeout": self._connect},
        )
        lifeline.expect(self._first_byte)
        try:
            return await self._upstream.transport.handle_async_request(request)
        except httpx.TransportError as exc:
            raise faults.translate(exc) from exc

    def _begin(self, context: RequestContext, endpoint: Endpoint, send: Send) -> Answer:
        own = [(b"x-bulwark-clamped", context.clamped.encode())] if context.clamped else []
        answer = self._relay.answer(context, send, own)
        if self._commit_seconds and context.stream and endpoint.streams:
            answer.commit_after(self._commit_seconds)
        return answer

    async def _answer(
        self, endpoint: Endpoint, response: httpx.Response, answer: Answer, lifeline: Lifeline
    ) -> None:
        if self._redact and endpoint.body is None and response.is_success:
            listing = await self._relay.collect(response, MAX_LISTING_BYTES, lifeline)
            response = _redacted(response, listing)
        await self._relay.stream(response, answer, lifeline)


def _terms(principal: Principal | None) -> Terms:
    if principal is None:
        raise InternalError("Nobody was found to be asking.")
    given = principal.allowance
    return Terms(
        cache_salt=principal.cache_salt,
        max_prompt_chars=given.max_prompt_chars,
        max_output_tokens=given.max_output_tokens,
        models=given.models,
    )


def _redacted(response: httpx.Response, listing: bytes) -> httpx.Response:
    try:
        body = redact_models(listing)
    except ValueError as exc:
        raise UpstreamError("The model server's list of models is not one.") from exc
    framing = (b"content-length", b"transfer-encoding")
    kept = [item for item in response.headers.raw if item[0].lower() not in framing]
    return httpx.Response(
        response.status_code,
        headers=[*kept, (b"content-length", str(len(body)).encode())],
        stream=httpx.ByteStream(body),
    )


def _late(seconds: float, what: str, setting: str) -> Deadline:
    return Deadline(seconds, partial(faults.late, what, f"PROXY_{setting}_TIMEOUT_SECONDS"))


def _slow_body(seconds: float) -> RequestTimeout:
    return RequestTimeout(
        f"The body did not arrive within {seconds:g} s (PROXY_BODY_TIMEOUT_SECONDS)."
    )
