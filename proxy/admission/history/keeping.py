"""Adds what requests use to the file, every few seconds and at the end, and waits for it nowhere else.

What is not written yet is a row of numbers for each day and key: however long the file cannot be
written, it is no more than that. A process that is killed loses what it has not written.
"""

import asyncio
from collections.abc import Callable

from proxy.admission.history.file import HistoryFile
from proxy.admission.history.table import HistoryError
from proxy.admission.rates.ledger import Charge
from proxy.admission.rates.window import DAILY_TOKENS, ticks
from proxy.admission.strangers import is_stranger

WRITE_SECONDS = 5.0
"""Between two transactions, and therefore what a process that is killed may lose."""

_CHARGED, _REQUESTS, _PROMPT, _OUTPUT = range(4)


class History:
    """What keys use from now on, and the file that it goes to.

    Args:
        file: That file, which exists.
        clock: Seconds since 1970, by the clock that the books of rates go by.
        on_change: Told when the file cannot be written, with why, and when it can again, with None.
        on_lost: Told at the end how many rows are lost because it still cannot be written.
        write_seconds: Between two transactions.

    Attributes:
        problem: Why it cannot be written; None if all is well.
    """

    def __init__(
        self,
        file: HistoryFile,
        clock: Callable[[], float],
        *,
        on_change: Callable[[str | None], None] = lambda _why: None,
        on_lost: Callable[[int], None] = lambda _rows: None,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._file = file
        self._clock = clock
        self._on_change = on_change
        self._on_lost = on_lost
        self._write_seconds = write_seconds
        self.problem: str | None = None
        self._fresh: dict[tuple[int, str], list[int]] = {}
        # For the next thread, or left by one that never began.
        self._handed: dict[tuple[int, str], list[int]] = {}
        # Of threads alone, of which there is one at a time.
        self._owed: dict[tuple[int, str], list[int]] = {}
        self._writing: asyncio.Task[None] | None = None

    def today(self) -> int:
        """The number of this day."""
        return ticks(self._clock()) // DAILY_TOKENS.length

    def used(self, account: str, charge: Charge | None, tokens: int, output_tokens: int) -> None:
        """A request has ended; waits for nothing.

        Args:
            account: Whose. Of whoever has no key it is an address, and not kept.
            charge: What was reserved; None if nothing was.
            tokens: What it has used; if nothing, the engine has done nothing for it.
            output_tokens: How many of them it wrote.
        """
        if not tokens or is_stranger(account):
            return
        today = self.today()
        row = self._row(today, account)
        row[_REQUESTS] += 1
        row[_PROMPT] += tokens - output_tokens
        row[_OUTPUT] += output_tokens
        if charge is not None and charge.meters[-1:] == (DAILY_TOKENS,):
            # As `Counter.settle`: what was reserved belongs to its day, and only what is more to this.
            reserved = min(tokens, charge.amount)
            self._row(charge.windows[-1], account)[_CHARGED] += reserved
            row[_CHARGED] += tokens - reserved

    async def run(self) -> None:
        """Writes, time and again, until it is cancelled."""
        while True:
            await asyncio.sleep(self._write_seconds)
            await self.flush()

    async def flush(self) -> None:
        """Writes what there is, or waits for whoever is just doing so; what fails is kept."""
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        # Of its own: whoever is called off meanwhile does not know what has become of it.
        await asyncio.shield(self._writing)

    async def aclose(self) -> None:
        """Writes what there is, for the last time."""
        if self._writing is not None or self._handed:
            await self.flush()
        await self.flush()
        if lost := len(self._owed) + len(self._handed) + len(self._fresh):
            self._on_lost(lost)

    def _row(self, day: int, account: str) -> list[int]:
        row = self._fresh.get((day, account))
        if row is None:
            row = self._fresh[day, account] = [0, 0, 0, 0]
        return row

    async def _write(self) -> None:
        try:
            if not self._handed:
                self._handed, self._fresh = self._fresh, {}
            if not self._handed and not self._owed:
                return
            problem = await asyncio.to_thread(self._add)
        except Exception as exc:  # noqa: BLE001 - such as no thread to be had: nothing ends the writer
            problem = f"cannot be written: {type(exc).__name__}"
        finally:
            self._writing = None
        if (problem is None) != (self.problem is None):
            self._on_change(problem)
        self.problem = problem

    def _add(self) -> str | None:
        """In a thread: adds what was handed to it to what is owed, and all of that to the file.

        Returns:
            Why it cannot.
        """
        handed, self._handed = self._handed, {}
        for key, numbers in handed.items():
            owed = self._owed.setdefault(key, [0, 0, 0, 0])
            for at, number in enumerate(numbers):
                owed[at] += number
        try:
            self._file.add(self._owed)
        except HistoryError as exc:
            return str(exc)
        self._owed = {}
        return None
