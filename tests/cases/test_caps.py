"""CP: ways around the caps, and caps that stand in the way."""

import base64
import json
from typing import Any

import openai
import pytest

from tests.harness import upstream as upstreams
from tests.harness.bodies import chat, compact
from tests.harness.running import BEARER, JSON, Launch, Running
from tests.harness.sdk import openai_client

COMPLETIONS = "/v1/completions"


def members(body: bytes) -> list[tuple[str, Any]]:
    """The fields of an object, in order, repeats kept."""
    found: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
    return found


def bounds(body: bytes) -> dict[str, Any]:
    """The bounds on the output in a chat; fails where one is there twice."""
    found = [(name, value) for name, value in members(body) if name.startswith("max_")]
    assert len(found) == len(dict(found)), found
    return dict(found)


async def assert_refused(
    front: Running, body: bytes, code: str, path: str = "/v1/chat/completions"
) -> dict[str, Any]:
    """A 400 with this code, and nothing forwarded; gives the error."""
    answer = await front.ask("POST", path, {**BEARER, **JSON}, body)
    await front.assert_refused(answer, 400, code)
    error: dict[str, Any] = answer.json()["error"]
    return error


NEW, OLD = "max_completion_tokens", "max_tokens"


@pytest.mark.case("CP-01")
@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        pytest.param({NEW: 100, OLD: 50_000}, {NEW: 100, OLD: 4096}, id="the old one too large"),
        pytest.param({NEW: 50_000, OLD: 200}, {NEW: 4096, OLD: 200}, id="the new one too large"),
        pytest.param({NEW: 50_000, OLD: 50_000}, {NEW: 4096, OLD: 4096}, id="both too large"),
        pytest.param({OLD: 50_000}, {OLD: 4096}, id="the old one alone"),
        pytest.param({NEW: 50_000}, {NEW: 4096}, id="the new one alone"),
        pytest.param({NEW: 100, OLD: 200}, {NEW: 100, OLD: 200}, id="both small"),
    ],
)
async def test_both_names_of_the_bound(
    proxy: Launch, given: dict[str, int], arrives: dict[str, int]
) -> None:
    """Neither is above the cap upstream, neither is raised, none is invented beside the other."""
    front = await proxy()
    assert (await front.chat(chat(**given))).status == 200
    assert bounds(front.upstream.requests[0].body) == arrives


@pytest.mark.case("CP-02")
@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        pytest.param({}, {OLD: 4096}, id="absent"),
        pytest.param({OLD: None}, {OLD: 4096}, id="null"),
        pytest.param({NEW: None}, {OLD: 4096, NEW: None}, id="the new name null"),
        pytest.param({NEW: None, OLD: None}, {NEW: None, OLD: 4096}, id="both null"),
    ],
)
async def test_no_bound_at_all(
    proxy: Launch, given: dict[str, None], arrives: dict[str, int | None]
) -> None:
    """The upstream sees 4,096, not what is left of its window, and no key twice."""
    front = await proxy()
    assert (await front.chat(chat(**given))).status == 200
    assert bounds(front.upstream.requests[0].body) == arrives


@pytest.mark.case("CP-03")
async def test_a_stock_agents_large_default(proxy: Launch) -> None:
    """Lowered, said so, and the answer is cut off as the model says."""
    front = await proxy()
    cut = upstreams.COMPLETION.replace(b'"stop"', b'"length"')
    front.upstream.reply = [upstreams.response(cut)]
    answer = await front.chat(chat(max_tokens=32_000))
    assert (answer.status, answer.body) == (200, cut)
    assert answer.header(b"x-bulwark-clamped") == b"max_tokens 32000 -> 4096"
    assert bounds(front.upstream.requests[0].body) == {OLD: 4096}


@pytest.mark.case("CP-03")
@pytest.mark.parametrize("name", [OLD, NEW])
async def test_a_large_default_where_the_owner_rejects(proxy: Launch, name: str) -> None:
    """A 400 that names the limit, the value and the field."""
    front = await proxy(output_overflow="reject")
    error = await assert_refused(front, chat(**{name: 32_000}), "output_too_large")
    assert error["param"] == name
    for word in ("4,096", "32,000", "PROXY_MAX_OUTPUT_TOKENS"):
        assert word in error["message"]


@pytest.mark.case("CP-05")
@pytest.mark.parametrize("value", [-1, 0, -24])
@pytest.mark.parametrize("name", [OLD, NEW, "n_predict"])
async def test_bounds_that_some_engines_take_for_unlimited(
    proxy: Launch, name: str, value: int
) -> None:
    """Below the cap is not within it: refused, not replaced."""
    front = await proxy()
    error = await assert_refused(front, chat(**{name: value}), "invalid_value")
    assert error["param"] == name


