"""The end of the chain: reads the request, has it judged, asks the upstream, passes the answer on.

The one place where a request meets everything that can end it or hold it up, and therefore where
everything that it holds is held: a lifeline, a lease on memory, a place with tokens, an upstream
response. Each is one ``with`` block of one task, so that every way out gives back everything.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
import httpx
from starlette.types import Receive, Scope, Send

from proxy import headers
from proxy.admission.buffers import BufferBudget
from proxy.admission.gate import Admission, Demand, Gate
from proxy.admission.slots import Slots
from proxy.answer import Answer
from proxy.context import RequestContext
from proxy.endpoints import BodyKind, Endpoint
from proxy.errors import InternalError, RequestTimeout, UpstreamError
from proxy.intake import Intake
from proxy.lifeline import Deadline, Lifeline, Lifelines
from proxy.metering import demand_of, is_counted, meter_of
from proxy.pipe import CLIENT, ON_SENT, Client
from proxy.policy import Terms, Verdict
from proxy.policy.listing import filter_models
from proxy.policy.query import check_query
from proxy.principal import Allowance, Principal
from proxy.relay import Relay
from proxy.telemetry.usage import UsageMeter
from proxy.upstream import faults
from proxy.upstream.request import Request
from proxy.upstream.target import Target

MAX_LISTING_BYTES = 1024 * 1024

_MOST_TERMS = 1024


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


@dataclass(slots=True)  # not frozen: that takes a call for each field
class _Question:
    """What the upstream is asked for one request.

    Attributes:
        body: What is sent to it; None where the endpoint has none.
        meter: What counts its answer; None where nobody has to know.
    """

    endpoint: Endpoint
    query: bytes
    body: bytes | None = None
    meter: UsageMeter | None = None


class Forward:
    """The terminal ASGI application. The layers before it have found an endpoint and a principal.

    Args:
        gate: What requests with a body pass, and may have to wait at.
        listing_slots: Of those without, which ask for a list and cost the engine nothing.
        redact: Whether model lists must not show where the models lie (``PROXY_PROFILE=strict``).
        max_body_bytes: The longest body that is read (``PROXY_MAX_BODY_BYTES``).
        max_response_bytes: The longest answer that is passed on (``PROXY_MAX_RESPONSE_BYTES``).
        response_headers: More fields to pass on, lowercase (``PROXY_RESPONSE_HEADERS``).
        keep_alive_seconds: As in ``Relay``.
        commit_seconds: How long the upstream may take to say anything before a stream is begun in
            its place; 0 waits for it (``PROXY_SSE_COMMIT_SECONDS``).
        write_through: Whether what the server offers beyond ASGI is used (``PROXY_WRITE_THROUGH``).
    """

    def __init__(
        self,
        *,
        policy: Judge,
        gate: Gate,
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
        write_through: bool = True,
    ) -> None:
        self._policy = policy
        self._gate = gate
        self._listing_slots = listing_slots
        self._buffers = buffers
        self._lifelines = lifelines
        self._upstream = upstream
        self._url = httpx.URL(upstream.target.url)
        body_late = Deadline(timeouts.body, partial(_slow_body, timeouts.body))
        self._intake = Intake(max_body_bytes, body_late)
        self._redact = redact
        self._write_through = write_through
        self._terms: dict[str, tuple[Principal, Terms]] = {}
        self._authority = upstream.target.authority
        # Another one of httpx's interface is timed from outside, but for connecting.
        self._is_timed = getattr(upstream.transport, "keeps_time", False)
        self._timeouts = {"connect": timeouts.connect}
        if self._is_timed:
            self._timeouts |= {"first_byte": timeouts.first_byte, "idle": timeouts.idle}
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
        allowance = _principal(context).allowance
        lease = self._buffers.lease(context.account, allowance.concurrency)
        # Any other than ours cleans up as httpx's does.
        ends = None if self._is_timed else anyio.CancelScope()
        with self._lifelines.hold(self._total, ends) as lifeline, lease:
            if endpoint.body is None:
                lifeline.watch(receive)
                # Apart: clients list the models first, and must not wait behind whole generations.
                async with self._listing_slots.hold(context.account) as context.queued_seconds:
                    await self._serve(context, _Question(endpoint, query), lifeline, send, None)
                return
            body = await self._intake.read(context, receive, lifeline, lease)
            verdict = self._judged(context, endpoint.body, body)
            client = self._client(scope)
            lifeline.watch(receive, client)
            demand = demand_of(endpoint.body, verdict.cost)
            async with self._gate.admit(context.account, allowance, demand) as admitted:
                context.queued_seconds = admitted.queued_seconds
                context.rate_fields = [*context.rate_fields, *admitted.rate_fields]
                meter = self._meter(endpoint, verdict, allowance)
                question = _Question(endpoint, query, verdict.body, meter)
                try:
                    await self._serve(context, question, lifeline, send, client)
                finally:
                    if meter is not None:
                        self._charge(context, admitted, demand, meter)

    def _client(self, scope: Scope) -> Client | None:
        """What the server offers beyond ASGI."""
        return scope.get("extensions", {}).get(CLIENT) if self._write_through else None

    def _judged(self, context: RequestContext, kind: BodyKind, body: bytes) -> Verdict:
        """What to send upstream, the very bytes unless something in them had to change; its cost."""
        verdict = self._policy.check(kind, body, self._terms_of(_principal(context)))
        context.stream = verdict.stream
        context.clamped = verdict.clamped
        context.prompt_chars = verdict.cost.prompt_chars
        context.output_tokens_bound = verdict.cost.output_tokens * verdict.cost.sequences
        return verdict

    def _terms_of(self, principal: Principal) -> Terms:
        """The terms of a principal, made once for as long as its key is not read again."""
        known = self._terms.get(principal.key_id)
        if known is not None and known[0] is principal:
            return known[1]
        if len(self._terms) >= _MOST_TERMS:
            self._terms.clear()
        terms = _terms(principal)
        self._terms[principal.key_id] = principal, terms
        return terms

    def _meter(
        self, endpoint: Endpoint, verdict: Verdict, allowance: Allowance
    ) -> UsageMeter | None:
        """What counts the request's tokens; None where nobody has to know them."""
        if endpoint.body is None or not (self._gate.learns or is_counted(allowance)):
            return None
        return meter_of(endpoint.body, verdict, streamed=verdict.stream and endpoint.streams)

    def _charge(
        self, context: RequestContext, admitted: Admission, demand: Demand, meter: UsageMeter
    ) -> None:
        """Says everywhere what the request has used, however it ended."""
        usage = meter.usage(admitted.prompt_tokens)
        admitted.used_tokens = usage.prompt_tokens + usage.completion_tokens
        if not admitted.used_tokens:
            return  # it was refused, or never got there: the engine has said nothing
        context.prompt_tokens = usage.prompt_tokens
        context.completion_tokens = usage.completion_tokens
        context.usage_estimated = usage.estimated
        if not usage.estimated:
            self._gate.learn(context.account, demand, usage.prompt_tokens)

    async def _serve(
        self,
        context: RequestContext,
        question: _Question,
        lifeline: Lifeline,
        send: Send,
        client: Client | None,
    ) -> None:
        """Asks the upstream and passes on what it says."""
        with self._begin(context, question.endpoint, send, client) as answer:
            response = await self._ask(context, question, lifeline)
            context.upstream_status = response.status_code
            if question.body is None and response.is_success:
                response = await self._listing(context, response, lifeline)
            await self._relay.stream(response, answer, lifeline, question.meter)

    async def _ask(
        self, context: RequestContext, question: _Question, lifeline: Lifeline
    ) -> httpx.Response:
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
        lifeline.expect(None if self._is_timed else self._first_byte)
        if meter is not None:
            if self._is_timed:
                request.extensions[ON_SENT] = meter.asked
            else:
                meter.asked()
        try:
            return await self._upstream.transport.handle_async_request(request)
        except httpx.TransportError as exc:
            if meter is not None:
                meter.refused()
            if self._is_timed and isinstance(exc, httpx.ReadTimeout):
                raise self._first_byte.error() from exc
            raise faults.translate(exc) from exc

    def _begin(
        self, context: RequestContext, endpoint: Endpoint, send: Send, client: Client | None
    ) -> Answer:
        own = [(b"x-bulwark-clamped", context.clamped.encode())] if context.clamped else []
        answer = self._relay.answer(context, send, own, client)
        if self._commit_seconds and context.stream and endpoint.streams:
            answer.commit_after(self._commit_seconds)
        return answer

    async def _listing(
        self, context: RequestContext, response: httpx.Response, lifeline: Lifeline
    ) -> httpx.Response:
        """The list of models as this client may see it: the upstream's own where it may see all."""
        models = _principal(context).allowance.models
        if models is None and not self._redact:
            return response
        listing = await self._relay.collect(response, MAX_LISTING_BYTES, lifeline)
        return _filtered(response, listing, models, redact=self._redact)


def _principal(context: RequestContext) -> Principal:
    if context.principal is None:
        raise InternalError("Nobody was found to be asking.")
    return context.principal


def _terms(principal: Principal) -> Terms:
    given = principal.allowance
    return Terms(
        cache_salt=principal.cache_salt,
        max_prompt_chars=given.max_prompt_chars,
        max_output_tokens=given.max_output_tokens,
        default_output_tokens=given.spare_output_tokens,
        models=given.models,
        want_usage=is_counted(given),
    )


def _filtered(
    response: httpx.Response, listing: bytes, models: frozenset[str] | None, *, redact: bool
) -> httpx.Response:
    try:
        body = filter_models(listing, models, redact)
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
