"""What engines compile of schemas is bounded; what people write passes."""

import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import FieldRefused, ToolsTooLarge
from proxy.policy import Limits, Policy, Terms, Verdict
from proxy.policy import compiling as bounds

CHAT, RESPONSES, MESSAGES = BodyKind.CHAT, BodyKind.RESPONSES, BodyKind.MESSAGES
COMPLETIONS = BodyKind.COMPLETIONS
ALL_FIELDS = frozenset({"structural_tag"})


def check(body: dict[str, Any], kind: BodyKind = CHAT, **limits: Any) -> Verdict:
    """The policy's verdict."""
    policy = Policy(Limits(max_prompt_chars=100_000, **limits))
    return policy.check(kind, json.dumps(body).encode(), Terms())


def response_format(schema: object) -> dict[str, Any]:
    """A chat with an output schema."""
    wrapped = {"name": "s", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wrapped}, "max_tokens": 1}


def tool(**properties: object) -> dict[str, Any]:
    """A tool with these properties."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def a_pattern(pattern: str) -> dict[str, str]:
    """A schema of it."""
    return {"type": "string", "pattern": pattern}


PLACES = [
    pytest.param(CHAT, lambda p: response_format(a_pattern(p)), id="response_format"),
    pytest.param(
        CHAT,
        lambda p: {"response_format": {"type": "json_object", "schema": a_pattern(p)}},
        id="the schema of a json_object, which llama.cpp takes",
    ),
    pytest.param(CHAT, lambda p: {"tools": [tool(x=a_pattern(p))]}, id="a tool"),
    pytest.param(
        CHAT, lambda p: {"functions": [{"parameters": {"items": [a_pattern(p)]}}]}, id="a function"
    ),
    pytest.param(
        CHAT,
        lambda p: {"messages": [{"role": "system", "tools": [tool(x=a_pattern(p))]}]},
        id="a tool inside of a message",
    ),
    pytest.param(CHAT, lambda p: {"structured_outputs": {"regex": p}}, id="vLLM's regex"),
    pytest.param(
        CHAT, lambda p: {"structured_outputs": {"json": a_pattern(p)}}, id="vLLM's own schema"
    ),
    pytest.param(
        CHAT,
        lambda p: {"structured_outputs": {"json": " " + json.dumps(a_pattern(p))}},
        id="vLLM's own schema as a string",
    ),
    pytest.param(
        COMPLETIONS,
        lambda p: {
            "structured_outputs": {
                "json": json.dumps(a_pattern(p)).replace("pattern", "\\u0070attern")
            }
        },
        id="the same with an escape in it",
    ),
    pytest.param(
        CHAT,
        lambda p: {"structured_outputs": {"json": {}, "whitespace_pattern": p}},
        id="white space",
    ),
    pytest.param(
        RESPONSES,
        lambda p: {"text": {"format": {"type": "json_schema", "schema": a_pattern(p)}}},
        id="the format of a response",
    ),
    pytest.param(
        RESPONSES,
        lambda p: {"tools": [{"type": "function", "name": "f", "parameters": a_pattern(p)}]},
        id="a tool of a response",
    ),
    pytest.param(
        MESSAGES,
        lambda p: {"output_config": {"format": {"type": "json_schema", "schema": a_pattern(p)}}},
        id="the format of a message",
    ),
    pytest.param(
        MESSAGES,
        lambda p: {"tools": [{"name": "f", "input_schema": {"properties": {"x": a_pattern(p)}}}]},
        id="a tool of Anthropic's",
    ),
    pytest.param(CHAT, lambda p: {"json_schema": a_pattern(p)}, id="llama.cpp's own schema"),
    pytest.param(COMPLETIONS, lambda p: {"json_schema": a_pattern(p)}, id="on completions"),
    pytest.param(CHAT, lambda p: {"guided_json": a_pattern(p)}, id="an older vLLM's schema"),
    pytest.param(
        CHAT, lambda p: {"guided_json": json.dumps([a_pattern(p)])}, id="the same as a string"
    ),
    pytest.param(CHAT, lambda p: {"guided_regex": p}, id="an older vLLM's regex"),
    pytest.param(CHAT, lambda p: {"regex": p}, id="SGLang's regex"),
    pytest.param(
        CHAT,
        lambda p: response_format({"patternProperties": {p: {"type": "string"}}}),
        id="the name of properties",
    ),
    pytest.param(
        CHAT, lambda p: response_format({"propertyNames": a_pattern(p)}), id="names of properties"
    ),
    pytest.param(
        CHAT, lambda p: response_format({"$defs": {"pattern": a_pattern(p)}}), id="a definition"
    ),
    pytest.param(
        CHAT,
        lambda p: {
            "response_format": {"type": "structural_tag", "format": {"type": "regex", "pattern": p}}
        },
        id="a structural tag where one is allowed",
    ),
]


@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_patterns_are_bounded_wherever_they_stand(kind: BodyKind, place: Any) -> None:
    """At the limit they pass, one step above it they do not."""
    limits = {"allow_fields": ALL_FIELDS}
    check(place(f"a{{{bounds.MAX_WORK}}}"), kind, **limits)
    with pytest.raises(ToolsTooLarge, match=r"4,001 steps .* 4,000") as caught:
        check(place(f"a{{{bounds.MAX_WORK + 1}}}"), kind, **limits)
    assert caught.value.param


def test_the_message_names_the_field() -> None:
    """And not the pattern, which is the client's."""
    with pytest.raises(ToolsTooLarge) as caught:
        check({"tools": [tool(x=a_pattern("a{5000}"))]})
    assert caught.value.param == "tools"
    assert "in tools" in str(caught.value)
    assert "a{" not in str(caught.value)


