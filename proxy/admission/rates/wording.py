"""What clients are told of their limits: the fields of an answer's head, and the refusals.

Source of the fields: the OpenAI API reference, "Rate limits in headers". Limits and what remains are
whole numbers; when all of it is there again is a duration such as Go prints them, ``6m0s``, ``1s``
or ``120ms``, and clients parse them by these units.
"""

from functools import lru_cache

from proxy.admission.rates.ledger import Ask, Decision
from proxy.admission.rates.window import (
    DAILY_TOKENS,
    REQUESTS,
    TICKS_PER_SECOND,
    TOKENS,
    Meter,
    whole_seconds,
)
from proxy.errors import RateLimitExceeded, RequestExceedsRateLimit

_PATIENCE_SECONDS = 120
"""The longest that a program should wait for by itself; also the longest that OpenAI's SDKs do."""

_PERIODS = {REQUESTS: "minute", TOKENS: "minute", DAILY_TOKENS: "day"}

_REQUESTS, _TOKENS = (
    tuple(f"x-ratelimit-{what}-{noun}".encode() for what in ("limit", "remaining", "reset"))
    for noun in ("requests", "tokens")
)


def fields(ask: Ask, decision: Decision) -> list[tuple[bytes, bytes]]:
    """The ``x-ratelimit-*`` fields of what was asked. Of two limits on tokens, the tighter one's."""
    readings = decision.readings
    if not readings:
        return []
    tighter, (_, remaining, reset) = 0, readings[0]
    if len(readings) > 1:
        _, other, other_reset = readings[1]
        if other < remaining or (other == remaining and other_reset > reset):
            tighter, remaining, reset = 1, other, other_reset
    limit, remaining_name, reset_name = _REQUESTS if ask.meters[0] is REQUESTS else _TOKENS
    return [
        (limit, _number(ask.limits[tighter])),
        (remaining_name, b"%d" % remaining),
        (reset_name, duration(reset)),
    ]


@lru_cache(maxsize=256)
def _number(limit: int) -> bytes:
    """Keys are many, and their limits few."""
    return b"%d" % limit


# All accounts that have used anything of a window have the same ticks to wait for its end.
@lru_cache(maxsize=4096)
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


def exceeded(ask: Ask, decision: Decision, output_tokens: int = 0) -> RateLimitExceeded:
    """The refusal of what would pass later.

    Args:
        ask: What was asked.
        decision: What has become of it.
        output_tokens: How much of it need not have been asked for.
    """
    at = decision.refused_by
    assert at is not None  # noqa: S101 - for mypy
    seconds = whole_seconds(decision.wait)
    if at == len(ask.meters):
        said = (
            f"You may have {ask.concurrency:,} {_plural(ask.concurrency, 'request')} at once "
            f"({_where('concurrency')}), and that many are under way. Try again when one has ended."
        )
    elif ask.meters[at] is REQUESTS:
        rate = _rate(ask.meters[at], ask.limits[at])
        said = f"You may make {rate}, and have made them. {_again(seconds)}"
    else:
        said = (
            f"You may use {_rate(ask.meters[at], ask.limits[at])}: this request may use "
            f"{ask.amount:,}, and {decision.readings[at].remaining:,} are left. {_again(seconds)}"
            f"{_less(ask.amount, output_tokens, decision)}"
        )
    headers = fields(ask, decision)
    if seconds > _PATIENCE_SECONDS:
        # Anthropic's SDK would sleep until tomorrow without a word; OpenAI's asks again at once.
        headers.append((b"x-should-retry", b"false"))
    return RateLimitExceeded(said, retry_after_seconds=seconds, headers=headers)


def _less(tokens: int, output_tokens: int, decision: Decision) -> str:
    """What would fit at once, if the prompt and some output do."""
    left = min(reading.remaining for reading in decision.readings)
    output = left - (tokens - output_tokens)
    if not 0 < output < output_tokens:
        return ""
    return (
        f" Or ask for less: with at most {output:,} {_plural(output, 'token')} of output "
        "(max_tokens, over all choices) it fits what is left."
    )


def too_large(meter: Meter, limit: int, tokens: int) -> RequestExceedsRateLimit:
    """The refusal of what would never pass."""
    return RequestExceedsRateLimit(
        f"This request may use {tokens:,} tokens, which is more than the {_rate(meter, limit)} that "
        "you may use. Waiting will not help: ask for fewer tokens of output, or send a shorter "
        "prompt."
    )


def _rate(meter: Meter, limit: int) -> str:
    noun = _plural(limit, "request" if meter is REQUESTS else "token")
    return f"{limit:,} {noun} a {_PERIODS[meter]} ({_where(meter.name)})"


def _where(name: str) -> str:
    """The field of the key file, and the setting for keys without it."""
    return f"{name} of the key, else PROXY_KEY_{name.upper()}"


def _again(seconds: int) -> str:
    return f"Try again in {duration(seconds * TICKS_PER_SECOND).decode()}."


def _plural(number: int | None, noun: str) -> str:
    return noun if number == 1 else noun + "s"
