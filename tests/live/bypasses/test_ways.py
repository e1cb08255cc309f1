"""Every way around a cap that is known, tried twice on real engines: past the proxy and through it."""

import pytest

from tests.harness.engines import Engine, only
from tests.harness.figures import Figures
from tests.live.bypasses.bypass import TITLE, Bypass, directly, through
from tests.live.bypasses.llamacpp import LLAMA
from tests.live.bypasses.vllm import VLLM
from tests.live.conftest import Live


@only("vllm-cpu")
@pytest.mark.parametrize("bypass", VLLM)
async def test_no_way_into_vllm_leads_around_the_proxy(
    live: Live, engine: Engine, bypass: Bypass, figures: Figures, request: pytest.FixtureRequest
) -> None:
    """It works directly, or the engine has closed it; through the proxy it is refused or bounded."""
    await _both_ways(live, engine, bypass, figures, request)


@only("llamacpp")
@pytest.mark.parametrize("bypass", LLAMA)
async def test_no_way_into_llama_cpp_leads_around_the_proxy(
    live: Live, engine: Engine, bypass: Bypass, figures: Figures, request: pytest.FixtureRequest
) -> None:
    """It works directly; through the proxy it is refused or bounded."""
    await _both_ways(live, engine, bypass, figures, request)


async def _both_ways(
    live: Live, engine: Engine, bypass: Bypass, figures: Figures, request: pytest.FixtureRequest
) -> None:
    name = next(iter(request.node.callspec._idlist), "").removeprefix(engine.name + "-")
    direct = await directly(engine, bypass)
    outcome = await through(live, bypass)
    figures.add(TITLE, f"{engine.name}: {name}", direct=direct, through_the_proxy=outcome)