def test_patterns_count_together() -> None:
    """Over all places; one that stands there again counts a tenth."""
    halves = ["a{2000}", "b{2000}"]
    both = {"tools": [tool(x=a_pattern(halves[0]))], "guided_regex": halves[1]}
    check(both)
    with pytest.raises(ToolsTooLarge):
        check({**both, "regex": "a"})
    again = {f"p{n}": a_pattern("a{2000}") for n in range(11)}
    check({"tools": [tool(**again)]})
    with pytest.raises(ToolsTooLarge):
        check({"tools": [tool(**again, one_more=a_pattern("a{2000}"))]})


def test_long_patterns_are_not_read() -> None:
    """Their characters are bounded first: that costs nothing."""
    longest = "()" * (bounds.MAX_PATTERN_CHARS // 2)
    check({"tools": [tool(x=a_pattern(longest))]})
    with pytest.raises(ToolsTooLarge, match="8,001 characters"):
        check({"tools": [tool(x=a_pattern(longest), y=a_pattern("a"))]})


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"tools": [tool(pattern={"type": "string"})]}, id="a property called so"),
        pytest.param(
            {"tools": [tool(pattern={"description": "a{9000}"})]}, id="a property's description"
        ),
        pytest.param(
            {"tools": [tool(patternProperties={"type": "object"})]}, id="another property's name"
        ),
        pytest.param(
            {"tools": [tool(x={"type": "string", "description": "matches a{9000}"})]},
            id="a description",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": '{"pattern":"a{9000}"}'}]}, id="a text"
        ),
        pytest.param(
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"function": {"name": "grep", "arguments": {"pattern": "a{9000}"}}}
                        ],
                    }
                ]
            },
            id="an argument of a call",
        ),
        pytest.param({"metadata": {"pattern": "a{9000}"}}, id="metadata"),
        pytest.param({"guided_json": "not JSON", "json_schema": "{", "regex": 5}, id="no schemas"),
        pytest.param({"guided_json": "{" * 99, "pattern": None}, id="a string without an end"),
    ],
)
def test_what_is_no_pattern_is_none(body: dict[str, Any]) -> None:
    """It passes, whatever it would expand to."""
    check(body)


def strings(lengths: range, **more: object) -> dict[str, Any]:
    """An object of strings with these bounds."""
    members = {f"p{n}": {"type": "string", "maxLength": n, **more} for n in lengths}
    return response_format({"type": "object", "properties": members})


def numbered(number: int) -> dict[str, Any]:
    """So many properties."""
    return {f"p{n}": {} for n in range(number)}


