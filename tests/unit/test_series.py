"""The series of our own: a scrape reads the same of them as of the library's, to the letter."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from proxy.telemetry.metrics.series import Distribution, Tally

BOUNDS = (0.005, 0.5, 1, 30)
TEXT = "What it is, with a \\ and a\nline."


@pytest.fixture(autouse=True)
def no_created_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the program (``app``)."""
    monkeypatch.setattr("prometheus_client.metrics._use_created", False)


def pages(registry: CollectorRegistry) -> tuple[bytes, bytes]:
    """What is read in either format."""
    return generate_latest(registry), generate_openmetrics(registry)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param([], id="nothing yet"),
        pytest.param([("a", 200, 1)], id="once"),
        pytest.param([("b", 200, 1), ("a", 200, 7), ("b", 200, 2)], id="in the order they came"),
        pytest.param([('"\\\n', 200, 0)], id="nothing of something odd"),
    ],
)
def test_tally_reads_as_counter(counted: list[tuple[str, int, int]]) -> None:
    """Labels of any type, and amounts."""
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    counter = Counter("some", TEXT, ["word", "status"], registry=theirs)
    tally = Tally("some", TEXT, ["word", "status"], ours)
    for word, status, amount in counted:
        counter.labels(word, status).inc(amount)
        tally.add((word, status), amount)
    assert pages(ours) == pages(theirs)


@pytest.mark.parametrize(
    "observed",
    [
        pytest.param([], id="nothing yet"),
        pytest.param([0.0], id="the least"),
        pytest.param([0.5], id="a bound is in its own bucket"),
        pytest.param([0.5000001], id="more than a bound is in the next"),
        pytest.param([30, 30.1, 1e9], id="more than the last bound"),
        pytest.param([-1.0], id="less than nothing, by a clock that was set back"),
    ],
)
def test_distribution_reads_as_histogram(observed: list[float]) -> None:
    """With a label and without."""
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    labelled = Histogram("some", TEXT, ["word"], buckets=BOUNDS, registry=theirs)
    plain = Histogram("other", TEXT, buckets=BOUNDS, registry=theirs)
    some = Distribution("some", TEXT, bounds=BOUNDS, registry=ours, label="word")
    other = Distribution("other", TEXT, bounds=BOUNDS, registry=ours)
    for value in observed:
        labelled.labels("a").observe(value)
        plain.observe(value)
        some.of("a").observe(value)
        other.of("").observe(value)
    labelled.labels("b")
    some.of("b")
    assert pages(ours) == pages(theirs)


def test_name_is_taken_once() -> None:
    """As by the library's own."""
    registry = CollectorRegistry()
    Tally("some", TEXT, [], registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Distribution("some_total", TEXT, bounds=BOUNDS, registry=registry)
