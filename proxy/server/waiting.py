"""Connections without a request, in the order in which they give way to others.

Strangers first: whoever has shown no key with its last request has been promised nothing. Else a
thousand of them, each with an answer that it does not read, would look as much at work as the one
client that reads its own slowly, and that one would have been at it for the longest. But never all
strangers before all others: a client that has just come is one too, until its first request is in.
"""

from typing import Protocol

# Of those that wait, one in so many may be a stranger before strangers give way to the others.
_STRANGERS = 4


class Member(Protocol):
    """A connection."""

    def is_taking(self) -> bool:
        """Whether its client has not taken all of the last answer, as far as can be told."""

    def give_way(self) -> None:
        """Its place is needed, and is no longer its own."""


class Line:
    """Some that wait; who has done so for the longest comes first."""

    def __init__(self) -> None:
        self._idle: dict[Member, None] = {}
        self._taking: dict[Member, None] = {}  # those that still took their last answer at a look

    def __len__(self) -> int:
        return len(self._idle) + len(self._taking)

    def __contains__(self, member: Member) -> bool:
        return member in self._idle or member in self._taking

    def add(self, member: Member) -> None:
        """It waits, from now on."""
        self._idle[member] = None

    def remove(self, member: Member) -> None:
        """It does not, or did not."""
        self._idle.pop(member, None)
        self._taking.pop(member, None)

    def longest(self) -> Member:
        """Of those that take nothing any more; of all, where each takes its last answer still."""
        # They were idle before all the others, and may have taken all by now. A thousand that have not
        # cost 70 µs.
        for member in self._taking:
            if not member.is_taking():
                return member
        while self._idle:
            member = next(iter(self._idle))
            if not member.is_taking():
                return member
            del self._idle[member]
            self._taking[member] = None
        return next(iter(self._taking))


class Waiting:
    """All that wait: strangers, and those whose last request has shown a key."""

    def __init__(self) -> None:
        self._strangers = Line()
        self._known = Line()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def __contains__(self, member: Member) -> bool:
        return member in self._strangers or member in self._known

    def add(self, member: Member, *, known: bool) -> None:
        """It waits, from now on."""
        (self._known if known else self._strangers).add(member)

    def remove(self, member: Member) -> None:
        """It does not, or did not."""
        self._strangers.remove(member)
        self._known.remove(member)

    def next(self) -> Member:
        """Who gives way; there must be one."""
        few = len(self._strangers) * _STRANGERS < len(self)
        return (self._known if few else self._strangers).longest()