@pytest.mark.parametrize(
    ("within", "over", "what"),
    [
        pytest.param(
            strings(range(1_000, 1_032)), strings(range(1_000, 1_033)), "8,448 char", id="lengths"
        ),
        pytest.param(
            strings(range(200, 232), minLength=10**9),
            strings(range(200, 233), minLength=10**9),
            "8,448 char",
            id="least lengths",
        ),
        pytest.param(
            response_format({"type": "object", "properties": numbered(1_000)}),
            response_format({"type": "object", "properties": numbered(1_001)}),
            "1,001 members",
            id="properties",
        ),
        pytest.param(
            response_format({"properties": numbered(100), "minProperties": 1}),
            response_format({"properties": numbered(101), "minProperties": 1}),
            "1,030,301 ways",
            id="properties of which some are wanted",
        ),
        pytest.param(
            response_format({"properties": numbered(200), "maxProperties": 25}),
            response_format({"properties": numbered(200), "maxProperties": 26}),
            "1,040,000 ways",
            id="properties of which some may be there",
        ),
        pytest.param(
            response_format({"enum": [0] * 8_000}),
            response_format({"enum": [0] * 8_001}),
            "8,001 entries",
            id="values",
        ),
        pytest.param(
            response_format({"anyOf": [{"enum": [0] * 3_999}, {"enum": [0] * 3_999}]}),
            response_format({"anyOf": [{"enum": [0] * 4_000}, {"enum": [0] * 3_999}]}),
            "8,001 entries",
            id="values in two lists",
        ),
        pytest.param(
            {"response_format": {"json": json.dumps({"enum": [0] * 8_000})}},
            {"response_format": {"json": json.dumps({"enum": [0] * 8_001})}},
            "8,001 entries",
            id="values in a schema that is written as a string",
        ),
    ],
)
def test_other_counts_are_bounded(within: dict[str, Any], over: dict[str, Any], what: str) -> None:
    """At the bound a schema passes; above it, it is refused by its size and the limit."""
    check(within)
    with pytest.raises(ToolsTooLarge, match=what) as caught:
        check(over)
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "string", "maxLength": 2**40}, id="a long string"),
        pytest.param(
            {"items": [{"type": "string", "maxLength": 10_000}] * 500}, id="500 equal lengths"
        ),
        pytest.param({"type": "array", "maxItems": 2**31 - 1, "minItems": 10**6}, id="many items"),
        pytest.param({"minProperties": 10**6, "maxProperties": 10**9}, id="many properties"),
        pytest.param({"minimum": -1e308, "maximum": 1e308, "multipleOf": 1e-9}, id="numbers"),
        pytest.param({"maxLength": "9", "minLength": None, "maxProperties": True}, id="odd types"),
        pytest.param({"properties": numbered(1_000), "maxProperties": 1}, id="one of a thousand"),
        pytest.param({"properties": numbered(1_000), "minProperties": 0}, id="none of them"),
        pytest.param({"properties": numbered(100), "maxProperties": 10**9}, id="all of a hundred"),
        pytest.param({"properties": "x", "minProperties": 1}, id="no properties"),
        pytest.param({"minLength": -1, "maxLength": 1e300}, id="odd numbers"),
        pytest.param(
            {
                "$defs": {
                    f"a{n}": {"prefixItems": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)
                }
            },
            id="references that double",
        ),
    ],
)
def test_what_costs_engines_nothing_passes(schema: dict[str, Any]) -> None:
    """Measured: it is compiled within milliseconds, or refused by the engine itself."""
    check(response_format(schema))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(CHAT, {"response_format": {"type": "structural_tag"}}, id="response_format"),
        pytest.param(CHAT, {"structured_outputs": {"structural_tag": "{}"}}, id="vLLM's own"),
        pytest.param(CHAT, {"structural_tag": "{}"}, id="the top level"),
        pytest.param(RESPONSES, {"text": {"format": {"type": "structural_tag"}}}, id="a response"),
        pytest.param(
            MESSAGES, {"output_config": {"format": {"type": "structural_tag"}}}, id="a message"
        ),
    ],
)
def test_structural_tags_are_refused_like_the_grammars_in_them(
    kind: BodyKind, body: dict[str, Any]
) -> None:
    """By name, unless the operator allows them."""
    with pytest.raises(FieldRefused, match="PROXY_ALLOW_FIELDS=structural_tag"):
        check(body, kind)
    check(body, kind, allow_fields=ALL_FIELDS)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"response_format": {"type": "json_object"}}, id="an object"),
        pytest.param({"response_format": {"type": ["structural_tag"]}}, id="no type"),
        pytest.param({"response_format": "structural_tag"}, id="no object"),
        pytest.param({"structured_outputs": {"structural_tag": None}}, id="null"),
        pytest.param({"text": {"type": "structural_tag"}}, id="another place"),
    ],
)
def test_other_formats_pass(body: dict[str, Any]) -> None:
    """Also what only the engine can judge."""
    check(body)
