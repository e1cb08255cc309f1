"""All that a request needs before the engine is asked for tokens, in one block that gives it back.

First what its key has left, which is refused at once; then a place and room in the engine's cache, for
which it may wait. The order matters: what waits holds its tokens already, so that a key cannot fill the
queue with what it may not have.
"""

from types import TracebackType
from typing import Self

import msgspec

from proxy.admission.estimates import Estimates
from proxy.admission.kv import TokenBudget
from proxy.admission.parties import Entry
from proxy.admission.rates import Grant, RateLimits
from proxy.admission.slots import Slots, Turn
from proxy.errors import RawHeaders
from proxy.principal import Allowance


class Demand(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request may need of the engine.

    Attributes:
        text_bytes: UTF-8 of all that counts, as in ``policy.Cost``.
        media_parts: Images and sounds.
        output_tokens: The most that may be generated, over all sequences.
    """

    text_bytes: int
    media_parts: int
    output_tokens: int


class Gate:
    """Lets requests through, as many and as large as keys and engine can take.

    Args:
        rates: What keys have left.
        slots: Places at the engine, and room in its cache.
        estimates: What prompts are taken for.
        budget: The one of the slots; None where there is none.
    """

    def __init__(
        self,
        *,
        rates: RateLimits,
        slots: Slots,
        estimates: Estimates,
        budget: TokenBudget | None = None,
    ) -> None:
        self._rates = rates
        self._slots = slots
        self._estimates = estimates
        self._budget = budget
        self._are_told = rates.are_told

    @property
    def learns(self) -> bool:
        """Whether anything depends on what requests really come to."""
        return self._are_told or (self._budget is not None and self._budget.limit is not None)

    @property
    def records(self) -> bool:
        """Whether somebody keeps what each key has used."""
        return self._are_told

    def admit(self, account: str, allowance: Allowance, demand: Demand) -> "Admission":
        """Holds everything for an ``async with`` block.

        Raises, on entering:
            RateLimitExceeded: The key has had its tokens, or has as many requests under way as it may.
            RequestExceedsRateLimit: It can never have so many at once.
            RequestExceedsCapacity: Nor can the engine.
            LimitsUnavailable: Nobody can tell what the key has had.
            Overloaded: The queue is full, or the wait has lasted too long.
        """
        prompt = self._estimates.prompt_tokens(account, demand.text_bytes, demand.media_parts)
        output = demand.output_tokens
        certain = self._estimates.least_tokens(demand.text_bytes) + output
        return Admission(self._rates, self._slots, account, allowance, prompt, output, certain)

    def learn(self, account: str, demand: Demand, prompt_tokens: int) -> None:
        """The engine has said what a prompt really was."""
        self._estimates.learn(account, demand.text_bytes, demand.media_parts, prompt_tokens)


class Admission:
    """One request on its way through the gate and out again. Made by ``Gate.admit``.

    A class and not a generator: entering and leaving that would cost as much as all that is held.

    Attributes:
        queued_seconds: How long it waited.
        rate_fields: What its response says of the key's tokens.
        prompt_tokens: What its prompt is taken for.
        used_tokens: What it is charged in the end. Whoever asks the engine says so here; what never
            got there is charged nothing.
        output_tokens: How many of them the engine wrote.
    """

    __slots__ = (
        "_account",
        "_allowance",
        "_certain",
        "_entry",
        "_grant",
        "_output",
        "_rates",
        "_slots",
        "output_tokens",
        "prompt_tokens",
        "queued_seconds",
        "rate_fields",
        "used_tokens",
    )

    def __init__(  # noqa: PLR0917 - only the gate makes them, and names cost time
        self,
        rates: RateLimits,
        slots: Slots,
        account: str,
        allowance: Allowance,
        prompt_tokens: int,
        output_tokens: int,
        certain_tokens: int,
    ) -> None:
        self._rates = rates
        self._slots = slots
        self._account = account
        self._allowance = allowance
        self._output = output_tokens
        self._certain = certain_tokens
        self._grant: Grant
        self._entry: Entry[Turn]
        self.prompt_tokens = prompt_tokens
        self.queued_seconds = 0.0
        self.rate_fields: RawHeaders = ()
        self.used_tokens = 0
        self.output_tokens = 0

    async def __aenter__(self) -> Self:
        tokens = self.prompt_tokens + self._output
        grant = await self._rates.reserve(self._account, self._allowance, tokens, self._output)
        slots = self._slots
        try:
            # As ``Slots.hold`` does, without another block.
            entry = slots.enter(self._account, tokens, self._certain, self._output)
            if entry.item is not None:
                self.queued_seconds = await slots.wait(entry, entry.item)
        except BaseException:
            self._rates.settle(grant, 0)
            raise
        self._grant = grant
        self._entry = entry
        self.rate_fields = grant.fields
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Neither waits for anybody, so that no cancellation can come between.
        try:
            self._slots.release(self._entry)
        finally:
            self._rates.settle(self._grant, self.used_tokens, self.output_tokens)
