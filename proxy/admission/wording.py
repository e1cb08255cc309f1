"""What clients are told of their limits: the fields of an answer's head, and the refusals.

Source of the fields: the OpenAI API reference, "Rate limits in headers". Limits and what remains are
whole numbers; when all of it is there again is a duration such as Go prints them, ``6m0s``, ``1s``
or ``120ms``, and clients parse them by these units.
"""

from proxy.admission.ledger import Ask, Cost, Decision
from proxy.admission.window import (
    DAILY_TOKENS,
    REQUESTS,
    TICKS_PER_SECOND,
    TOKENS,
    Reading,
    whole_seconds,
)
from proxy.errors import RateLimitExceeded, RequestExceedsRateLimit

_PERIODS = {REQUESTS: "minute", TOKENS: "minute", DAILY_TOKENS: "day"}


def fields(ask: Ask, decision: Decision) -> list[tuple[bytes, bytes]]:
    """The ``x-ratelimit-*`` fields of what was asked. Of two limits on tokens, the tighter one's."""
    if not ask.costs:
        return []
    tighter = 0
    if len(ask.costs) > 1:
        tighter = min(range(len(ask.costs)), key=lambda at: _tightness(decision.readings[at]))
    meter, limit, _ = ask.costs[tighter]
    _, remaining, reset = decision.readings[tighter]
    if meter is REQUESTS:
        return [
            (b"x-ratelimit-limit-requests", b"%d" % limit),
            (b"x-ratelimit-remaining-requests", b"%d" % remaining),
            (b"x-ratelimit-reset-requests", duration(reset)),
        ]
    return [
        (b"x-ratelimit-limit-tokens", b"%d" % limit),
        (b"x-ratelimit-remaining-tokens", b"%d" % remaining),
        (b"x-ratelimit-reset-tokens", duration(reset)),
    ]


def duration(ticks: int) -> bytes:
    """Ticks as Go prints a duration, rounded up to whole seconds from the first one on."""
    if ticks <= 0:
        return b"0s"
    if ticks < TICKS_PER_SECOND:
        return b"%dms" % (ticks * 1000 // TICKS_PER_SECOND)
    minutes, seconds = divmod(-(-ticks // TICKS_PER_SECOND), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return b"%dh%dm%ds" % (hours, minutes, seconds)
    return b"%dm%ds" % (minutes, seconds) if minutes else b"%ds" % seconds


def exceeded(ask: Ask, decision: Decision) -> RateLimitExceeded:
    """The refusal of what would pass later."""
    refused_by = decision.refused_by
    assert refused_by is not None  # noqa: S101 - for mypy
    seconds = whole_seconds(decision.wait)
    if refused_by == len(ask.costs):
        said = (
            f"You may have {ask.concurrency:,} {_plural(ask.concurrency, 'request')} at once "
            f"({_where('concurrency')}), and have as many. Try again when one has ended."
        )
    elif ask.costs[refused_by].meter is REQUESTS:
        said = f"You may make {_rate(ask.costs[refused_by])}, and have. {_again(seconds)}"
    else:
        cost, remaining = ask.costs[refused_by], decision.readings[refused_by].remaining
        said = (
            f"You may use {_rate(cost)}: this request may use {cost.amount:,}, and "
            f"{remaining:,} are left. {_again(seconds)}"
        )
    return RateLimitExceeded(said, retry_after_seconds=seconds, headers=fields(ask, decision))


def too_large(cost: Cost) -> RequestExceedsRateLimit:
    """The refusal of what would never pass."""
    return RequestExceedsRateLimit(
        f"This request may use {cost.amount:,} tokens, which is more than the "
        f"{_rate(cost)}, that you may use. Waiting will not help: ask for fewer tokens of output, or "
        "send a shorter prompt."
    )


def _tightness(reading: Reading) -> tuple[int, int]:
    return reading.remaining, -reading.reset


def _rate(cost: Cost) -> str:
    noun = _plural(cost.limit, "request" if cost.meter is REQUESTS else "token")
    return f"{cost.limit:,} {noun} a {_PERIODS[cost.meter]} ({_where(cost.meter.name)})"


def _where(name: str) -> str:
    """The field of the key file, and the setting for keys without it."""
    return f"{name} of the key, else PROXY_KEY_{name.upper()}"


def _again(seconds: int) -> str:
    return f"Try again in {seconds:,} s."


def _plural(number: int | None, noun: str) -> str:
    return noun if number == 1 else noun + "s"
