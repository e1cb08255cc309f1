"""The list of models on its way back, from which is taken what its client may not use or see."""

from dataclasses import dataclass

import httpx

from proxy.errors import UpstreamError
from proxy.lifeline import Lifeline
from proxy.policy.listing import filter_models
from proxy.relay import Relay

MAX_LISTING_BYTES = 1024 * 1024

_FRAMING = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Listing:
    """Shows a client what it may see.

    Attributes:
        relay: Who reads the list.
        redact: Whether it must not show where the models lie (``PROXY_PROFILE=strict``).
    """

    relay: Relay
    redact: bool

    async def shown(
        self, response: httpx.Response, models: frozenset[str] | None, lifeline: Lifeline
    ) -> httpx.Response:
        """The upstream's own where the client may see all.

        Args:
            response: The upstream's, with nothing of its body read.
            models: What the client may use; None is all.
            lifeline: Of the request.

        Raises:
            UpstreamError: It is no list of models, or too long.
        """
        if models is None and not self.redact:
            return response
        listing = await self.relay.collect(response, MAX_LISTING_BYTES, lifeline)
        try:
            body = filter_models(listing, models, self.redact)
        except ValueError as exc:
            raise UpstreamError("The model server's list of models is not one.") from exc
        kept = [item for item in response.headers.raw if item[0].lower() not in _FRAMING]
        return httpx.Response(
            response.status_code,
            headers=[*kept, (b"content-length", str(len(body)).encode())],
            stream=httpx.ByteStream(body),
        )
