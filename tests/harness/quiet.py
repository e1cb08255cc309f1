"""An engine that only the monitor asks: well, and without metrics.

So that what a test's own upstream receives are requests, and nothing that nobody has sent.
"""

import httpx

_OK, _NOT_FOUND = 200, 404


class QuietEngine(httpx.AsyncBaseTransport):
    """The monitor's way to an engine that is always there."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """200 for its health, 404 for everything else."""
        status = _OK if request.url.path in {"/health", "/ready"} else _NOT_FOUND
        return httpx.Response(status, stream=httpx.ByteStream(b""))
