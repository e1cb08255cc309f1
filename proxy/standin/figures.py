"""What the stand-in tells of itself: the series of vLLM's that somebody acts on, by its own library."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from proxy.standin.dialect import DEFAULT_MODEL

POOL_TOKENS = 1_048_576
_BLOCK_TOKENS = 16
_BUCKETS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))

_LABELS = {"engine": "0", "model_name": DEFAULT_MODEL}
_CONFIG = {
    "block_size": str(_BLOCK_TOKENS),
    "engine": "0",
    "kv_cache_size_tokens": str(POOL_TOKENS),
    "num_gpu_blocks": str(POOL_TOKENS // _BLOCK_TOKENS),
}


class Figures:
    """Counts what the stand-in does. Nothing ever waits in it, and its cache is never full."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Gauge("vllm:cache_config_info", "CacheConfig", _CONFIG, registry=registry).labels(
            **_CONFIG
        ).set(1)

        def gauge(name: str) -> Gauge:
            return Gauge(f"vllm:{name}", name, _LABELS, registry=registry).labels(**_LABELS)

        def counter(name: str) -> Counter:
            return Counter(f"vllm:{name}", name, _LABELS, registry=registry).labels(**_LABELS)

        def histogram(name: str) -> Histogram:
            made = Histogram(f"vllm:{name}", name, _LABELS, registry=registry, buckets=_BUCKETS)
            return made.labels(**_LABELS)

        gauge("num_requests_waiting").set(0)
        counter("num_preemptions")
        self._running = gauge("num_requests_running")
        self._usage = gauge("kv_cache_usage_perc")
        self._prompt = counter("prompt_tokens")
        self._generated = counter("generation_tokens")
        self._prompts = histogram("request_prompt_tokens")
        self._generations = histogram("request_generation_tokens")

    @contextmanager
    def request(self, prompt_tokens: int, completion_tokens: int) -> Iterator[None]:
        """A request runs during the block."""
        used = (prompt_tokens + completion_tokens) / POOL_TOKENS
        self._running.inc()
        self._usage.inc(used)
        self._prompt.inc(prompt_tokens)
        try:
            yield
        finally:
            self._running.dec()
            self._usage.dec(used)
            self._prompts.observe(prompt_tokens)
            self._generations.observe(completion_tokens)

    def word(self) -> None:
        """One was said."""
        self._generated.inc()

    def page(self) -> bytes:
        """The metrics page."""
        return generate_latest(self._registry)