@pytest.mark.case("CP-07")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"max_tokens": 4096, "n": 64}, "too_many_choices", id="n"),
        pytest.param({"max_tokens": 4096, "best_of": 64}, "too_many_choices", id="best_of"),
        pytest.param({"max_tokens": 4096, "n": 9}, "too_many_choices", id="one more than allowed"),
        pytest.param(
            {"max_tokens": 4096, "n": 64, "use_beam_search": True}, "field_refused", id="beams"
        ),
        pytest.param(
            {"max_tokens": 4096, "n": 4, "use_beam_search": True}, "field_refused", id="few beams"
        ),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", COMPLETIONS])
async def test_sequences_beside_the_first(
    proxy: Launch, path: str, fields: dict[str, object], code: str
) -> None:
    """More than eight, and beams, are refused."""
    front = await proxy()
    body = chat(**fields) if path != COMPLETIONS else compact({"prompt": "hi", **fields})
    await assert_refused(front, body, code, path)


@pytest.mark.case("CP-07")
@pytest.mark.parametrize("fields", [{"n": 8}, {"best_of": 8}, {"n": 2, "best_of": 8}])
async def test_sequences_share_the_cap(proxy: Launch, fields: dict[str, int]) -> None:
    """The cap is the request's: eight sequences get an eighth each."""
    front = await proxy()
    body = compact({"prompt": "hi", "max_tokens": 4096, **fields})
    answer = await front.ask("POST", COMPLETIONS, {**BEARER, **JSON}, body)
    assert answer.header(b"x-bulwark-clamped") == b"max_tokens 4096 -> 512"
    assert front.upstream.requests[0].body == body.replace(b"4096", b"512")


@pytest.mark.case("CP-08")
@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        pytest.param(["a"] * 5_000, "too_many_inputs", id="5,000 prompts"),
        pytest.param(["a"] * 9, "too_many_inputs", id="one more than allowed"),
        pytest.param(["x" * 6_000] * 2, "context_length_exceeded", id="two long ones"),
    ],
)
async def test_a_list_of_prompts(proxy: Launch, prompt: list[str], code: str) -> None:
    """The cap counts their sum, and their number is bounded."""
    front = await proxy()
    await assert_refused(front, compact({"prompt": prompt, "max_tokens": 1}), code, COMPLETIONS)


async def assert_arrives(front: Running, prompt: list[Any]) -> None:
    """As much as there may be is forwarded as it was sent."""
    body = compact({"prompt": prompt, "max_tokens": 1})
    answer = await front.ask("POST", COMPLETIONS, {**BEARER, **JSON}, body)
    assert answer.status == 200
    assert front.upstream.requests[0].body == body


@pytest.mark.case("CP-08")
@pytest.mark.parametrize("prompt", [["a"] * 8, ["x" * 5_000] * 2], ids=["eight", "two long ones"])
async def test_a_list_of_prompts_within_the_caps(proxy: Launch, prompt: list[str]) -> None:
    """The neighbours of those, in number and in length."""
    await assert_arrives(await proxy(), prompt)


@pytest.mark.case("CP-09")
@pytest.mark.parametrize("prompt", [[1] * 2_500, [[1] * 1_250] * 2], ids=["ids", "lists of ids"])
async def test_token_ids_within_the_cap(proxy: Launch, prompt: list[Any]) -> None:
    """2,500 count as the 10,000 characters that there may be."""
    await assert_arrives(await proxy(), prompt)


@pytest.mark.case("CP-09")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({"prompt": [1] * 50_000}, "context_length_exceeded", id="token ids"),
        pytest.param({"prompt": [1] * 2_501}, "context_length_exceeded", id="one id too many"),
        pytest.param({"prompt": [[1] * 1_300] * 2}, "context_length_exceeded", id="lists of ids"),
        pytest.param(
            {"prompt": "a", "prompt_embeds": "A" * 1_000_000}, "field_refused", id="embeddings"
        ),
        pytest.param({"prompt_embeds": "AAAA"}, "field_refused", id="embeddings alone"),
        pytest.param({"prompt": 5}, "invalid_value", id="a number"),
        pytest.param({"prompt": {"a": 1}}, "invalid_value", id="an object"),
        pytest.param({"prompt": [{"a": 1}]}, "invalid_value", id="a list of objects"),
        pytest.param({"prompt": [1, "a"]}, "invalid_value", id="a mixed list"),
    ],
)
async def test_prompts_that_are_no_text(proxy: Launch, body: dict[str, Any], code: str) -> None:
    """Bounded or refused; none is a crash."""
    front = await proxy()
    await assert_refused(front, compact({**body, "max_tokens": 1}), code, COMPLETIONS)


def said(content: object, role: str = "user") -> dict[str, object]:
    """One message."""
    return {"role": role, "content": content}


def talk(*messages: dict[str, object], **fields: object) -> bytes:
    """A chat with these messages."""
    return compact({"model": "m", "messages": messages, "max_tokens": 9, **fields})


