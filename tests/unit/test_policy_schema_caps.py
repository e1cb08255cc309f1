"""The cap on schemas, which are no prompt, and the one on sampling parameters."""

from collections.abc import Callable
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import ParametersTooLarge, ToolsTooLarge
from proxy.policy.lengths import compact_chars
from tests.harness.judging import INVISIBLE, chat, check, user


def schema_of(chars: int) -> list[dict[str, str]]:
    """Tools of so many characters of compact JSON: [{"a":"…"}]."""
    return [{"a": "x" * (chars - 10)}]


@pytest.mark.parametrize("name", ["tools", "functions", "response_format", "structured_outputs"])
def test_schemas_have_a_cap_of_their_own(name: str) -> None:
    """64,000 characters pass and 64,001 do not; none of them count as prompt."""
    verdict = check(BodyKind.CHAT, chat(user("hi"), **{name: schema_of(64_000)}))
    assert verdict.cost.schema_chars == 64_000
    assert verdict.cost.prompt_chars == 2
    with pytest.raises(ToolsTooLarge, match=r"64,001.*64,000.*PROXY_MAX_SCHEMA_CHARS"):
        check(BodyKind.CHAT, chat(**{name: schema_of(64_001)}))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(BodyKind.RESPONSES, "text", id="of a response's text"),
        pytest.param(BodyKind.MESSAGES, "output_config", id="of a message's output"),
        pytest.param(BodyKind.COUNT_TOKENS, "output_config", id="of what is only counted"),
    ],
)
def test_schemas_count_together_and_so_does_a_format(kind: BodyKind, name: str) -> None:
    """It is one of them, and what stands beside it is not."""
    body = {"functions": schema_of(32_000), name: {"format": schema_of(32_000)[0], "effort": "low"}}
    cost = check(kind, body).cost
    assert cost.schema_chars == 63_998
    assert cost.prompt_chars == len('{"effort": "low"}')
    body[name] = {"format": {"a": "x" * 32_000}}
    with pytest.raises(ToolsTooLarge):
        check(kind, body)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pytest.param(
            BodyKind.CHAT,
            lambda tool: chat({"role": "developer", "content": "hi", "tools": [tool]}),
            id="in a developer's message",
        ),
        pytest.param(
            BodyKind.MESSAGES,
            lambda tool: {
                "messages": [
                    user("hi"),
                    {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]},
                ]
            },
            id="in a block that adds it",
        ),
    ],
)
def test_tools_in_the_middle_of_a_conversation_are_schemas(
    kind: BodyKind, place: Callable[[object], dict[str, Any]]
) -> None:
    """A template indents them as it does the others: 6,000 ones in brackets became 18 times that."""
    cost = check(kind, place({"a": "x" * 50_000})).cost
    assert (cost.prompt_chars < 20, cost.schema_chars) == (True, 50_010)
    deep: Any = [1] * 6_000
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ToolsTooLarge):
        check(kind, place({"a": deep}))
    with pytest.raises(ToolsTooLarge, match="64 levels"):
        check(kind, place({"a": nested(70)}))


def nested(levels: int) -> list[Any]:
    """Brackets in brackets."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_small_tools_count_what_a_server_adds_to_them() -> None:
    """A custom tool without a description becomes 300 characters in vLLM, 460 of them indented."""
    tool = {"type": "custom", "name": "x"}
    one = check(BodyKind.RESPONSES, {"input": "hi", "tools": [tool]}).cost.schema_chars
    assert 4 * one >= 460
    with pytest.raises(ToolsTooLarge):
        check(BodyKind.RESPONSES, {"input": "hi", "tools": [tool] * 600})
    usual = [{"type": "function", "function": {"name": "f", "description": "x" * 200}}] * 100
    assert check(BodyKind.CHAT, chat(tools=usual)).cost.schema_chars == compact_chars(usual)


def test_a_schema_may_be_64_levels_deep() -> None:
    """65 are refused, whatever the body's own depth limit allows."""

    def deep(levels: int) -> dict[str, Any]:
        schema: Any = "x"
        for _ in range(levels):
            schema = {"a": schema}
        return chat(response_format=schema)

    assert check(BodyKind.CHAT, deep(64)).cost.schema_chars > 0
    with pytest.raises(ToolsTooLarge, match="64 levels"):
        check(BodyKind.CHAT, deep(65))


@pytest.mark.parametrize("name", ["stop", "stop_sequences", "logit_bias", "metadata", "bad_words"])
def test_sampling_parameters_are_bounded_together(name: str) -> None:
    """16,000 characters of compact JSON pass and 16,001 do not."""
    check(BodyKind.CHAT, chat(**{name: schema_of(16_000)}))
    with pytest.raises(ParametersTooLarge, match=r"16,001.*16,000"):
        check(BodyKind.CHAT, chat(**{name: schema_of(16_001)}))
    half = schema_of(8_001)
    with pytest.raises(ParametersTooLarge):
        check(BodyKind.CHAT, chat(**{name: half, "seed": schema_of(8_000)}))


def test_tools_that_indentation_multiplies_count_a_quarter_of_that() -> None:
    """Llama 3's template made 2.4 million characters of 20 KB inside 55 brackets."""
    nested: object = [1] * 10_000
    for _ in range(55):
        nested = [nested]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": nested}}}]

    with pytest.raises(ToolsTooLarge):
        check(BodyKind.CHAT, chat(user("hi"), tools=tools))


@pytest.mark.parametrize(
    ("parameters", "written"),
    [
        pytest.param(
            {"properties": {f"{index:03}": 1 for index in range(1_000)}},
            1_000 * len("\n<parameter>\n<name>000</name>\n</parameter>"),
            id="Qwen3-Coder's template makes a block of each parameter",
        ),
        pytest.param(
            {"description": INVISIBLE * 5_000}, 50_000, id="Python prints an invisible one as ten"
        ),
    ],
)
def test_tools_that_a_template_multiplies_count_a_quarter_of_that(
    parameters: object, written: int
) -> None:
    """Whatever it is that makes more than four times their size of them."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    counted = check(BodyKind.CHAT, chat(user("hi"), tools=tools)).cost.schema_chars
    assert compact_chars(tools) < written / 4 <= counted
    assert counted < 1.1 * written / 4 + 100


def test_tools_as_agents_send_them_count_as_compact_json() -> None:
    """Four times their size is more than indentation makes of real ones."""
    city = {"type": "string", "description": "The city and state, such as Paris, France"}
    units = {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The unit"}
    parameters = {
        "type": "object",
        "properties": {"where": {"type": "array", "items": city}, "units": units},
        "required": ["where"],
    }
    function = {"name": "get_weather", "description": "The weather now", "parameters": parameters}
    tools = [{"type": "function", "function": function}] * 20

    verdict = check(BodyKind.CHAT, chat(user("hi"), tools=tools))

    assert verdict.cost.schema_chars == compact_chars(tools)
