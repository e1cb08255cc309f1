"""How many connections there may be: in all, without a request, and of one address.

Decides, and touches no socket. A connection is *answering* from the moment the head of a request is
complete until its answer is out, and *idle* otherwise: before its first request, between two, with
half a head, and while it lingers after its last answer. Who is idle keeps nobody out: when room is
needed, the one that has been so for the longest gives way, strangers before those whose last request
has shown a key (``waiting``). Those that still take the end of their last answer do so only when
there is none else of their kind. So whoever opens thousands of connections and says nothing, or half
a head on each, or asks and does not read, keeps nobody from being served, and breaks no answer to a
key off; what he may cost another is a connection that waits for its next request, and has to be
opened again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.errors import ConnectionsExhausted, Refusal, TooManyConnections
from proxy.server.waiting import Member, Waiting

__all__ = ["IDLE", "ConnectionLimits", "Connections", "Member"]

IDLE = "idle"
"""The event of a connection that gave way. Every other one is named by the reason of a refusal."""

_RETRY_AFTER_SECONDS = 5

# Of what there is where that is too little: for those who are told why there is no place.
_TOLD_SHARE = 8
_FEWEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many there may be.

    Attributes:
        open: In all.
        idle: Of these, without a request that is being answered.
        per_address: Of these, of one address; 0 for any number.
        told: How many more may linger while they read why there is no place for them. Whoever comes
            beyond that is closed without a word.
        told_per_address: Of these, of one address, so that one stranger does not keep the reason
            from everybody else.
    """

    open: int = 4096
    idle: int = 1024
    per_address: int = 0
    told: int = 256
    told_per_address: int = 16

    def within(self, most: int) -> "ConnectionLimits":
        """Limits with which there are never more than so many, or a few: these, or lower ones.

        More places than the system has descriptors would be worth nothing: who comes when they have run
        out is closed without a word, and no idle one gives way to him.
        """
        if self.open + self.told <= most:
            return self
        told = max(1, min(self.told, most // _TOLD_SHARE))
        places = max(_FEWEST, min(self.open, most - told))
        return replace(self, open=min(self.open, places), idle=min(self.idle, places), told=told)


class Connections:
    """The connections of one listener.

    Args:
        limits: How many there may be.
        address_of: By what the connections of a peer's address are counted; None of a peer whose
            are not.
        on_event: Called with ``idle`` where one gives way, and else with the reason for which one
            more was refused.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        address_of: Callable[[str], str | None] = lambda peer: peer,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._address_of = address_of
        self._on_event = on_event
        self._open: dict[Member, str | None] = {}
        self._idle = Waiting()
        self._known: set[Member] = set()
        self._per_address: dict[str, int] = {}
        self._told: dict[Member, str | None] = {}

    @property
    def open(self) -> int:
        """How many have a place."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """How many of these are idle."""
        return len(self._idle)

    def opened(self, member: Member, peer: str | None) -> Refusal | None:
        """Gives a new connection a place, or says why it has none.

        Args:
            member: It.
            peer: Its address; None by a Unix socket.
        """
        address = self._counted(peer)
        if address is not None:
            if self._per_address.get(address, 0) >= self._limits.per_address:
                return self._refused(_too_many(self._limits.per_address))
            self._per_address[address] = self._per_address.get(address, 0) + 1
        if len(self._open) >= self._limits.open and not self.idle:
            self._forget(address)
            return self._refused(_exhausted())
        if len(self._open) >= self._limits.open:
            self._make_room()
        self._open[member] = address
        self.rests(member)
        return None

    def answers(self, member: Member) -> None:
        """A request is being answered; only a key that comes with it counts from now on."""
        self._idle.remove(member)
        # A key may have been revoked since the request before.
        self._known.discard(member)

    def known(self, member: Member) -> None:
        """The request that is being answered has shown a valid key; without a place, that is nothing."""
        if member in self._open:
            self._known.add(member)

    def rests(self, member: Member) -> None:
        """It is idle, from now on; without a place, it stays without."""
        if member in self._open and member not in self._idle:
            if self.idle >= self._limits.idle:
                self._make_room()
            self._idle.add(member, known=member in self._known)

    def closed(self, member: Member) -> None:
        """It is gone, whether it had a place or not."""
        self._told.pop(member, None)
        self._idle.remove(member)
        self._known.discard(member)
        if member in self._open:
            self._forget(self._open.pop(member))

    def may_be_told(self, member: Member, peer: str | None) -> bool:
        """Whether one that has no place may stay for as long as it takes to read why.

        Args:
            member: It.
            peer: Its address; None by a Unix socket.
        """
        if len(self._told) >= self._limits.told:
            return False
        address = self._address_of(peer) if peer is not None else None
        if address is not None:
            # So few are told that to count them is cheaper than to keep count.
            of_address = list(self._told.values()).count(address)
            if of_address >= self._limits.told_per_address:
                return False
        self._told[member] = address
        return True

    def _make_room(self) -> None:
        longest = self._idle.next()
        self.closed(longest)
        self._on_event(IDLE)
        longest.give_way()

    def _counted(self, peer: str | None) -> str | None:
        return self._address_of(peer) if peer is not None and self._limits.per_address else None

    def _forget(self, address: str | None) -> None:
        if address is None:
            return
        if self._per_address[address] == 1:
            del self._per_address[address]
        else:
            self._per_address[address] -= 1

    def _refused(self, refusal: Refusal) -> Refusal:
        self._on_event(refusal.reason.value)
        return refusal


def _too_many(most: int) -> TooManyConnections:
    return TooManyConnections(
        f"Your address holds {most} connections to this server, the most that one may "
        "(PROXY_MAX_CONNECTIONS_PER_ADDRESS). Close some, or use them again.",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )


def _exhausted() -> ConnectionsExhausted:
    return ConnectionsExhausted(
        "This server holds as many connections as it may (PROXY_MAX_CONNECTIONS), each with a "
        "request. Try again soon.",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )
