"""How slow the machine is at this moment, for bounds of CPU time."""

import time

_NUMBERS = 300_000
_USUAL_SECONDS = 0.03
"""What they take on the machine on which the bounds were set, with nothing else on it."""


def slowness() -> float:
    """How many times longer the same work takes now; never less than 1.

    CPU time grows, too, where somebody else's work shares the core's insides.
    """
    started = time.thread_time()
    text = "".join(f"{number:x}" for number in range(_NUMBERS))
    counted = dict.fromkeys(text, 0)
    assert len(counted) == 16
    return max(1.0, (time.thread_time() - started) / _USUAL_SECONDS)
