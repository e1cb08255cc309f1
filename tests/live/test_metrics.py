"""What real engines tell of themselves, and what the monitor and ``bulwark capacity`` make of it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from proxy.app import Clocks
from proxy.upstream import target as targets
from proxy.upstream import transport as transports
from proxy.upstream.monitor import Monitor
from proxy.upstream.readings import Reading
from proxy.upstream.states import State
from tests.harness.client import RawClient, request_bytes
from tests.harness.engines import CONTEXT, SEATS, SLOTS, Engine, Engines, only
from tests.harness.figures import Figures
from tests.harness.running import BEARER, CHAT, JSON, Running
from tests.live.conftest import Live, available

SECONDS = 60.0
POOLS = {"vllm-cpu": 1_048_576}
"""Of a gigabyte for the tiny model's KV cache, and per gigabyte more."""

ANSWER = b'{"model":"m","max_tokens":20,"messages":[{"role":"user","content":"hello"}]}'
LONG = (
    b'{"model":"m","stream":true,"max_tokens":100000,"ignore_eos":true,'
    b'"messages":[{"role":"user","content":"hello"}]}'
)


@contextlib.asynccontextmanager
async def watching(engine: Engine) -> AsyncIterator[Monitor]:
    """A monitor of the engine itself, that looks when it is told to."""
    target = targets.parse(engine.url)
    transport = transports.build(target)
    faults: list[Exception] = []
    try:
        yield Monitor(transport, target, on_fault=faults.append)
    finally:
        await transport.aclose()
    assert faults == []


async def reading_of(monitor: Monitor) -> Reading:
    """What it reads now."""
    monitor._next_page = 0.0  # of llama.cpp not every second
    await monitor.look()
    assert monitor.state is State.READY
    assert monitor.reading is not None, monitor.ignored
    return monitor.reading


async def test_a_page_is_read(engine: Engine, figures: Figures) -> None:
    """Whose it is, its pool, and that its counters move with what is asked of it."""
    await engine.idle()
    async with watching(engine) as monitor:
        before = await reading_of(monitor)
        assert before.engine == ("llamacpp" if engine.name == "llamacpp" else "vllm")
        assert (before.running, before.waiting, before.engines) == (0, 0, 1)
        if engine.name == "vllm-cpu":
            assert before.pool_tokens == POOLS[engine.name]
            assert before.kv_usage == 0.0
            assert before.preemptions_total == 0.0
        if engine.name == "llamacpp":
            assert (before.pool_tokens, before.kv_usage) == (None, None)
        assert (await engine.ask("POST", CHAT, ANSWER)).status == 200
        await engine.idle()
        after = await reading_of(monitor)
        if engine.name != "vllm-stub":  # whose core counts nothing
            assert after.prompt_tokens_total is not None
            assert after.prompt_tokens_total > (before.prompt_tokens_total or 0.0)
            assert after.generation_tokens_total == (before.generation_tokens_total or 0.0) + 20
            assert after.progress != before.progress
        assert not after.is_of_a_restarted(before)
        figures.add("Metrics", engine.name, pages=2, pool_tokens=after.pool_tokens or 0)


async def test_a_request_that_runs_is_seen_to(engine: Engine) -> None:
    """And its progress, look after look, while it generates."""
    await engine.idle()
    async with watching(engine) as monitor:
        async with await RawClient.open("127.0.0.1", engine.port, timeout=SECONDS) as client:
            await client.send(request_bytes("POST", CHAT, JSON, LONG))
            await client.read_head()
            await engine.until_load(1, 0)
            first = await reading_of(monitor)
            assert first.running == 1
            async with asyncio.timeout(SECONDS):
                while (await reading_of(monitor)).progress == first.progress:
                    pass
        await engine.idle()
        assert (await reading_of(monitor)).running == 0


async def until(running: Running, state: str, times: int = 1) -> None:
    """Returns once the upstream was so often said to be in this state."""
    await running.log.until(
        lambda: running.log.text.count(f'"event":"upstream","state":"{state}"') >= times,
        within=SECONDS,
    )


async def told(running: Running, path: str = "/readyz") -> Any:
    """What the admin listener says."""
    return (await running.ask_admin("GET", path)).json()


async def another_look(running: Running) -> None:
    """Returns once its monitor has looked once more from the beginning."""
    asked = running.upstream.requests
    looks = sum(request.target == b"/health" for request in asked)
    # When it begins with the one after that, it has ended that one.
    while sum(request.target == b"/health" for request in asked) < looks + 2:
        await running.upstream.request(len(asked), within=SECONDS)


@only("vllm-cpu")
async def test_the_budget_is_nine_tenths_of_the_pool(live: Live, engine: Engine) -> None:
    """From the first look on, as /readyz tells."""
    running = await live(monitor_transport=None)
    pool = POOLS[engine.name]
    assert (await told(running))["kv_budget"] == {
        "state": "on",
        "reason": "",
        "limit_tokens": pool * 9 // 10,
        "reserved_tokens": 0,
        "pool_tokens": pool,
    }


@only("llamacpp")
async def test_an_engine_without_a_pool_has_no_budget(live: Live, engine: Engine) -> None:
    """And it is said why."""
    running = await live(monitor_transport=None)
    readiness = await told(running)
    assert readiness["status"] == "ready"
    assert readiness["kv_budget"] == {"state": "off", "reason": "no_pool_shown"}


