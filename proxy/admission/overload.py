"""What is said to whoever gets no slot: what keeps the server busy, how long for, and which setting."""

from dataclasses import dataclass

from proxy.admission.kv import TokenBudget
from proxy.errors import Overloaded, RequestExceedsCapacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """How things stand when somebody is refused.

    Attributes:
        in_flight: How many requests are being answered.
        waiting: How many wait, without the one that is refused.
        limited_by: What keeps it from its turn, with the setting, as the end of a sentence.
        retry_after_seconds: When to come again.
    """

    in_flight: int
    waiting: int
    limited_by: str
    retry_after_seconds: int

    def full(self) -> Overloaded:
        """There is no place to wait in."""
        return self._overloaded(f"The queue is full: {self.waiting} (PROXY_QUEUE_SIZE).")

    def gave_way(self, *, stranger: bool) -> Overloaded:
        """There was one, and it is another's now."""
        whose = "came without a key, as yours did" if stranger else "are yours"
        return self._overloaded(
            f"The queue is full: {self.waiting} (PROXY_QUEUE_SIZE). Most of them {whose}, so that "
            "the last of them gave way to somebody who has fewer there."
        )

    def too_long(self, seconds: float) -> Overloaded:
        """There was one for so long."""
        return self._overloaded(
            f"This request has waited {seconds:g} s for its turn, which is as long as it may "
            "(PROXY_QUEUE_TIMEOUT_SECONDS)."
        )

    def _overloaded(self, why: str) -> Overloaded:
        are = "request is" if self.in_flight == 1 else "requests are"
        return Overloaded(
            f"This server is busy: {self.in_flight} {are} being answered, "
            f"{self.limited_by}. {why} Try again in {self.retry_after_seconds} s.",
            retry_after_seconds=self.retry_after_seconds,
        )


def outgrown(budget: TokenBudget) -> Overloaded:
    """The engine came back smaller while the request waited; asked again, it is told for certain."""
    return Overloaded(
        "The model server has become smaller while this request waited: all requests together may "
        f"need {budget.setting}. Try again.",
        retry_after_seconds=1,
    )


def too_large(tokens: int, output: int, budget: TokenBudget) -> RequestExceedsCapacity:
    """It would not fit an engine that did nothing else."""
    return RequestExceedsCapacity(
        f"This request needs {tokens:,} tokens, about {tokens - output:,} for its prompt and up to "
        f"{output:,} for its answers, and all requests together may need {budget.setting}. Shorten "
        "the prompt, or ask for shorter or fewer answers."
    )
