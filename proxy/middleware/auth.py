"""Lets in who is known, and only then says what the endpoint table has against a request.

There is no list of exceptions here. A path that needs no key does not come by (``endpoint``).
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.auth import Authenticator
from proxy.auth.credentials import HOW, credential
from proxy.auth.guessing import Guessing
from proxy.context import RequestContext
from proxy.errors import InvalidApiKey, MissingApiKey, TooManyFailures
from proxy.extensions import KNOWN
from proxy.middleware.clients import subscriber
from proxy.policy.query import MAX_QUERY_BYTES, carries_key
from proxy.principal import ANONYMOUS, Principal


class AuthLayer:
    """Fills ``principal`` and ``account``, or refuses."""

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator, guessing: Guessing) -> None:
        self._app = app
        self._authenticator = authenticator
        self._guessing = guessing

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Passes the requests of known principals on; no coroutine, as ``EndpointLayer`` is none.

        Raises:
            MissingApiKey: 401.
            InvalidApiKey: 403.
            TooManyFailures: 429, to one more wrong key from where too many came from.
            NotFound: 404, for those who have a key.
            MethodNotAllowed: 405, for those who have a key.
        """
        context = RequestContext.of(scope)
        presented = credential(context.headers, context.dialect)
        try:
            # First, and whatever else came from there: a right key is never locked out.
            context.principal = self._authenticator.authenticate(presented)
        except MissingApiKey as exc:
            if carries_key(scope["query_string"][:MAX_QUERY_BYTES]):
                # 401 as before: whether it would have been a right one nobody learns in this way.
                raise MissingApiKey(
                    "An API key in the query string is not read, for logs and histories keep it. If "
                    f"that was a real key, replace it. {HOW}"
                ) from exc
            raise
        except InvalidApiKey:
            self._failed(subscriber(context.client))
            raise
        known = scope.get("extensions", {}).get(KNOWN)
        if known is not None and context.principal.key_id != ANONYMOUS:
            # Where connections are short, strangers give way first.
            known()
        context.account = _account(context.principal, context.client)
        if context.route_refusal is not None:
            raise context.route_refusal
        return self._app(scope, receive, send)

    def _failed(self, address: str) -> None:
        """Counts a wrong key. A missing or malformed one is no guess."""
        seconds = self._guessing.retry_after(address)
        if seconds is not None:
            raise TooManyFailures(
                "Too many API keys that are not valid came from your address. A valid one works at "
                f"any time; try another one in {seconds} s.",
                retry_after_seconds=seconds,
                # The SDKs obey it: the same wrong key would only be wrong again.
                headers=[(b"x-should-retry", b"false")],
            )
        self._guessing.failed(address)


def _account(principal: Principal, client: str) -> str:
    """Whose turn and whose limits a request counts for."""
    if principal.key_id != ANONYMOUS:
        return principal.key_id
    return f"{ANONYMOUS} {subscriber(client)}"