@only("vllm-cpu")
async def test_a_queue_in_the_engine_saturates_it(live: Live, engine: Engine) -> None:
    """Of requests that somebody else sent it; it is ready again once they are gone."""
    await engine.idle()
    running = await live(monitor_transport=None)
    await until(running, "ready")
    async with contextlib.AsyncExitStack() as others:
        for _ in range(SEATS + 2):
            client = await RawClient.open("127.0.0.1", engine.port, timeout=SECONDS)
            await others.enter_async_context(client)
            await client.send(request_bytes("POST", CHAT, JSON, LONG))
        await engine.until_load(SEATS, 2)
        await until(running, "saturated")
        upstream = (await told(running, "/status"))["upstream"]
        assert (upstream["running"], upstream["waiting"]) == (SEATS, 2)
        assert (await running.ask_admin("GET", "/readyz")).status == 200
    await until(running, "ready", times=2)
    await engine.idle()


async def test_a_restart_and_a_larger_cache(live: Live, own_engine: Engine) -> None:
    """Starting while it is gone and loads; then ready, with the pool that it has now."""
    engine = own_engine
    running = await live(behind=engine, monitor_transport=None, upstream_url=engine.url)
    await until(running, "ready")
    assert (await told(running))["kv_budget"]["pool_tokens"] == POOLS["vllm-cpu"]
    engine.kill()
    await until(running, "starting")
    assert (await told(running))["upstream"]["reason"] == "refused"
    refused = await running.chat(ANSWER)
    assert (refused.status, refused.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert refused.header(b"retry-after") is not None
    # What it held stays in force until it shows another.
    assert (await told(running))["kv_budget"]["pool_tokens"] == POOLS["vllm-cpu"]
    engine.environment = {"VLLM_CPU_KVCACHE_SPACE": "2"}
    engine.launch()
    await asyncio.to_thread(engine.wait)
    await until(running, "ready", times=2)
    assert (await told(running))["kv_budget"]["pool_tokens"] == 2 * POOLS["vllm-cpu"]
    assert (await told(running, "/status"))["upstream"]["restarts"] == 1
    assert (await running.chat(ANSWER)).status == 200


async def test_an_engine_that_hangs(live: Live, own_engine: Engine) -> None:
    """Stopped in its tracks it is down, and ready again when it goes on."""
    engine = own_engine
    running = await live(behind=engine, monitor_transport=None, upstream_url=engine.url)
    await until(running, "ready")
    engine.signal(signal.SIGSTOP)
    try:
        await until(running, "down")
        assert (await told(running))["upstream"] == {"state": "down", "reason": "silent"}
    finally:
        engine.signal(signal.SIGCONT)
    await until(running, "ready", times=2)


def core_of(engine: Engine) -> int:
    """The process in which vLLM's requests run; another one answers for it."""
    # Its group is the engine's, which begins with a process of its own.
    assert engine._process is not None
    group = engine._process.pid
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
            if int(fields.split()[2]) == group and "EngineCor" in name:
                return int(stat.parent.name)
    raise AssertionError(f"{engine.name} has no core")


async def test_a_core_that_hangs(live: Live, own_engine: Engine) -> None:
    """Its server goes on to say 200, and what runs; a minute without a token tells it."""
    engine = own_engine
    ahead = 1000.0
    # It goes on by itself, too: a page that came late is asked for again after a second or more.
    clocks = Clocks(monotonic=lambda: ahead + time.monotonic())
    running = await live(behind=engine, monitor_transport=None, clocks=clocks)
    await until(running, "ready")
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, LONG))
    await client.read_head()
    await engine.until_load(1, 0)
    core = core_of(engine)
    os.kill(core, signal.SIGSTOP)
    try:
        assert (await engine.ask("GET", "/health")).status == 200
        # The last that it has said is read by then.
        await another_look(running)
        ahead += 61
        await until(running, "down")
        assert (await told(running))["upstream"] == {"state": "down", "reason": "stalled"}
    finally:
        os.kill(core, signal.SIGCONT)
    await until(running, "ready", times=2)
    client.close()
    await engine.idle()


async def capacity(*arguments: str) -> tuple[int, str, str]:
    """``bulwark capacity`` in a process of its own."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PROXY_")
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "capacity", *arguments),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        said, complained = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode(), complained.decode()


@only("vllm-cpu", "llamacpp")
async def test_capacity(engine: Engine) -> None:
    """What it holds, and that fewer should be let in than by default."""
    seats = SLOTS if engine.name == "llamacpp" else SEATS
    arguments = [] if engine.name == "llamacpp" else ["--max-num-seqs", str(seats)]
    status, said, _ = await capacity("--upstream", engine.url, "--json", *arguments)
    found = json.loads(said)
    assert (status, found["engine"]) == (0, "llamacpp" if engine.name == "llamacpp" else "vllm")
    assert found["pool_tokens"] == POOLS.get(engine.name)
    assert found["context_tokens"] == (CONTEXT if engine.name == "vllm-cpu" else CONTEXT // SLOTS)
    assert (found["max_num_seqs"], found["set"]) == (seats, {"PROXY_MAX_INFLIGHT": str(seats)})
    status, said, _ = await capacity("--upstream", engine.url, *arguments)
    assert status == 0
    assert said.endswith(f"PROXY_MAX_INFLIGHT={seats}\n")


async def test_capacity_of_an_engine_that_keeps_no_figures(engines: Engines) -> None:
    """It has the page and nothing on it: status 1, and why."""
    available("vllm-stub")
    engine = engines.new("vllm-stub", "--disable-log-stats")
    engine.start()
    status, said, complained = await capacity("--upstream", engine.url)
    assert (status, said) == (1, "")
    assert "--disable-log-stats" in complained
    engine.end()
