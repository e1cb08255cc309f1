"""This proxy without write-through: what its plain path costs, through ASGI's ``send``.

``python -m bench.dataplane.plain`` is ``bulwark serve``, but for a transport whose answers cannot push.
"""

import gc
import os
import sys

import httpx
import uvloop
from prometheus_client import CollectorRegistry, disable_created_metrics

from proxy import app
from proxy.pipe import PIPE
from proxy.upstream import target as targets
from proxy.upstream import transport as transports


class WithoutPipe(httpx.AsyncBaseTransport):
    """A transport whose answers have to be asked for each chunk."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport
        # forward asks whoever sends whether it keeps the time by itself.
        self.keeps_time = getattr(transport, "keeps_time", False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, without the extension."""
        response = await self._transport.handle_async_request(request)
        response.extensions.pop(PIPE, None)
        return response

    async def aclose(self) -> None:
        """Closes the transport."""
        await self._transport.aclose()


def main() -> None:
    """Serves, as ``proxy.app.run`` does."""
    settings, keys = app.configure(os.environ)
    public, admin = app.bind(settings)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    bulwark = app.build(
        settings,
        keys,
        registry=CollectorRegistry(),
        log_stream=sys.stdout.buffer,
        transport=WithoutPipe(transports.build(targets.parse(settings.upstream_url))),
    )
    gc.collect()
    gc.freeze()
    raise SystemExit(uvloop.run(bulwark.serve(public, admin)))


if __name__ == "__main__":
    main()
