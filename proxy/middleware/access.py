"""The outermost layer: begins the record of a request, and closes it whatever happens.

One log line and one count a request, in one ``finally``, so that no way out can leave a request
unrecorded or in flight for ever.
"""

import asyncio
import secrets
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.endpoints import Endpoint
from proxy.errors import Dialect, RawHeaders, Reason, Refusal
from proxy.keepalive import COMMENT, IS_COMMENT
from proxy.middleware.clients import ClientAddress
from proxy.pipe import CLIENT, Client, Flow, Sink
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import RequestMetrics

_PEER = ClientAddress()

# No browser may read an engine's output as anything but what it is called.
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def _fresh_id() -> str:
    return secrets.token_hex(16)


class AccessLayer:
    """Attaches a ``RequestContext``, names the response, logs and counts.

    Args:
        app: The next layer.
        log: Where the line goes.
        metrics: Where it is counted.
        clock: Monotonic seconds.
        probe: The endpoint whose success is logged at ``debug``: it is asked every few seconds.
        client_address: Says where the client is.
        new_request_id: Makes the id. The client's own is never used: it is not ours to trust, and
            whoever writes it could write anything into the log.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        log: Log,
        metrics: RequestMetrics,
        clock: Callable[[], float],
        probe: Endpoint,
        client_address: ClientAddress = _PEER,
        new_request_id: Callable[[], str] = _fresh_id,
    ) -> None:
        self._app = app
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._probe = probe
        self._client_address = client_address
        self._new_request_id = new_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request and records it."""
        context = RequestContext(
            request_id=self._new_request_id(),
            method=scope["method"],
            client=self._client_address(scope),
            # A copy: the server's own list is not ours to hold on to.
            headers=list(scope["headers"]),
            started=self._clock(),
        )
        context.attach(scope)
        self._metrics.began()
        extensions = scope.get("extensions", {})
        client = extensions.get(CLIENT)
        recorder = _Recorder(context, send, self._clock, client)
        if client is not None:
            extensions[CLIENT] = recorder
        try:
            await self._app(scope, receive, recorder.send)
        except asyncio.CancelledError:
            # Nothing else cancels a request's task than the end of the process.
            context.outcome = context.outcome or Reason.SHUTTING_DOWN
            raise
        finally:
            self._record(context)

    def _record(self, context: RequestContext) -> None:
        if context.outcome is None and not context.response_complete:
            # A layer returned without a whole answer, or the error layer itself failed.
            context.outcome = Reason.INTERNAL_ERROR
        ended = self._clock()
        self._metrics.ended(context, ended=ended)
        self._log.request(context, ended=ended, quiet=context.endpoint is self._probe)


class _Recorder:
    """Notes what goes out, by ``send`` or past it; the ``pipe.Client`` of the layers inside, too.

    Args:
        context: What is known of the request.
        send: The server's.
        clock: Monotonic seconds.
        client: The server's; None where it offers none, and then this is none either.
    """

    __slots__ = ("_client", "_clock", "_context", "_send")

    def __init__(
        self,
        context: RequestContext,
        send: Send,
        clock: Callable[[], float],
        client: Client | None = None,
    ) -> None:
        self._context = context
        self._send = send
        self._clock = clock
        self._client = client

    async def send(self, message: Message) -> None:
        """As the server's own. Called for every chunk that is not pushed."""
        context = self._context
        if message["type"] == "http.response.body":
            if body := message.get("body"):
                # A comment is no answer: the wait for one goes on.
                if not context.first_byte and IS_COMMENT not in message:
                    context.first_byte = self._clock()
                context.bytes_out += len(body)
            await self._send(message)
            if not message.get("more_body"):
                context.response_complete = True
            return
        if message["type"] == "http.response.start":
            # Before it is sent: a second answer must not follow even one that could not be sent.
            context.status = message["status"]
            request_id = context.request_id.encode()
            message["headers"] = headers = [
                *message.get("headers", ()),
                (b"x-request-id", request_id),
                _NO_SNIFFING,
            ]
            if context.dialect is Dialect.ANTHROPIC:
                # The name under which Anthropic's SDKs look for it.
                headers.append((b"request-id", request_id))
            headers += context.page_fields
            if context.rate_fields:
                _add_missing(headers, context.rate_fields)
        await self._send(message)

    @property
    def behind(self) -> bool:
        """As the server's own."""
        return self._client is not None and self._client.behind

    def on_disconnect(self, leave: Callable[[Refusal | None], None]) -> None:
        """As the server's own."""
        if self._client is not None:
            self._client.on_disconnect(leave)

    def open(self, flow: Flow) -> Sink | None:
        """As the server's own."""
        sink = self._client.open(flow) if self._client is not None else None
        if sink is None:
            return None
        context, clock = self._context, self._clock

        def push(chunk: bytes) -> None:
            if not context.first_byte and chunk is not COMMENT:
                context.first_byte = clock()
            context.bytes_out += len(chunk)
            sink(chunk)

        return push

    def done(self) -> None:
        """As the server's own."""
        if self._client is not None:
            self._client.done()


def _add_missing(headers: list[tuple[bytes, bytes]], fields: RawHeaders) -> None:
    """Adds fields, but not where there is one of that name: a refusal has its own, which are newer."""
    present = dict(headers)
    if present.keys().isdisjoint(dict(fields)):
        headers += fields
    else:
        headers += [field for field in fields if field[0] not in present]
