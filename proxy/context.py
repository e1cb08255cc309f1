"""What the layers know of one request: the typed carrier in ``scope["state"]``.

Layers talk through this object and nothing else. It holds no key and no prompt, so that whatever
logs it can leak neither.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from proxy.endpoints import Endpoint
from proxy.errors import ClientDisconnected, Dialect, RawHeaders, Reason, Refusal
from proxy.principal import Principal

_KEY = "bulwark"


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """Everything that the log line and the metrics will say about a request.

    Times are seconds on the injected monotonic clock; sizes are bytes of body.

    Attributes:
        headers: The request's fields as received, names lowercase; for reading only.
        account: Whose turn and whose limits it counts for: the key's id or, of those without a
            key, the network that they come from.
        route_refusal: The 404 or 405 that the table found, to be said only after authentication.
        rate_fields: What the response's head says of the key's limits (``x-ratelimit-*``).
        page_fields: What it says of which web page may read it (``access-control-*``).
        outcome: Why it ended otherwise than well; None while it goes well.
        status: The status sent to the client; 0 while none was.
        first_byte: When the first byte of the response's body was sent, comments apart; 0 while
            none was.
        told_status: The upstream's status, where it could only be told as an event; else 0.
        committed: Whether a 200 event stream was begun in the upstream's place, so that an error can
            only be told as an event; false again from the upstream's own events on.
        prompt_tokens: What the engine read, and `completion_tokens` what it wrote: as it said so or,
            with `usage_estimated`, as far as can be told. None where nobody looked.
        has_all: Whether the stream was broken off when its client had been given the event with which
            it ends: who leaves then has left nothing.
        fault: For whoever has to find out what failed: classes of exceptions and, of a bug, where.
            Never a message: it could quote a client.
    """

    request_id: str
    method: str
    client: str
    headers: list[tuple[bytes, bytes]]
    started: float
    endpoint: Endpoint | None = None
    route_refusal: Refusal | None = None
    principal: Principal | None = None
    account: str = ""
    rate_fields: RawHeaders = ()
    page_fields: RawHeaders = ()
    outcome: Reason | None = None
    status: int = 0
    upstream_status: int = 0
    stream: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_chars: int = 0
    output_tokens_bound: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    usage_estimated: bool = False
    clamped: str = ""
    queued_seconds: float = 0.0
    first_byte: float = 0.0
    response_complete: bool = False
    told_status: int = 0
    committed: bool = False
    has_all: bool = False
    fault: str = ""

    @property
    def dialect(self) -> Dialect:
        """Whose error shape this request's client parses."""
        return self.endpoint.dialect if self.endpoint is not None else Dialect.OPENAI

    @property
    def response_started(self) -> bool:
        """Whether a status went out, after which no other may follow."""
        return self.status != 0

    @property
    def final_status(self) -> int:
        """The status in logs and metrics: 499, nginx's number, where the client left.

        The upstream's where a client was told it in an event: a refused request is none that went
        well, and not a different one because the refusal took long.
        """
        if self.outcome is Reason.CLIENT_DISCONNECTED:
            return ClientDisconnected.status
        return self.status if self.outcome else self.told_status or self.status

    def attach(self, scope: MutableMapping[str, Any]) -> None:
        """Makes this the context of an ASGI scope."""
        scope.setdefault("state", {})[_KEY] = self

    @staticmethod
    def of(scope: MutableMapping[str, Any]) -> "RequestContext":
        """The context that ``middleware.access`` attached to this scope."""
        context: RequestContext = scope["state"][_KEY]
        return context
