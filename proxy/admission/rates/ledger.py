"""What is asked of the books of rates, and what they say, whoever keeps them: memory or Redis."""

from operator import itemgetter
from typing import NamedTuple

from proxy.admission.rates.window import TICKS_PER_SECOND, Meter, Reading

CONCURRENCY_WAIT = 1 * TICKS_PER_SECOND
"""Ticks after which to try again for one more at once. Nobody knows when a request will end."""


LEASE_SECONDS = 30
"""How long a request counts as running, in books that others keep, unless it is said again."""


class LinkError(Exception):
    """Who keeps the books elsewhere does not say. The text is fit for the log: no address in it."""


class AnsweredError(LinkError):
    """An answer, which is an error.

    Attributes:
        code: Its first word, such as ``NOSCRIPT``.
    """

    def __init__(self, code: str, reason: str | None = None) -> None:
        super().__init__(reason or f"it answered {code}")
        self.code = code

    @property
    def is_of_one(self) -> bool:
        """Whether others may be answered all the same: what one account has there is not ours."""
        return self.code in {"WRONGTYPE", "ERR"}


class Ask(NamedTuple):
    """All that a request is about to use, to be charged together or not at all.

    Attributes:
        meters: What is limited.
        limits: By how much, in the same order.
        amount: What it will use of each.
        concurrency: How many may run at once, if that is limited; this one is to be one of them.
    """

    meters: tuple[Meter, ...]
    limits: tuple[int, ...]
    amount: int = 0
    concurrency: int | None = None


class Decision(NamedTuple):
    """What has become of what was asked.

    Attributes:
        refused_by: The position of the limit that takes longest to let it pass; ``len(meters)`` is
            the concurrency, and None is granted.
        wait: The ticks after which all limits would let it pass, as they stand.
        readings: How each limit stands after this, in the order of the meters.
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
    meters: tuple[Meter, ...]
    amount: int
    windows: list[int]
    lease: str = ""


_window = itemgetter(Reading._fields.index("window"))


def charged(account: str, ask: Ask, decision: Decision, lease: str) -> Charge:
    """What a grant has charged."""
    windows = list(map(_window, decision.readings))
    lease = lease if ask.concurrency is not None else ""
    return Charge(account, ask.meters, ask.amount, windows, lease)
