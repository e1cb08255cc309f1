"""What the outcomes of a run come to: figures for each key, and the issue's targets. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.load import Outcome, percentile

FULL_QUEUE = "queue full"
GAVE_WAY = "gave way"
DEADLINE = "waited too long"

MOST_OVER_ALONE = 1.5
LEAST_OVER_NONE = 1.5
_REFUSED_WITHIN_MS = 50

# By what the message names: the code is `overloaded` for all three.
_KINDS = (
    ("gave way", GAVE_WAY),
    ("PROXY_QUEUE_TIMEOUT_SECONDS", DEADLINE),
    ("PROXY_QUEUE_SIZE", FULL_QUEUE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one key, or several together, saw in a run.

    Attributes:
        finished: Answered to the end.
        good: Of these, within the patience of whoever sent them.
        cut: Still waiting when the run ended.
        refused: How many were, by status and kind.
        first_byte: Seconds at the 50th, 95th and 99th percentile of *all* that were sent. What was
            refused or cut counts as never answered, so that refusing more does not look faster.
        longest_refusal: Seconds until the last refusal that was heard.
        errors: Connections that broke, by the client's word for it.
    """

    offered: int
    finished: int
    good: int
    cut: int
    refused: dict[str, int]
    first_byte: tuple[float, float, float]
    longest_refusal: float
    errors: dict[str, int]


def figures(outcomes: Iterable[Outcome], patience_seconds: float) -> Figures:
    """The figures of these."""
    outcomes = list(outcomes)
    firsts = [math.inf if o.first_byte is None else o.first_byte for o in outcomes]
    done = [o.done for o in outcomes if o.done is not None]
    refusals = [refusal for o in outcomes for refusal in o.refusals]
    return Figures(
        offered=len(outcomes),
        finished=len(done),
        good=sum(seconds <= patience_seconds for seconds in done),
        cut=sum(o.cut for o in outcomes),
        refused=dict(Counter(f"{r.status} {kind(r.message) or r.code}" for r in refusals)),
        first_byte=(percentile(firsts, 50), percentile(firsts, 95), percentile(firsts, 99)),
        longest_refusal=max((refusal.after for refusal in refusals), default=0.0),
        errors=dict(Counter(o.error for o in outcomes if o.error)),
    )


def kind(message: str) -> str:
    """Why the queue refused, by the message; empty where it was not the queue."""
    return next((kind for words, kind in _KINDS if words in message), "")


def full_queue_seconds(outcomes: Iterable[Outcome]) -> list[float]:
    """How long each refusal of a full queue took, from sending to hearing of it."""
    refusals = [refusal for o in outcomes for refusal in o.refusals]
    return [refusal.after for refusal in refusals if kind(refusal.message) == FULL_QUEUE]


def gave_way_seconds(outcomes: Sequence[Outcome]) -> list[float]:
    """How long after the newcomer was sent for whom it had to go, each that gave way heard of it."""
    sent = sorted((o.sent_at, o.ask.key) for o in outcomes)
    waits = []
    for o in outcomes:
        for refusal in o.refusals:
            if kind(refusal.message) != GAVE_WAY:
                continue
            heard = o.sent_at + refusal.after
            newcomers = [at for at, key in sent if at <= heard and key != o.ask.key]
            waits.append(heard - newcomers[-1])
    return waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One of the issue's, with what was measured.

    Attributes:
        measured: The figure, as text with its unit.
        bound: What it has to be, likewise.
        met: Whether it is.
    """

    name: str
    measured: str
    bound: str
    met: bool


def targets(
    *,
    alone: Sequence[Outcome],
    shared: Sequence[Outcome],
    unguarded: Sequence[Outcome],
    modest: Sequence[str],
    patience_seconds: float,
) -> list[Target]:
    """The issue's targets.

    Args:
        alone: The modest keys without the greedy one, behind the same proxy.
        shared: All keys.
        unguarded: All keys, without admission control.
        modest: The names of the modest keys.
        patience_seconds: Within what of being sent a request has to finish to be good.
    """
    before = figures(alone, patience_seconds).first_byte[1]
    with_greedy = figures((o for o in shared if o.ask.key in modest), patience_seconds)
    after = with_greedy.first_byte[1]
    everybody, nobody = figures(shared, patience_seconds), figures(unguarded, patience_seconds)
    refusals = [refusal for o in shared for refusal in o.refusals]
    silent = sum(refusal.retry_after is None for refusal in refusals)
    full = full_queue_seconds(shared)
    slowest_ms = max(full, default=0.0) * 1000
    errors = sum(everybody.errors.values())
    return [
        Target(
            name="modest keys' p95 first byte, over what they see alone",
            measured=f"{after:.2f} s / {before:.2f} s = {after / before:.2f}",
            bound=f"≤ {MOST_OVER_ALONE}",
            met=after <= MOST_OVER_ALONE * before < math.inf,
        ),
        Target(
            name=f"finished within {patience_seconds:g} s, over no admission",
            measured=f"{everybody.good} / {nobody.good} = {everybody.good / max(1, nobody.good):.2f}",
            bound=f"≥ {LEAST_OVER_NONE}",
            met=everybody.good >= max(1, LEAST_OVER_NONE * nobody.good),
        ),
        Target(
            name="connections that broke",
            measured=f"{errors} of {everybody.offered:,}",
            bound="0",
            met=not errors,
        ),
        Target(
            name="slowest refusal of a full queue",
            measured=f"{slowest_ms:.1f} ms, p95 {percentile(full, 95) * 1000:.1f}, of {len(full):,}",
            bound=f"≤ {_REFUSED_WITHIN_MS} ms, of some",
            met=bool(full) and slowest_ms <= _REFUSED_WITHIN_MS,
        ),
        Target(
            name="refusals without Retry-After",
            measured=f"{silent} of {len(refusals):,}",
            bound="0",
            met=not silent,
        ),
    ]
