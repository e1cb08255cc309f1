"""What the books of rates begin with: what was charged today and yesterday, before this process."""

from collections.abc import Mapping

from proxy.admission.rates.window import Counter


def seeds(charged: Mapping[str, Mapping[int, int]], today: int) -> dict[str, Counter]:
    """The counter of each key's tokens a day.

    Where something was charged tomorrow the clock was put back since, at a turn of the day: as if it
    stood still until it has caught up, which is what ``Counter.turn`` does of a clock of its own.

    Args:
        charged: Tokens by key and day.
        today: The number of the day.
    """
    counters = {}
    for key_id, days in charged.items():
        window = today + 1 if days.get(today + 1) else today
        counter = Counter(window, days.get(window, 0), days.get(window - 1, 0))
        if counter.current or counter.previous:
            counters[key_id] = counter
    return counters
