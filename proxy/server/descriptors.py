"""File descriptors: each connection is one, and the system gives a process only so many."""

import resource
from dataclasses import dataclass

# The listeners, the loop's own, the log, key files, what DNS and Redis need.
_OTHERS = 128


@dataclass(frozen=True, slots=True)
class Descriptors:
    """How many file descriptors there may be.

    Attributes:
        needed: What the settings can come to.
        limit: What the system allows this process, from now on.
    """

    needed: int
    limit: int

    @property
    def suffice(self) -> bool:
        """Whether no connection that the settings allow can fail for want of one."""
        return self.limit >= self.needed

    def connections(self, upstream: int) -> int:
        """How many connections of clients there can be, beside those to the upstream.

        Each has one request at a time: those to the upstream take half of the room at most.
        """
        room = self.limit - _OTHERS
        return max(0, room - upstream, room // 2)


def needed(clients: int, upstream: int) -> int:
    """What so many connections come to.

    Args:
        clients: Connections of clients, with those that are being told that there is no place.
        upstream: Connections to the upstream.
    """
    return clients + upstream + _OTHERS


def allow(wanted: int) -> Descriptors:
    """Raises the soft limit to the hard one if it is below what is wanted, and says what is allowed.

    Never lowers it, and changes nothing where it suffices.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _below(soft, wanted):
        # Without a hard limit the system's own (fs.nr_open) still holds: no more than is wanted.
        raised = wanted if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    return Descriptors(wanted, wanted if soft == resource.RLIM_INFINITY else soft)


def _below(soft: int, wanted: int) -> bool:
    return soft != resource.RLIM_INFINITY and soft < wanted
