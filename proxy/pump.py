"""The body of one answer on its way: pulled chunk by chunk, or pushed from socket to socket.

Two ways for the same bytes, with the same bounds and the same meter. A body that is not complete
ends in an error, whichever way it took, and what the upstream has said of it until then is passed
on before.
"""

from dataclasses import dataclass

import httpx

from proxy.answer import Write
from proxy.errors import ProxyError, UpstreamError
from proxy.lifeline import Deadline, Lifeline
from proxy.pipe import PIPE, Flow, Pipe, Sink
from proxy.telemetry.usage import UsageMeter
from proxy.upstream import faults


@dataclass(slots=True)
class Body:
    """The body of one answer.

    Attributes:
        announced: Its length; None where its framing or its end tells.
        max_bytes: The most that is passed on (``PROXY_MAX_RESPONSE_BYTES``).
        idle: How long there may be nothing between two chunks.
        meter: Sees it, and may take out of it what the client must not see.
        passed: What has come of it, in bytes.
    """

    announced: int | None
    max_bytes: int
    idle: Deadline
    meter: UsageMeter | None = None
    passed: int = 0

    def too_long(self) -> UpstreamError:
        """Why no more of it is passed on."""
        return UpstreamError(
            f"The answer is longer than {self.max_bytes:,} bytes (PROXY_MAX_RESPONSE_BYTES)."
        )

    async def pull(self, response: httpx.Response, write: Write, lifeline: Lifeline) -> None:
        """Writes each chunk as it comes.

        Args:
            response: The upstream's.
            write: To the client; waits while it does not keep up.
            lifeline: Keeps the time between two chunks, unless the transport does.

        Raises:
            ProxyError: It is not complete, too long, or did not go on.
        """
        meter = self.meter
        is_timed = PIPE in response.extensions
        lifeline.expect(None if is_timed else self.idle)
        try:
            async for chunk in response.stream:  # type: ignore[union-attr] # a transport's is async
                if not is_timed:
                    lifeline.expect(None)  # while it is the client that we wait for
                self.passed += len(chunk)
                if self.passed > self.max_bytes:
                    raise self.too_long()
                if to_pass := chunk if meter is None else meter.note(chunk):
                    await write(to_pass)
                if not is_timed:
                    lifeline.expect(self.idle)
            lifeline.expect(None)
            self._check_length()
        except (httpx.TransportError, UpstreamError) as exc:
            lifeline.expect(None)
            if rest := self._end(complete=False):
                await write(rest)
            if isinstance(exc, UpstreamError):
                raise
            raise self._error(exc, is_timed=is_timed) from exc
        if rest := self._end(complete=True):
            await write(rest)

    async def push(self, pipe: Pipe, flow: Flow, sink: Sink) -> None:
        """Has each chunk pushed as it comes; the caller's task sleeps until the end.

        Args:
            pipe: The upstream's transport, which keeps the time between two chunks.
            flow: Pauses it while the client does not keep up.
            sink: To the client.

        Raises:
            ProxyError: As ``pull``.
        """
        note = self.meter.note if self.meter is not None else None
        max_bytes = self.max_bytes

        def pass_on(chunk: bytes) -> None:
            self.passed += len(chunk)
            if self.passed > max_bytes:
                raise self.too_long()
            if note is None:
                sink(chunk)
            elif to_pass := note(chunk):
                sink(to_pass)

        try:
            await pipe(pass_on, flow)
            self._check_length()
        except (httpx.TransportError, UpstreamError) as exc:
            if rest := self._end(complete=False):
                sink(rest)
            if isinstance(exc, UpstreamError):
                raise
            raise self._error(exc, is_timed=True) from exc
        if rest := self._end(complete=True):
            sink(rest)

    def _check_length(self) -> None:
        """The transport should have looked, but not every transport does."""
        if self.announced is not None and self.passed != self.announced:
            raise UpstreamError("The model server's answer does not have the length it announced.")

    def _end(self, *, complete: bool) -> bytes:
        """What the meter has held back: what the upstream has said, the client gets."""
        return self.meter.end(complete=complete) if self.meter is not None else b""

    def _error(self, exc: httpx.TransportError, *, is_timed: bool) -> ProxyError:
        if is_timed and isinstance(exc, httpx.ReadTimeout):
            return self.idle.error()
        return faults.translate(exc)
