"""What an engine tells about itself: from its metrics page to the figures that matter here.

Series by series as the engines write them; an engine that is none of these tells nothing. A figure
that the page does not have is None, never zero.

Source: vLLM v1/metrics/loggers.py, SGLang srt/metrics/collector.py, llama.cpp server-task.cpp.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from proxy.upstream.exposition import PageRefused, Sample, samples

MAX_PAGE_BYTES = 4 * 1024 * 1024

MIN_POOL_TOKENS = 1_024
MAX_POOL_TOKENS = 2**40
"""A pool outside of these is a mistake of somebody, and would admit nothing or everything."""

_MAX_COUNT = 2.0**53
_MAX_DIGITS = 16

# Ranks that work on the same requests and repeat the same figure, rather than add to it.
_SAME_REQUESTS = frozenset({b"tp_rank", b"pp_rank", b"moe_ep_rank", b"pid"})

Engine = Literal["vllm", "sglang", "llamacpp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One metrics page.

    Attributes:
        engines: Data-parallel ranks, each with a pool and a queue of its own.
        pool_tokens: What all pools hold together.
        waiting: Requests that wait for room. Those that vLLM has put off for other reasons (a
            grammar that is being compiled, a cache that is being fetched) do not.
        kv_usage: Of the fullest pool, from 0 to 1.
        preemptions_total: Requests that the engine took back because the pool was full.
        progress: Figures of which at least one moves with every step of the engine.
        started_at: When its process began, in seconds of its own clock.
    """

    engine: Engine
    engines: int = 1
    pool_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    preemptions_total: float | None = None
    progress: tuple[float | None, ...] = ()
    started_at: float | None = None

    def is_of_a_restarted(self, before: "Reading") -> bool:
        """Whether the engine was started again since that reading."""
        if self.engine != before.engine:
            return True
        if self.started_at is not None and before.started_at is not None:
            return self.started_at != before.started_at
        pairs = (
            (self.prompt_tokens_total, before.prompt_tokens_total),
            (self.generation_tokens_total, before.generation_tokens_total),
        )
        return any(now is not None and then is not None and now < then for now, then in pairs)


def read(text: bytes) -> Reading:
    """The reading of a page.

    Raises:
        PageRefused: It is not used: no series that is known here, more than any engine has, or a
            pool that cannot be.
    """
    if len(text) > MAX_PAGE_BYTES:
        raise PageRefused("too_large")
    page = _Page(samples(text, _SPELLINGS))
    for mark, reader in _READERS:
        if page.all(mark):
            reading = reader(page)
            pool = reading.pool_tokens
            if pool is not None and not MIN_POOL_TOKENS <= pool <= MAX_POOL_TOKENS:
                raise PageRefused("impossible_pool")
            return reading
    raise PageRefused("no_series")


@dataclass(frozen=True, slots=True)
class _Page:
    """The samples of a page, put together in the ways that engines mean them."""

    found: Mapping[bytes, list[Sample]]

    def all(self, name: bytes) -> list[Sample]:
        return self.found.get(name) or self.found.get(_with_underscore(name), [])

    def by_rank(self, name: bytes) -> list[float]:
        """A figure for each rank that has requests of its own, the largest that is told for it."""
        ranks: dict[frozenset[tuple[bytes, bytes]], float] = {}
        for sample in self.all(name):
            rank = frozenset(
                item for item in sample.labels.items() if item[0] not in _SAME_REQUESTS
            )
            ranks[rank] = max(sample.value, ranks.get(rank, sample.value))
        return list(ranks.values())

    def total(self, name: bytes) -> float | None:
        """Of all ranks; never infinite, which finite figures may add up to."""
        if not self.all(name):
            return None
        return min(max(sum(self.by_rank(name)), -_MAX_COUNT), _MAX_COUNT)

    def count(self, name: bytes) -> int | None:
        total = self.total(name)
        return None if total is None else int(max(total, 0.0))

    def fullest(self, name: bytes) -> float | None:
        values = [sample.value for sample in self.all(name)]
        return min(max(0.0, *values), 1.0) if values else None

    @property
    def started_at(self) -> float | None:
        return next((sample.value for sample in self.all(_STARTED)), None)


def _vllm(page: _Page) -> Reading:
    prompt = page.total(b"vllm:prompt_tokens_total")
    generation = page.total(b"vllm:generation_tokens_total")
    usage = page.fullest(b"vllm:kv_cache_usage_perc")
    return Reading(
        engine="vllm",
        engines=len(page.by_rank(b"vllm:num_requests_running")),
        pool_tokens=_vllm_pool(page.all(b"vllm:cache_config_info")),
        running=page.count(b"vllm:num_requests_running"),
        waiting=_vllm_waiting(page),
        kv_usage=usage,
        prompt_tokens_total=prompt,
        generation_tokens_total=generation,
        preemptions_total=page.total(b"vllm:num_preemptions_total"),
        # A long prompt is counted when all of it is read, but its blocks as they fill.
        progress=(prompt, generation, usage),
        started_at=page.started_at,
    )


