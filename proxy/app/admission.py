"""What is let through at once, put together: places, room in the engine's cache, what keys have left."""

from collections.abc import Callable, Sequence

from proxy.admission import rates
from proxy.admission.buffers import BufferBudget
from proxy.admission.history import History
from proxy.admission.kv import TokenBudget
from proxy.admission.rates import RateLimits
from proxy.admission.slots import Slots
from proxy.app import history
from proxy.app.clocks import Clocks
from proxy.auth.keys import KeyStore
from proxy.config import Settings
from proxy.telemetry.log import Log, LogLevel
from proxy.telemetry.metrics import Metrics
from proxy.upstream.readings import Reading


def token_budget(settings: Settings) -> TokenBudget | None:
    """The bound on tokens at the upstream; None where there is to be none."""
    if settings.kv_budget_tokens == "off":
        return None
    fixed = settings.kv_budget_tokens
    return TokenBudget(None if fixed == "auto" else fixed)


def slots(settings: Settings, clocks: Clocks, *, keys: int, budget: TokenBudget | None) -> Slots:
    """The places at the upstream.

    Args:
        settings: What the operator decided.
        clocks: What time it is.
        keys: How many there are that may be used: one alone may have all places.
        budget: Of tokens; None for requests that cost none.
    """
    return Slots(
        max_inflight=settings.max_inflight,
        key_max_inflight=key_share(settings, keys),
        queue_size=settings.queue_size,
        queue_timeout_seconds=settings.queue_timeout_seconds,
        clock=clocks.monotonic,
        budget=budget,
    )


def key_share(settings: Settings, keys: int) -> int:
    """How many places one key may hold."""
    if settings.key_max_inflight:
        return settings.key_max_inflight
    return (
        settings.max_inflight
        if _is_alone(settings, keys)
        else max(1, settings.max_inflight * 3 // 4)
    )


def sharing(
    settings: Settings, keys: KeyStore, places: Sequence[Slots], memory: BufferBudget
) -> Callable[[], None]:
    """What shares all of it out again, by the keys that may be used then."""

    def share_out() -> None:
        usable = keys.usable
        share = key_share(settings, usable)
        for each in places:
            each.share_out(share)
        share_out_bytes(settings, usable, memory)

    return share_out


def _is_alone(settings: Settings, keys: int) -> bool:
    # Strangers are told apart by their addresses, so that there are always several.
    return keys == 1 and not settings.allow_anonymous


def buffers(settings: Settings, keys: int) -> BufferBudget:
    """The bytes of bodies that may be held."""
    budget = BufferBudget(settings.max_buffered_bytes)
    share_out_bytes(settings, keys, budget)
    return budget


def share_out_bytes(settings: Settings, keys: int, budget: BufferBudget) -> None:
    """As with places, and one body always: three quarters where there are several to share them.

    A stranger has half of what all of them have, or one of them would be enough to have it all.
    """
    total, body = settings.max_buffered_bytes, settings.max_body_bytes
    share = max(body, total * 3 // 4)
    strangers = share if keys else total
    budget.share_out(
        total if _is_alone(settings, keys) else share, strangers, max(body, strangers // 2)
    )


def rate_limits(
    settings: Settings,
    clocks: Clocks,
    log: Log,
    metrics: Metrics,
    *,
    kept: history.Opened | None,
    keeper: History | None,
) -> RateLimits:
    """What keys have left, here or in Redis.

    Args:
        settings: What the operator decided.
        clocks: What time it is.
        log: Told when Redis goes and comes.
        metrics: Likewise.
        kept: What was used before; None where nobody knows.
        keeper: What keeps what is used from now on; None where nothing does.
    """

    def changed(up: bool, why: str) -> None:
        level: LogLevel = "info" if up else "warning"
        event = "redis_back" if up else "redis_away"
        about = {} if up else {"why": why, "until_then": settings.redis_failure}
        log.server(event, level=level, **about)

    url = settings.redis_url
    return rates.build(
        # A day of the file is one of the world's, whenever this machine was started.
        clock=history.wall(clocks) if kept else clocks.monotonic,
        redis_url=None if url is None else url.get_secret_value(),
        closed=settings.redis_failure == "closed",
        on_change=changed,
        on_failure=metrics.redis_failed,
        seeds=kept.seeds if kept else None,
        on_used=keeper.used if keeper else None,
    )


def heeding(budget: TokenBudget | None, places: Slots, clocks: Clocks) -> Callable[[Reading], None]:
    """What a reading of the engine's changes: the budget, and with it whose turn it is."""

    def heed(reading: Reading) -> None:
        if budget is None:
            return
        if reading.pool_tokens is not None:
            budget.set_pool(reading.pool_tokens)
        if reading.waiting is not None or reading.kv_usage is not None:
            load = (reading.waiting or 0, reading.kv_usage or 0)
            budget.note_load(*load, clocks.monotonic(), reading.running)
        places.wake()

    return heed
