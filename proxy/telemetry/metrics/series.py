"""Series that are counted for every request, as plain numbers that are read when somebody looks.

The library's own take a lock and several calls for each addition, and look for a bucket one after the
other. What a scrape reads is the same, to the letter. Of one thread: that of the event loop.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally(Collector):
    """Counts by the values of labels, which may be anything that ``str`` makes a word of.

    Args:
        name: Without ``_total``.
        text: What it counts.
        labels: The names of the labels.
        registry: Where it is registered.

    Attributes:
        label_names: As given.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._about = name, text
        self.label_names = tuple(labels)
        self._counts: dict[tuple[object, ...], float] = {}
        registry.register(self)

    def add(self, values: tuple[object, ...], amount: float = 1) -> None:
        """So many more with these labels."""
        counts = self._counts
        counts[values] = counts.get(values, 0) + amount

    def collect(self) -> Iterable[CounterMetricFamily]:
        """What a scrape reads."""
        family = CounterMetricFamily(*self._about, labels=self.label_names)
        for values, count in self._counts.items():
            family.add_metric([str(value) for value in values], count)
        yield family

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Its name, so that no other can have it."""
        yield CounterMetricFamily(*self._about, labels=self.label_names)


class Spread:
    """How often a value was how high.

    Attributes:
        counts: By bucket, the last one for whatever is above every bound.
        total: The sum of all.
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        # A bound belongs to its own bucket.
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Distribution(Collector):
    """A histogram, for each value of its label, or of none.

    Args:
        name: Of the series.
        text: What is measured.
        bounds: The upper bounds of its buckets, in their order.
        registry: Where it is registered.
        label: The name of its label; None without one.

    Attributes:
        label_names: That label, or none.
    """

    def __init__(
        self,
        name: str,
        text: str,
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        label: str | None = None,
    ) -> None:
        self._about = name, text
        self.label_names = (label,) if label is not None else ()
        self._bounds = bounds
        self._words = [*map(floatToGoString, (*bounds, inf))]
        self._spreads: dict[str, Spread] = {}
        registry.register(self)
        if label is None:
            self.of("")

    def of(self, value: str) -> Spread:
        """What is counted with this value of the label; an empty one where there is no label."""
        if (spread := self._spreads.get(value)) is None:
            spread = self._spreads[value] = Spread(self._bounds)
        return spread

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """What a scrape reads."""
        family = HistogramMetricFamily(*self._about, labels=self.label_names)
        for value, spread in self._spreads.items():
            below, buckets = 0, []
            for word, count in zip(self._words, spread.counts, strict=True):
                below += count
                buckets.append((word, float(below)))
            family.add_metric([value] if self.label_names else [], buckets, spread.total)
        yield family

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """Its name, so that no other can have it."""
        yield HistogramMetricFamily(*self._about, labels=self.label_names)
