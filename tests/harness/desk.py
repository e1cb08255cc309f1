"""A fair queue with a clock, a number of tokens, and requests with short names."""

from typing import Any

from proxy.admission.lineup import UNBOUNDED
from proxy.admission.parties import Entry, Standing
from proxy.admission.queue import FairQueue


def account(name: str) -> str:
    """Whose a request is."""
    return name[0] if name[0].islower() else f"anonymous {name[0]}"


class Desk:
    """A queue, a clock, a number of tokens, and who has been served.

    Requests are called by their account and a number: ``a1`` is account ``a``'s first, and ``A1``
    that of an address.
    """

    def __init__(self, *, size: int = 100, share: int = 100, tokens: int = UNBOUNDED) -> None:
        self.queue: FairQueue[Any] = FairQueue(size=size, share=share, patience_seconds=5)
        self.entries: dict[str, Entry[Any]] = {}
        self.tokens = tokens
        self.free = tokens
        self.now = 100.0

    def hold(self, *names: str, tokens: int = 0) -> None:
        """They get slots without waiting."""
        for name in names:
            self.entries[name] = self.queue.enter(account(name), tokens, self.now)
            self.free -= tokens

    def join(self, *names: str, tokens: int = 0) -> list[str]:
        """They queue up; gives those who had to give way."""
        gone = []
        for name in names:
            self.entries[name] = self.queue.join(account(name), tokens, self.now)
            leaving = self.queue.give_way()
            if leaving is not None:
                self.queue.leave(leaving, self.now)
                gone.append(self.name(leaving))
        return gone

    def leave(self, *names: str) -> None:
        """They give up waiting."""
        for name in names:
            self.queue.leave(self.entries[name], self.now)

    def done(self, *names: str) -> None:
        """They give back what they held."""
        for name in names:
            self.free += self.entries[name].tokens
            self.queue.done(self.entries[name])

    def serve(self, slots: int = 1_000) -> str:
        """Gives away that many slots, as far as somebody may have one; who got them, in order."""
        served: list[str] = []
        while len(served) < slots:
            entry = self.queue.next(self.free, self.tokens, self.now)
            if entry is None:
                break
            assert entry.standing is Standing.HOLDS
            assert entry.tokens <= self.free
            self.free -= entry.tokens
            served.append(self.name(entry))
        return " ".join(served)

    def name(self, entry: Entry[Any]) -> str:
        """What the test calls it."""
        return next(name for name, known in self.entries.items() if known is entry)

    def end(self) -> None:
        """Everybody goes home, and there must be no trace of anybody."""
        for entry in self.entries.values():
            if entry.standing is Standing.WAITS:
                self.queue.leave(entry, self.now)
            elif entry.standing is Standing.HOLDS:
                self.queue.done(entry)
        queue = self.queue
        claims = queue._claims
        assert (len(queue), queue.accounts, claims._passed_tokens) == (0, 0, 0)
        for side in (queue._keys, queue._strangers):
            assert (side.rings, side.held, side.tally.total, side.tally.most) == ({}, 0, 0, 0)
        assert (len(claims._passed_over), len(claims._claims)) == (0, 0)
