"""Addresses of names, where a name server may be slow, hang or come back with another address.

Neither the loop's own look-ups nor uvloop's: those take a thread of a small pool each, however many
ask for the same name, and a process whose name server hangs does not end before they do.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from threading import Thread
from typing import TypeVar

from proxy.patience import fail_after

_KEPT_SECONDS = 1.0

_PATIENCE_SECONDS = 1.0
"""How long one of several addresses may say nothing, at most, before the next has its turn."""

SILENT_SECONDS = 300.0
"""How long an address that said nothing comes last. It costs whoever tries it first his patience."""

_Reached = TypeVar("_Reached")

Found = list[str] | OSError


def look_up(host: str) -> list[str]:
    """What the system says, which may take a minute."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in found]


@dataclass(slots=True)
class _Question:
    """One name that is looked up, or was a moment ago. No failure is left for nobody to fetch."""

    answer: asyncio.Future[Found]
    answered_at: float | None = None


class Names:
    """Looks names up, each of them once at a time.

    Args:
        look_up: Asks for one, in a thread that nobody waits for; may raise OSError.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        look_up: Callable[[str], list[str]] = look_up,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        self._questions: dict[str, _Question] = {}
        # By address: when it was found to say nothing.
        self._silent: dict[str, float] = {}

    async def addresses(self, host: str) -> list[str]:
        """Those of a name, or the one that it is. May wait for as long as a name server hangs.

        Raises:
            OSError: There are none.
        """
        try:
            ip_address(host)
        except ValueError:
            pass
        else:
            return [host]
        question = self._questions.get(host)
        if question is None or self._is_old(question):
            question = self._questions[host] = self._ask(host)
        # Whoever is called off leaves the others waiting.
        found = await asyncio.shield(question.answer)
        if isinstance(found, OSError):
            # A new one: this one is kept, and would keep everything that it was ever raised through.
            raise type(found)(*found.args)
        return found

    async def reach(
        self, host: str, connect: Callable[[str], Awaitable[_Reached]], seconds: float | None
    ) -> _Reached:
        """What `connect` gives for the first of a name's addresses that answers.

        They keep the order of the name server, which may spread the load by it; only those that
        said nothing when they were last tried come last.

        Args:
            host: The name.
            connect: Connects to an address; may raise OSError.
            seconds: How long the caller will wait; None for ever. Each address but the last has
                its part of it; it is the caller who ends the last.

        Raises:
            OSError: None of them takes a connection.
        """
        addresses = self._likeliest_first(await self.addresses(host))
        patience = _PATIENCE_SECONDS
        if seconds is not None:
            patience = min(patience, seconds / max(1, len(addresses)))
        refused = OSError("the name has no address")
        for tried, address in enumerate(addresses, 1):
            started = self._clock()
            try:
                with fail_after(patience if tried < len(addresses) else None):
                    made = await connect(address)
            except OSError as exc:  # a TimeoutError is one
                refused = exc
                if isinstance(exc, TimeoutError):
                    self._silent[address] = self._clock()
            except BaseException:
                # The caller's time may have run out here. Or a client has left, which is no sign.
                if self._clock() - started >= patience / 2:
                    self._silent[address] = self._clock()
                raise
            else:
                self._silent.pop(address, None)
                return made
        try:
            raise refused
        finally:
            del refused  # which holds this frame: the two would wait for the collector of garbage

    def _likeliest_first(self, addresses: list[str]) -> list[str]:
        """Those that said nothing last, the latest of them at the end."""
        since = self._clock() - SILENT_SECONDS
        self._silent = {address: at for address, at in self._silent.items() if at > since}
        return sorted(addresses, key=lambda address: self._silent.get(address, since))

    def _is_old(self, question: _Question) -> bool:
        if question.answer.get_loop() is not asyncio.get_running_loop():
            return True
        at = question.answered_at
        return at is not None and self._clock() - at >= _KEPT_SECONDS

    def _ask(self, host: str) -> _Question:
        loop = asyncio.get_running_loop()
        question = _Question(loop.create_future())

        def answer(found: Found) -> None:
            question.answered_at = self._clock()
            question.answer.set_result(found)

        def ask() -> None:
            try:
                found: Found = self._look_up(host)
            except OSError as exc:
                found = exc
            except Exception as exc:  # noqa: BLE001 - a name that cannot be written, such as "a..b"
                found = socket.gaierror(socket.EAI_NONAME, type(exc).__name__)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(answer, found)

        # A daemon: the end of the process does not wait for it.
        Thread(target=ask, name="names", daemon=True).start()
        return question
