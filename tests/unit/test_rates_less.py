"""A request that would pass at once if it asked for less output: its client is told for how much."""

import re

import pytest

from proxy.admission.rates import build
from proxy.errors import RateLimitExceeded
from proxy.principal import Allowance


@pytest.mark.parametrize("seconds", [0, 1, 30, 59, 75, 119])
@pytest.mark.parametrize(
    "of_key",
    [
        pytest.param({"tokens_per_minute": 100}, id="a minute's"),
        pytest.param({"tokens_per_day": 100}, id="a day's"),
        pytest.param({"tokens_per_minute": 110, "tokens_per_day": 100}, id="the tighter of two"),
    ],
)
async def test_a_request_of_which_less_fits(seconds: float, of_key: dict[str, int]) -> None:
    """Its client is told how much passes now; one more does not, and so much does."""
    now = [864_000.0]  # a turn of minutes and of days
    rates = build(clock=lambda: now[0])
    allowance = Allowance(**of_key)  # type: ignore[arg-type]
    prompt, output = 4, 96
    await rates.reserve("k", allowance, 80)
    now[0] += seconds
    with pytest.raises(RateLimitExceeded) as refused:
        await rates.reserve("k", allowance, prompt + output, output)
    found = re.search("with at most ([0-9]+) tokens? of output", refused.value.message)
    assert found is not None
    fits = int(found[1])
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", allowance, prompt + fits + 1, fits + 1)
    await rates.reserve("k", allowance, prompt + fits, fits)


@pytest.mark.parametrize(
    ("prompt", "output", "less"),
    [
        pytest.param(18, 80, " 2 tokens of output", id="two tokens are left for it"),
        pytest.param(19, 80, " 1 token of output", id="one is"),
        pytest.param(20, 80, None, id="a prompt that has all that is left"),
        pytest.param(90, 5, None, id="a longer one"),
        pytest.param(100, 0, None, id="nothing is generated"),
    ],
)
async def test_less_is_offered_where_the_prompt_fits(
    prompt: int, output: int, less: str | None
) -> None:
    """Twenty are left. When to come back is the same in any case."""
    rates = build(clock=lambda: 0.0)
    allowance = Allowance(tokens_per_minute=100)
    await rates.reserve("k", allowance, 80)
    with pytest.raises(RateLimitExceeded) as refused:
        await rates.reserve("k", allowance, prompt + output, output)
    assert ("Or ask for less" in refused.value.message) == (less is not None)
    assert (less or "Try again") in refused.value.message
    with pytest.raises(RateLimitExceeded) as plain:
        await rates.reserve("k", allowance, prompt + output)
    assert plain.value.message in refused.value.message
    assert plain.value.response_headers() == refused.value.response_headers()
