"""What is read from its owner when somebody looks, rather than counted while it happens."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge


@dataclass(frozen=True, slots=True)
class Gauges:
    """How each is read."""

    slots_in_use: Callable[[], float]
    queued: Callable[[], float]
    buffered_bytes: Callable[[], float]
    kv_budget_tokens: Callable[[], float]
    kv_reserved_tokens: Callable[[], float]
    keys: Callable[[], float]
    keys_file_bad: Callable[[], float]
    redis_away: Callable[[], float]
    usage_db_bad: Callable[[], float]


def watch(gauges: Gauges, registry: CollectorRegistry) -> None:
    """Registers a gauge for each."""
    for name, description, read in (
        ("bulwark_slots_in_use", "Requests at the upstream.", gauges.slots_in_use),
        ("bulwark_queue_length", "Requests that wait for a slot.", gauges.queued),
        ("bulwark_buffered_bytes", "Bytes of request bodies held.", gauges.buffered_bytes),
        (
            "bulwark_kv_budget_tokens",
            "Tokens that all requests at the upstream may need together; 0 is no bound.",
            gauges.kv_budget_tokens,
        ),
        (
            "bulwark_kv_reserved_tokens",
            "Tokens reserved by requests at the upstream.",
            gauges.kv_reserved_tokens,
        ),
        ("bulwark_keys", "Keys known, expired and disabled ones among them.", gauges.keys),
        (
            "bulwark_keys_file_bad",
            "1 while the key file cannot be used, so that its last good state is in force, or has no key.",
            gauges.keys_file_bad,
        ),
        (
            "bulwark_redis_away",
            "1 while limits are not counted in Redis although they should.",
            gauges.redis_away,
        ),
        (
            "bulwark_usage_db_bad",
            "1 while what keys use cannot be written to the usage database; it is kept until it can.",
            gauges.usage_db_bad,
        ),
    ):
        Gauge(name, description, registry=registry).set_function(read)
