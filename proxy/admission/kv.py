"""How many tokens of the engine's KV cache all requests together may come to need. Pure.

An engine reserves nothing for what a request may still generate: it lets in whatever fits now and,
when the cache is full, throws somebody out and computes it again. A model's longest context is not
what it can serve: one request of 180,000 tokens may fill all of a machine, and of 64,000 two fit
while the rest wait for minutes. So what each may need at most is added up here, before it is sent.
"""

from proxy.admission.crowding import Crowding
from proxy.admission.lineup import UNBOUNDED


class TokenBudget:
    """What is reserved, out of nine tenths of the pool.

    A tenth is left for what estimates miss and for the engine's own. The pool, once read, stays
    in force until another is read: metrics fail under load, which is when it is needed.

    Args:
        fixed_tokens: The limit itself, whatever the pool (``PROXY_KV_BUDGET_TOKENS=50000``); None
            goes by the pool, and limits nothing until one is known.

    Attributes:
        limit: Tokens that may be reserved at once; None: no limit.
        reserved: Tokens reserved now.
    """

    def __init__(self, fixed_tokens: int | None = None) -> None:
        self._fixed_tokens = fixed_tokens
        self._pool: int | None = None
        # No properties: each is read several times for each request.
        self.limit = fixed_tokens
        self.reserved = 0
        self._in_flight = 0
        self._crowding = Crowding()

    @property
    def pool(self) -> int | None:
        """Tokens that the engine's cache holds; None while it has shown none."""
        return self._pool

    @property
    def free(self) -> int:
        """Tokens that may still be reserved; below zero where the pool has become smaller."""
        return UNBOUNDED if self.limit is None else self.limit - self.reserved

    @property
    def ceiling(self) -> int | None:
        """How many requests the engine was seen to run at once, while it had a queue of its own."""
        return self._crowding.ceiling

    @property
    def setting(self) -> str:
        """Where the limit comes from, for whom it hits."""
        if self._fixed_tokens is not None:
            return f"{self._fixed_tokens:,} tokens (PROXY_KV_BUDGET_TOKENS)"
        return (
            f"{self.limit or 0:,} tokens, nine tenths of the model server's KV cache of "
            f"{self._pool or 0:,} (PROXY_KV_BUDGET_TOKENS)"
        )

    def set_pool(self, tokens: int) -> None:
        """The engine has shown its pool, perhaps another than before.

        Nobody is broken off where it is smaller than what is reserved; nobody new fits until it is
        not.
        """
        self._pool = tokens
        if self._fixed_tokens is None:
            self.limit = tokens * 9 // 10

    def note_load(
        self, waiting: float, usage_fraction: float, at: float, running: int | None = None
    ) -> None:
        """What the engine says of its own queue and cache, as in ``Crowding.note``."""
        self._crowding.note(waiting, usage_fraction, at, self._in_flight, running)

    def has_room(self, now: float) -> bool:
        """Whether the engine, by its own account, may be sent one more."""
        return self._crowding.has_room(self._in_flight, now)

    def stale_from(self, now: float) -> float | None:
        """When that account will count no longer; None if it counts for nothing now."""
        return self._crowding.stale_from(now)

    def take(self, tokens: int) -> None:
        """Reserves; whether it fits was the caller's to ask."""
        self.reserved += tokens
        self._in_flight += 1

    def give_back(self, tokens: int) -> None:
        """Ends a reservation."""
        self.reserved -= tokens
        self._in_flight -= 1
