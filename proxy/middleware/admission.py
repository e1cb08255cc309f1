"""Lets a request begin while its key has requests left in this minute.

After authentication, so that limits are a key's and a path that is not served costs nothing; before
the body is read, so that what is refused here costs next to nothing. What else a request needs is
known once its body is, and taken by ``forward``.
"""

from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.errors import InternalError, RawHeaders
from proxy.principal import Allowance


class RequestRates(Protocol):
    """What counts requests: ``proxy.admission.rates.RateLimits``."""

    async def admit(self, account: str, allowance: Allowance) -> RawHeaders:
        """Charges one request; gives the fields that tell what is left.

        Raises:
            RateLimitExceeded: There is none left.
            LimitsUnavailable: Nobody can tell.
        """
        ...


class AdmissionLayer:
    """Charges a request to its account, or refuses; fills ``rate_fields``."""

    def __init__(self, app: ASGIApp, *, rates: RequestRates) -> None:
        self._app = app
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the requests on that may begin.

        Raises:
            RateLimitExceeded: 429.
            LimitsUnavailable: 503.
        """
        context = RequestContext.of(scope)
        if context.principal is None:
            raise InternalError("Nobody was authenticated for this request.")
        context.rate_fields = await self._rates.admit(context.account, context.principal.allowance)
        await self._app(scope, receive, send)
