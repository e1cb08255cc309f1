"""The layer that charges a request before anything of it was read."""

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.errors import InternalError, RateLimitExceeded, RawHeaders
from proxy.middleware.admission import AdmissionLayer
from proxy.principal import Allowance, Principal

GIVEN = Allowance(requests_per_minute=2)
FIELDS = [(b"x-ratelimit-limit-requests", b"2")]


class Rates:
    """Gives one request to each account."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, Allowance]] = []

    async def admit(self, account: str, allowance: Allowance) -> RawHeaders:
        """Charges, or refuses."""
        if (account, allowance) in self.charged:
            raise RateLimitExceeded("Too many.", retry_after_seconds=1)
        self.charged.append((account, allowance))
        return FIELDS


async def _receive() -> Message:
    raise AssertionError("the body was read")


async def _send(message: Message) -> None:
    raise AssertionError("it answers nothing itself")


def scope_of(principal: Principal | None) -> dict[str, Any]:
    """A request of somebody."""
    context = RequestContext(
        request_id="r", method="POST", client="192.0.2.7", headers=[], started=0.0
    )
    context.principal, context.account = principal, "alice"
    scope: dict[str, Any] = {"type": "http"}
    context.attach(scope)
    return scope


async def test_a_request_is_charged_before_it_goes_on() -> None:
    """To its account, by what its key was given; the next one, over the limit, goes nowhere."""
    passed: list[RawHeaders] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        passed.append(RequestContext.of(scope).rate_fields)

    rates = Rates()
    layer = AdmissionLayer(app, rates=rates)
    principal = Principal("alice", "salt", GIVEN)
    await layer(scope_of(principal), _receive, _send)
    assert rates.charged == [("alice", GIVEN)]
    assert passed == [FIELDS]
    with pytest.raises(RateLimitExceeded):
        await layer(scope_of(principal), _receive, _send)
    assert passed == [FIELDS]


async def test_nobody_is_not_charged_and_does_not_pass() -> None:
    """A chain put together wrongly must not let strangers through."""

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("it passed")

    rates = Rates()
    with pytest.raises(InternalError):
        await AdmissionLayer(app, rates=rates)(scope_of(None), _receive, _send)
    assert rates.charged == []
