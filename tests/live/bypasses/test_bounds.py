"""The bound that the proxy puts in is one that every engine honours."""

from typing import Any

import pytest

from tests.harness.engines import Engine
from tests.harness.figures import Figures
from tests.harness.running import BEARER, CHAT, JSON
from tests.live.bypasses.bypass import (
    COMPLETIONS,
    MESSAGES,
    OUTPUT_CAP,
    RESPONSES,
    Bypass,
    used,
)
from tests.live.conftest import Live

BOUNDED = [
    pytest.param(CHAT, {}, "choices", id="chat"),
    pytest.param(CHAT, {"max_completion_tokens": 500}, "choices", id="chat, the newer name"),
    pytest.param(COMPLETIONS, {"max_tokens": 500}, "choices", id="completions"),
    pytest.param(RESPONSES, {}, "output", id="responses"),
    pytest.param(RESPONSES, {"max_output_tokens": 500}, "output", id="responses, clamped"),
    pytest.param(MESSAGES, {"max_tokens": 500}, "content", id="messages"),
]


@pytest.mark.parametrize(("path", "fields", "member"), BOUNDED)
async def test_every_engine_honours_the_bound_that_is_put_in(
    live: Live, engine: Engine, figures: Figures, *, path: str, fields: dict[str, Any], member: str
) -> None:
    """It generates exactly the cap, and says that the cap was why it ended."""
    running = await live(max_output_tokens=OUTPUT_CAP)
    greedy: dict[str, Any] = {"ignore_eos": True, "temperature": 0, **fields}
    response = await running.ask(
        "POST", path, {**BEARER, **JSON}, Bypass(greedy, "", None, path).body
    )
    assert response.status == 200, response.body
    answer = response.json()
    assert answer[member]
    assert used(response)[1] == OUTPUT_CAP
    figures.add("Bounds honoured", path, **{engine.name: used(response)[1]})
