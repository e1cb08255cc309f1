"""All that a request needs before the engine is asked for tokens, in one block that gives it back.

First what its key has left, which is refused at once; then a place and room in the engine's cache, for
which it may wait. The order matters: what waits holds its tokens already, so that a key cannot fill the
queue with what it may not have.
"""

from dataclasses import dataclass
from types import TracebackType

from proxy.admission.estimates import Estimates
from proxy.admission.kv import TokenBudget
from proxy.admission.rates import Grant, RateLimits
from proxy.admission.slots import Hold, Slots
from proxy.errors import RawHeaders
from proxy.principal import Allowance


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request may need of the engine.

    Attributes:
        text_bytes: UTF-8 of all that counts, as in ``policy.Cost``.
        media_parts: Images and sounds.
        output_tokens: The most that may be generated, over all sequences.
    """

    text_bytes: int
    media_parts: int
    output_tokens: int


@dataclass(slots=True, kw_only=True)
class Admitted:
    """A request that may go on.

    Attributes:
        queued_seconds: How long it waited.
        rate_fields: What its response says of the key's tokens.
        prompt_tokens: What its prompt is taken for.
        used_tokens: What it is charged in the end. Whoever asks the engine says so here; what never
            got there is charged nothing.
    """

    queued_seconds: float
    rate_fields: RawHeaders
    prompt_tokens: int
    used_tokens: int = 0


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

    @property
    def learns(self) -> bool:
        """Whether anything depends on what prompts really come to."""
        return self._budget is not None and self._budget.limit is not None

    def hold(self, account: str, allowance: Allowance, demand: Demand) -> "Passage":
        """Holds everything for an ``async with`` block, which it gives an ``Admitted``.

        Raises, on entering:
            RateLimitExceeded: The key has had its tokens, or has as many requests under way as it may.
            RequestExceedsRateLimit: It can never have so many at once.
            RequestExceedsCapacity: Nor can the engine.
            LimitsUnavailable: Nobody can tell what the key has had.
            Overloaded: The queue is full, or the wait has lasted too long.
        """
        return Passage(self, account, allowance, demand)

    async def enter(self, passage: "Passage") -> Admitted:
        """Takes all that a passage needs, or nothing."""
        account, demand = passage.account, passage.demand
        prompt = self._estimates.prompt_tokens(account, demand.text_bytes, demand.media_parts)
        output = demand.output_tokens
        grant = await self._rates.reserve(account, passage.allowance, prompt + output)
        certain = self._estimates.least_tokens(demand.text_bytes) + output
        place = self._slots.hold(account, prompt + output, at_least=certain, output_tokens=output)
        try:
            queued_seconds = await place.__aenter__()
        except BaseException:
            await self._rates.settle(grant, 0)
            raise
        passage.grant, passage.place = grant, place
        return Admitted(
            queued_seconds=queued_seconds, rate_fields=grant.fields, prompt_tokens=prompt
        )

    async def leave(self, passage: "Passage", used_tokens: int) -> None:
        """Gives it back. Waits for nobody, so that no cancellation can come between."""
        try:
            await passage.place.__aexit__(None, None, None)
        finally:
            await self._rates.settle(passage.grant, used_tokens)

    def learn(self, account: str, demand: Demand, prompt_tokens: int) -> None:
        """The engine has said what a prompt really was."""
        self._estimates.learn(account, demand.text_bytes, demand.media_parts, prompt_tokens)


class Passage:
    """One way through the gate and out again. Made by ``Gate.hold``.

    A class and not a generator: entering and leaving that would cost as much as all that is held.
    """

    __slots__ = ("_admitted", "_gate", "account", "allowance", "demand", "grant", "place")

    def __init__(self, gate: Gate, account: str, allowance: Allowance, demand: Demand) -> None:
        self._gate = gate
        self.account = account
        self.allowance = allowance
        self.demand = demand
        self.grant: Grant
        self.place: Hold
        self._admitted: Admitted

    async def __aenter__(self) -> Admitted:
        self._admitted = await self._gate.enter(self)
        return self._admitted

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._gate.leave(self, self._admitted.used_tokens)
