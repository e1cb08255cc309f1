"""Lets in who is known, and only then says what the endpoint table has against a request.

There is no list of exceptions here. A path that needs no key does not come by (``endpoint``).
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.auth import Authenticator
from proxy.auth.credentials import credential
from proxy.context import RequestContext


class AuthLayer:
    """Fills ``principal``, or refuses."""

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the requests of known principals on.

        Raises:
            MissingApiKey: 401.
            InvalidApiKey: 403.
            NotFound: 404, for those who have a key.
            MethodNotAllowed: 405, for those who have a key.
        """
        context = RequestContext.of(scope)
        presented = credential(context.headers, context.dialect)
        context.principal = self._authenticator.authenticate(presented)
        if context.route_refusal is not None:
            raise context.route_refusal
        await self._app(scope, receive, send)