def text(length: int) -> dict[str, str]:
    """A text part."""
    return {"type": "text", "text": "x" * length}


ROLES = ["system", "developer", "user", "assistant", "tool", "function"] * 2


@pytest.mark.case("CP-10")
@pytest.mark.parametrize(
    ("over", "within"),
    [
        pytest.param([text(10_001)], [text(10_000)], id="one part"),
        pytest.param([text(1_000)] * 11, [text(1_000)] * 10, id="many parts"),
        pytest.param("x" * 10_001, "x" * 10_000, id="no parts"),
    ],
)
async def test_text_in_parts(proxy: Launch, over: object, within: object) -> None:
    """Counted like a string: one character too many is refused, the neighbour passes."""
    front = await proxy()
    error = await assert_refused(front, talk(said(over)), "context_length_exceeded")
    assert "10,000" in error["message"]
    body = talk(said(within))
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body


@pytest.mark.case("CP-11")
@pytest.mark.parametrize(
    ("messages", "measured"),
    [
        pytest.param(
            [said("x" * 1_000, role) for role in ROLES[:11]], "11,000", id="eleven of every role"
        ),
        pytest.param([said("x" * 10_001, "system"), said("")], "10,001", id="a system message"),
        pytest.param(
            [said("x" * 10_001, "assistant"), said("")], "10,001", id="an assistant's message"
        ),
    ],
)
async def test_every_role_counts(
    proxy: Launch, messages: list[dict[str, object]], measured: str
) -> None:
    """The sum over all of them, wherever it is; at exactly the cap they pass."""
    front = await proxy()
    error = await assert_refused(front, talk(*messages), "context_length_exceeded")
    assert measured in error["message"]
    left, fewer = 10_000, []
    for each in messages:
        content = str(each["content"])[:left]
        left -= len(content)
        fewer.append(said(content, str(each["role"])))
    assert left == 0
    body = talk(*fewer)
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body


@pytest.mark.case("CP-13")
async def test_an_images_bytes_are_no_prompt(proxy: Launch) -> None:
    """200 KB of base64 pass unchanged; only the cap of the body holds them."""
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(150_000)).decode()
    image = {"url": f"data:image/png;base64,{picture}"}
    body = talk(
        said([{"type": "text", "text": "describe"}, {"type": "image_url", "image_url": image}])
    )
    front = await proxy()
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body
    narrow = await proxy(max_body_bytes=200_000)
    await narrow.assert_refused(await narrow.chat(body), 413, "body_too_large")


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "Does what an agent's tool does, and says so at length. " * 8,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for number in range(30)
]


@pytest.mark.case("CP-15")
async def test_an_agents_own_prompt_is_over_the_cap(proxy: Launch) -> None:
    """Its SDK asks once, and its user reads the limit, the measure and the setting to change."""
    front = await proxy()
    async with openai_client(front.port) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="m",
                messages=[
                    {"role": "system", "content": "x" * 20_000},
                    {"role": "user", "content": "hi"},
                ],
                tools=TOOLS,
            )
    assert caught.value.code == "context_length_exceeded"
    for word in ("20,002", "10,000", "PROXY_MAX_PROMPT_CHARS"):
        assert word in str(caught.value)
    assert len(front.log.requests()) == 1
    assert front.upstream.requests == []


@pytest.mark.case("CP-15")
async def test_the_owner_may_let_the_agent_in(proxy: Launch) -> None:
    """The setting that the error names is the one; its tools have a cap of their own."""
    front = await proxy(max_prompt_chars=20_002)
    body = talk(said("x" * 20_000, "system"), said("hi"), tools=TOOLS)
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body


@pytest.mark.case("CP-16")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_that_thinks_until_the_cap(proxy: Launch, streamed: bool) -> None:
    """No content, finish reason length: relayed as it is, and a field says that we lowered it."""
    thinking: dict[str, object] = {"content": None, "reasoning_content": "Hm. " * 1_000}
    if streamed:
        chunks = [
            upstreams.completion_chunk(thinking),
            upstreams.completion_chunk({}, finish_reason="length"),
        ]
        body = b"".join(map(upstreams.sse, chunks)) + upstreams.DONE
        framed = upstreams.chunk(body)
        reply: upstreams.Script = [upstreams.SSE_HEAD, framed, upstreams.LAST_CHUNK]
    else:
        choice = {"index": 0, "message": thinking, "finish_reason": "length"}
        body = compact({"object": "chat.completion", "choices": [choice]})
        reply = [upstreams.response(body)]
    front = await proxy()
    front.upstream.reply = reply
    answer = await front.chat(chat(max_tokens=32_000, stream=streamed))
    assert (answer.status, answer.body, answer.complete) == (200, body, True)
    assert answer.header(b"x-bulwark-clamped") == b"max_tokens 32000 -> 4096"