def _vllm_waiting(page: _Page) -> int | None:
    """Those that wait for room; of an engine that tells no reasons, all."""
    name = b"vllm:num_requests_waiting_by_reason"
    for_room = [sample for sample in page.all(name) if sample.labels.get(b"reason") == b"capacity"]
    if for_room:
        return _Page({name: for_room}).count(name)
    return page.count(b"vllm:num_requests_waiting")


def _vllm_pool(config: Iterable[Sample]) -> int | None:
    """The sum of the engines' pools: each tells its own, but the blocks of all together.

    Source: vLLM v1/engine/core_client.py, _apply_ready_response.
    """
    by_engine = {sample.labels.get(b"engine", b""): sample.labels for sample in config}
    pools = [_whole(labels.get(b"kv_cache_size_tokens")) for labels in by_engine.values()]
    told = [pool for pool in pools if pool is not None]
    if told and len(told) == len(pools):
        return sum(told)
    blocks = [_whole(labels.get(b"num_gpu_blocks")) or 0 for labels in by_engine.values()]
    sizes = [_whole(labels.get(b"block_size")) or 0 for labels in by_engine.values()]
    if not blocks or not max(blocks) or not min(sizes):
        return None
    # One block of each engine never holds anything.
    return (max(blocks) - len(blocks)) * min(sizes)


def _sglang(page: _Page) -> Reading:
    prompt = page.total(b"sglang:prompt_tokens_total")
    generation = page.total(b"sglang:generation_tokens_total")
    usage = page.fullest(b"sglang:token_usage")
    pool = page.total(b"sglang:max_total_num_tokens")
    return Reading(
        engine="sglang",
        engines=len(page.by_rank(b"sglang:num_running_reqs")),
        # Zero until its scheduler has written for the first time.
        pool_tokens=int(pool) if pool else None,
        running=page.count(b"sglang:num_running_reqs"),
        waiting=page.count(b"sglang:num_queue_reqs"),
        kv_usage=usage,
        prompt_tokens_total=prompt,
        generation_tokens_total=generation,
        preemptions_total=page.total(b"sglang:num_retracted_requests_total"),
        # Its two totals move when a request has ended; the last one here moves with every step.
        progress=(prompt, generation, usage, page.total(b"sglang:realtime_tokens_total")),
        started_at=page.started_at,
    )


def _llamacpp(page: _Page) -> Reading:
    prompt = page.total(b"llamacpp:prompt_tokens_total")
    generation = page.total(b"llamacpp:tokens_predicted_total")
    return Reading(
        engine="llamacpp",
        running=page.count(b"llamacpp:requests_processing"),
        waiting=page.count(b"llamacpp:requests_deferred"),
        prompt_tokens_total=prompt,
        generation_tokens_total=generation,
        # Likewise.
        progress=(prompt, generation, page.total(b"llamacpp:n_decode_total")),
    )


# By what a page is known to be of an engine, and who reads it then.
_READERS: tuple[tuple[bytes, Callable[[_Page], Reading]], ...] = (
    (b"vllm:num_requests_running", _vllm),
    (b"sglang:num_running_reqs", _sglang),
    (b"llamacpp:requests_processing", _llamacpp),
)

_STARTED = b"process_start_time_seconds"

_NAMES = (
    *(b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:cache_config_info"),
    b"vllm:num_requests_waiting_by_reason",
    *(b"vllm:kv_cache_usage_perc", b"vllm:num_preemptions_total"),
    *(b"vllm:prompt_tokens_total", b"vllm:generation_tokens_total"),
    *(b"sglang:num_running_reqs", b"sglang:num_queue_reqs", b"sglang:max_total_num_tokens"),
    *(b"sglang:token_usage", b"sglang:num_retracted_requests_total"),
    *(b"sglang:prompt_tokens_total", b"sglang:generation_tokens_total"),
    b"sglang:realtime_tokens_total",
    *(b"llamacpp:requests_processing", b"llamacpp:requests_deferred"),
    *(b"llamacpp:prompt_tokens_total", b"llamacpp:tokens_predicted_total"),
    b"llamacpp:n_decode_total",
    _STARTED,
)


def _with_underscore(name: bytes) -> bytes:
    """How exporters on the way spell it: some allow no colon."""
    return name.replace(b":", b"_", 1)


# Both in one walk through the page.
_SPELLINGS = (*_NAMES, *map(_with_underscore, _NAMES))


def _whole(label: bytes | None) -> int | None:
    """A label that is a whole number; others are ``None`` in words."""
    if label is None or not label.isdigit() or len(label) > _MAX_DIGITS:
        return None
    return int(label)
