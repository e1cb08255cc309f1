"""What schemas come to is remembered: the second time it is the same, and nobody else's."""

import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import ToolsTooLarge
from proxy.policy import Limits, Policy, Terms, Verdict
from proxy.policy.body import parse
from proxy.policy.compiling import MAX_WORK
from proxy.policy.schemas import MAX_REMEMBERED, Schemas

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def read(text: str) -> Any:
    """A value as the policy has it."""
    return parse(b'{"value":%b}' % text.encode(), max_structure=10_000)["value"]


def checked(policy: Policy, tools: object) -> Verdict:
    """A chat with these tools."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "tools": tools})
    return policy.check(BodyKind.CHAT, body.encode(), Terms())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps(TOOLS), id="tools"),
        pytest.param('[{"minimum":0.5,"maximum":1e16}]', id="numbers that are spelt differently"),
        pytest.param('[{"description":"\\u0001\\u007f\\u200b"}]', id="what is not printable"),
        pytest.param('{"a":[18446744073709551616]}', id="a number of more than 64 bits"),
        pytest.param("[]", id="nothing"),
        pytest.param('"text"', id="no structure at all"),
    ],
)
def test_the_second_time_is_as_the_first(text: str) -> None:
    """And as it is where nothing is remembered."""
    schemas = Schemas(64_000)
    first = schemas.measure(read(text))
    assert schemas.measure(read(text)) == first == Schemas(64_000).measure(read(text))
    assert len(schemas) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("[null]", "[1e999]", id="nothing, and what is written as nothing"),
        pytest.param("[1]", "[1.0]", id="an integer and a number with a point"),
        pytest.param("[1]", '["1"]', id="a number and its text"),
        pytest.param("[true]", '["true"]', id="a word and its text"),
        pytest.param("[0.0]", "[-0.0]", id="two zeros"),
        pytest.param("[1e16]", "[10000000000000000]", id="two spellings of a number"),
    ],
)
def test_no_value_passes_for_another(one: str, other: str) -> None:
    """Whatever was there first."""
    schemas = Schemas(64_000)
    schemas.measure(read(one))
    assert schemas.measure(read(other)) == Schemas(64_000).measure(read(other))


@pytest.mark.parametrize(
    ("chars", "remembered"),
    [pytest.param(100, 1, id="the cap"), pytest.param(101, 0, id="one over it")],
)
def test_what_is_over_the_cap_is_not_remembered(chars: int, remembered: int) -> None:
    """It is refused whatever it is."""
    schemas = Schemas(100)
    measured = schemas.measure(["x" * (chars - 4)])
    assert measured.over == (not remembered)
    assert len(schemas) == remembered


def test_a_megabyte_is_not_digested() -> None:
    """Four bytes a character are the most that there are."""
    schemas = Schemas(100)
    assert schemas.measure(["\U0001f600" * 96]).over is False
    assert schemas.measure(["\U0001f600" * 100]).over is True
    assert len(schemas) == 1


def test_few_are_remembered() -> None:
    """Whoever sends ever new ones makes others be measured again, and that is all."""
    schemas = Schemas(64_000)
    for number in range(MAX_REMEMBERED + 1):
        schemas.measure([number])
    assert len(schemas) == 1


def test_a_refusal_is_one_the_second_time_too() -> None:
    """Of what an engine would compile for minutes: that is looked at each time."""
    policy = Policy(Limits())
    pattern = {"type": "string", "pattern": "(a{1,99}){1,99}" * MAX_WORK}
    tools = [{**TOOLS[0], "function": {"name": "f", "parameters": pattern}}]
    for _ in range(2):
        with pytest.raises(ToolsTooLarge):
            checked(policy, tools)


def test_the_cost_is_the_same_the_second_time() -> None:
    """All of it."""
    policy = Policy(Limits())
    assert checked(policy, TOOLS).cost == checked(policy, TOOLS).cost
