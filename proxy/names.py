"""Addresses of names, where a name server may be slow, hang or come back with another address.

Neither the loop's own look-ups nor uvloop's: those take a thread of a small pool each, however many
ask for the same name, and a process whose name server hangs does not end before they do.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from threading import Thread

_KEPT_SECONDS = 1.0

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
            raise found
        return found

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
