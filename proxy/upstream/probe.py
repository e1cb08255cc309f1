"""Asks the upstream whether it is there, for readiness.

The question is ``GET /health``, which all engines have; any answer that is not a 5xx will do: one
that does not know the path serves, and one that still loads its model says 503. It carries no key:
whoever answers at this address before the engine does must not learn it.
"""

import anyio
import httpx

from proxy.upstream.target import Target

_SERVER_ERROR = 500


class Probe:
    """The question, ready to be asked.

    Args:
        transport: As requests use it.
        target: Whom to ask.
        timeout_seconds: For the whole answer.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport, target: Target, *, timeout_seconds: float = 2.0
    ) -> None:
        self._transport = transport
        self._url = f"{target.url}/health"
        self._timeout_seconds = timeout_seconds

    async def __call__(self) -> bool:
        """Whether the upstream answers. Never raises for a network that fails."""
        request = httpx.Request(
            "GET",
            self._url,
            headers={"accept-encoding": "identity"},
            extensions={"timeout": {"connect": self._timeout_seconds}},
        )
        try:
            # Not asyncio.timeout, for which see proxy.lifeline.
            with anyio.fail_after(self._timeout_seconds):
                response = await self._transport.handle_async_request(request)
                await response.aclose()
        except (httpx.TransportError, TimeoutError):
            return False
        return response.status_code < _SERVER_ERROR
