"""What time it is: passed in, so that tests can say."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clocks:
    """What time it is; tests bring their own.

    Attributes:
        monotonic: Seconds, for durations.
        now: The wall clock in UTC, for log lines and the expiry of keys.
    """

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now
