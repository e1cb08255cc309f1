"""What is asked of the books of rates, and what they say, whoever keeps them: memory or Redis."""

from typing import NamedTuple

from proxy.admission.window import TICKS_PER_SECOND, Meter, Reading

CONCURRENCY_WAIT = 1 * TICKS_PER_SECOND
"""Ticks after which to try again for one more at once. Nobody knows when a request will end."""


LEASE_SECONDS = 30
"""How long a request counts as running, in books that others keep, unless it is said again."""


class LinkError(Exception):
    """Who keeps the books elsewhere does not say. The text is fit for the log: no address in it."""


class Cost(NamedTuple):
    """What a request is about to use of one limit."""

    meter: Meter
    limit: int
    amount: int


class Ask(NamedTuple):
    """All that a request is about to use, to be charged together or not at all.

    Attributes:
        concurrency: How many may run at once, if that is limited; this one is to be one of them.
    """

    costs: tuple[Cost, ...]
    concurrency: int | None = None


class Decision(NamedTuple):
    """What has become of what was asked.

    Attributes:
        refused_by: The position of the limit that takes longest to let it pass; ``len(costs)`` is
            the concurrency, and None is granted.
        wait: The ticks after which all limits would let it pass, as they stand.
        readings: How each limit stands after this, in the order of the costs.
    """

    refused_by: int | None
    wait: int
    readings: list[Reading]


class Charge(NamedTuple):
    """What was charged, so that it can be settled.

    Attributes:
        lease: The name of the one that runs; empty where concurrency is not limited.
    """

    account: str
    costs: tuple[Cost, ...]
    windows: list[int]
    lease: str = ""
