"""The end of the chain: reads the request, has it judged, asks the upstream, passes the answer on.

The one place where a request meets everything that can end it or hold it up, and therefore where
everything that it holds is held: a lifeline, a lease on memory, a place with tokens, an upstream
response. Each is one ``with`` block of one task, so that every way out gives back everything.
"""

from functools import partial
from typing import Protocol

import anyio
from starlette.types import Receive, Scope, Send

from proxy.admission.buffers import BufferBudget
from proxy.admission.gate import Admission, Demand, Gate
from proxy.admission.slots import Slots
from proxy.answer import Answer
from proxy.context import RequestContext
from proxy.endpoints import BodyKind, Endpoint
from proxy.errors import InternalError, Reason, RequestTimeout, UpstreamError
from proxy.forward.dispatch import Dispatch, Question, Timeouts, Upstream, late
from proxy.forward.listing import Listing
from proxy.forward.terms import TermsOfPrincipals
from proxy.intake import Intake
from proxy.lifeline import Deadline, Lifeline, Lifelines
from proxy.metering import demand_of, is_counted, meter_of
from proxy.pipe import CLIENT, Client
from proxy.policy import Terms, Verdict
from proxy.policy.query import check_query
from proxy.principal import Allowance, Principal
from proxy.relay import Relay
from proxy.telemetry.usage import Usage, UsageMeter

# A look at HTTPStatus is a call.
_FIRST_FAULT = 500


class Judge(Protocol):
    """What decides about a body: ``proxy.policy.Policy``."""

    def check(self, kind: BodyKind, body: bytes, terms: Terms) -> Verdict:
        """The request that may pass in this one's place; raises a Refusal."""


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
        body_late = Deadline(timeouts.body, partial(_slow_body, timeouts.body))
        self._intake = Intake(max_body_bytes, body_late)
        self._write_through = write_through
        self._terms = TermsOfPrincipals(recorded=gate.records)
        self._dispatch = Dispatch(upstream, timeouts)
        self._total = late(timeouts.total, "finish", "TOTAL")
        self._relay = Relay(
            idle=late(timeouts.idle, "go on", "IDLE"),
            max_response_bytes=max_response_bytes,
            response_headers=response_headers,
            keep_alive_seconds=keep_alive_seconds,
        )
        self._listing = Listing(self._relay, redact)
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
        principal = context.principal
        if principal is None:
            raise InternalError("Nobody was found to be asking.")
        allowance = principal.allowance
        lease = self._buffers.lease(context.account, allowance.concurrency)
        # Any other than ours cleans up as httpx's does.
        ends = None if self._dispatch.keeps_time else anyio.CancelScope()
        with self._lifelines.hold(self._total, ends) as lifeline, lease:
            if endpoint.body is None:
                lifeline.watch(receive)
                # Apart: clients list the models first, and must not wait behind whole generations.
                async with self._listing_slots.hold(context.account) as context.queued_seconds:
                    question = Question(endpoint, query, models=allowance.models)
                    await self._serve(context, question, lifeline, send, None)
                return
            body = await self._intake.read(context, receive, lifeline, lease)
            verdict = self._judged(context, principal, endpoint.body, body)
            client = self._client(scope)
            lifeline.watch(receive, client)
            demand = demand_of(endpoint.body, verdict.cost)
            async with self._gate.admit(context.account, allowance, demand) as admitted:
                context.queued_seconds = admitted.queued_seconds
                context.rate_fields = [*context.rate_fields, *admitted.rate_fields]
                meter = self._meter(endpoint, verdict, allowance)
                question = Question(endpoint, query, verdict.body, meter)
                waited_for = False
                try:
                    await self._serve(context, question, lifeline, send, client)
                except BaseException:
                    waited_for = not lifeline.was_left
                    raise
                finally:
                    if meter is not None:
                        usage = meter.usage(admitted.prompt_tokens, waited_for=waited_for)
                        self._charge(context, admitted, demand, usage)

    def _client(self, scope: Scope) -> Client | None:
        """What the server offers beyond ASGI."""
        return scope.get("extensions", {}).get(CLIENT) if self._write_through else None

    def _judged(
        self, context: RequestContext, principal: Principal, kind: BodyKind, body: bytes
    ) -> Verdict:
        """What to send upstream, the very bytes unless something in them had to change; its cost."""
        verdict = self._policy.check(kind, body, self._terms.of(principal))
        context.stream = verdict.stream
        context.clamped = verdict.clamped
        context.prompt_chars = verdict.cost.prompt_chars
        context.output_tokens_bound = verdict.cost.output_tokens * verdict.cost.sequences
        return verdict

    def _meter(
        self, endpoint: Endpoint, verdict: Verdict, allowance: Allowance
    ) -> UsageMeter | None:
        """What counts the request's tokens; None where nobody has to know them."""
        if endpoint.body is None or not (self._gate.learns or is_counted(allowance)):
            return None
        return meter_of(endpoint.body, verdict, streamed=verdict.stream and endpoint.streams)

    def _charge(
        self, context: RequestContext, admitted: Admission, demand: Demand, usage: Usage
    ) -> None:
        """Says everywhere what the request has used, however it ended."""
        admitted.used_tokens = usage.prompt_tokens + usage.completion_tokens
        admitted.output_tokens = usage.completion_tokens
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
        question: Question,
        lifeline: Lifeline,
        send: Send,
        client: Client | None,
    ) -> None:
        """Asks the upstream and passes on what it says."""
        with self._begin(context, question.endpoint, send, client) as answer:
            response = await self._dispatch.ask(context, question, lifeline)
            context.upstream_status = response.status_code
            if question.body is None and response.is_success:
                response = await self._listing.shown(response, question.models, lifeline)
            await self._relay.stream(response, answer, lifeline, question.meter)
        if response.status_code >= _FIRST_FAULT:
            # Told in its own words; that it has failed is the same as where we had to tell it.
            context.outcome, context.fault = Reason.UPSTREAM_ERROR, UpstreamError.__qualname__

    def _begin(
        self, context: RequestContext, endpoint: Endpoint, send: Send, client: Client | None
    ) -> Answer:
        own = [(b"x-bulwark-clamped", context.clamped.encode())] if context.clamped else []
        answer = self._relay.answer(context, send, own, client)
        if self._commit_seconds and context.stream and endpoint.streams:
            answer.commit_after(self._commit_seconds)
        return answer


def _slow_body(seconds: float) -> RequestTimeout:
    return RequestTimeout(
        f"The body did not arrive within {seconds:g} s (PROXY_BODY_TIMEOUT_SECONDS)."
    )
