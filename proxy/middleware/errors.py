"""Turns whatever ends a request into the answer that its client can read.

The only broad handler of the program. Two rules: a response that has begun is broken off and never
followed by another (an event stream begun in the upstream's place is ended with an error event); and
what is not known to be harmless is not repeated, neither to the client nor in the log, because the
message of an exception may quote a prompt or a key.
"""

import traceback
from collections.abc import Iterator
from types import TracebackType

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.context import RequestContext
from proxy.errors import ClientDisconnected, Fault, InternalError, ProxyError
from proxy.extensions import ABORT

_MAX_FRAMES = 12
_MAX_CAUSES = 5


class ErrorLayer:
    """Answers with the error in the dialect of the route, or breaks the response off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request and raises nothing."""
        context = RequestContext.of(scope)
        try:
            await self._app(scope, receive, send)
        except ProxyError as error:
            if isinstance(error, Fault):
                context.fault = _classes(error)
            _let_go(error)
            await _end(error, context, scope, send)
        except Exception as exc:  # noqa: BLE001 - the one place that catches everything
            context.fault = f"{_classes(exc)} at {_frames(exc.__traceback__)}"
            _let_go(exc)
            await _end(_bug(context), context, scope, send)


async def _end(error: ProxyError, context: RequestContext, scope: Scope, send: Send) -> None:
    left = isinstance(error, ClientDisconnected)
    if left and context.has_all:
        # OpenAI's SDKs leave at the last event, and do not wait for the end of the body behind it.
        context.response_complete = True
    else:
        context.outcome = error.reason
    if context.committed and not left:
        # The one answer that has begun and can still say what went wrong. Without the end that the
        # route's clients wait for, so that none can take it for complete.
        event = error.event(context.dialect, context.request_id)
        await send({"type": "http.response.body", "body": event})
        return
    if context.response_started or left:
        # Of a client that left, too: one that merely stopped reading must not take it for complete.
        scope["extensions"][ABORT]["abort"]()
        return
    body = error.body(context.dialect, context.request_id)
    headers = [
        *error.response_headers(),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _bug(context: RequestContext) -> InternalError:
    return InternalError(
        "Something went wrong inside this proxy. Its log has the details under the "
        f"request id {context.request_id}."
    )


def _let_go(exc: BaseException) -> None:
    """Forgets the frames of the request, which hold its body: its client may take long to read why."""
    exc.__traceback__ = exc.__cause__ = exc.__context__ = None


def _classes(exc: BaseException) -> str:
    """The classes of an exception and its causes, ``UpstreamTimeout from ConnectTimeout``."""
    return " from ".join(type(each).__qualname__ for each in _chain(exc))


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _frames(trace: TracebackType | None) -> str:
    """Where it was raised, innermost first: module, line, function. No source, no values."""
    frames = [
        f"{frame.f_globals.get('__name__', '?')}:{line} {frame.f_code.co_qualname}"
        for frame, line in traceback.walk_tb(trace)
    ]
    return " < ".join(frames[: -_MAX_FRAMES - 1 : -1])
