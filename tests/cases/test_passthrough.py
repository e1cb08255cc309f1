"""PT: what nobody governs arrives as it was sent."""

import hashlib
import json

import pytest

from tests.harness import upstream as upstreams
from tests.harness.bodies import chat, compact
from tests.harness.running import BEARER, CHAT, JSON, Launch

NEWER = chat(
    top_k=20,
    min_p=0.05,
    repetition_penalty=1.0,
    guided_json={"type": "object"},
    structured_outputs={"json": {"type": "object", "properties": {}}},
    chat_template_kwargs={"enable_thinking": False},
    stream_options={"include_usage": True},
    parallel_tool_calls=False,
    logit_bias={"50256": -100},
    service_tier="auto",
    prompt_cache_key="k",
    vllm_xargs={"a": 1},
    zz_future={"a": [1, None]},
)


@pytest.mark.case("PT-01")
async def test_fields_that_a_gateway_may_not_know(proxy: Launch) -> None:
    """Every one arrives with its value and type; the bound on the output is all that is added."""
    front = await proxy()
    assert (await front.chat(NEWER)).status == 200
    (received,) = front.upstream.requests
    # Compared as text: 1.0 is not 1, nor false 0.
    expected = {"max_tokens": 4096, **json.loads(NEWER)}
    assert json.dumps(received.json()) == json.dumps(expected)
    assert received.body == NEWER.replace(b"{", b'{"max_tokens":4096,', 1)


ZEROS = (
    b'"temperature":0,"top_p":0.0,"seed":0,"presence_penalty":0,"stream":false,"stop":[],'
    b'"logit_bias":{},"user":""'
)


@pytest.mark.case("PT-03")
@pytest.mark.parametrize(
    ("bound", "arrives"),
    [
        pytest.param(b"", b'"max_tokens":4096,', id="inserted"),
        pytest.param(b'"max_tokens":99999,', b'"max_tokens":4096,', id="clamped"),
        pytest.param(b'"max_tokens":9,', b'"max_tokens":9,', id="left"),
    ],
)
async def test_zeros_and_empty_values(proxy: Launch, bound: bytes, arrives: bytes) -> None:
    """They are set, not missing; also where the body had to be edited."""
    front = await proxy()
    behind = b'"messages":[{"role":"user","content":"hi"}],' + ZEROS + b"}"
    assert (await front.chat(b"{" + bound + behind)).status == 200
    assert front.upstream.requests[0].body == b"{" + arrives + behind


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.case("PT-04")
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"tools": []}, id="tools empty"),
        pytest.param({"tools": None}, id="tools null"),
        pytest.param({"tools": [], "tool_choice": "auto"}, id="tools empty, a choice"),
        pytest.param(
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            id="a tool, and it is chosen",
        ),
    ],
)
async def test_tools_as_they_are(proxy: Launch, fields: dict[str, object]) -> None:
    """Forwarded unchanged, and the upstream's own 400 about them comes back as it is."""
    front = await proxy()
    complaint = b'{"error": {"message":"tools must not be empty","type":"BadRequestError"}}'
    front.upstream.script.extend(
        [[upstreams.response(upstreams.COMPLETION)], [upstreams.response(complaint, 400)]]
    )
    body = chat(max_tokens=9, **fields)
    good, bad = await front.chat(body), await front.chat(body)
    assert [request.body for request in front.upstream.requests] == [body, body]
    assert (good.status, good.body) == (200, upstreams.COMPLETION)
    assert (bad.status, bad.body) == (400, complaint)


@pytest.mark.case("PT-06")
async def test_the_query_string(proxy: Launch) -> None:
    """Order, repeats, %2B beside +, an empty value: the target is the same bytes."""
    front = await proxy()
    target = f"{CHAT}?api-version=2024-10-21&x=a%2Bb&x=2&empty=&sp=a+b"
    answer = await front.ask("POST", target, {**BEARER, **JSON}, chat())
    assert answer.status == 200
    assert front.upstream.requests[0].target == target.encode()


@pytest.mark.case("PT-07")
async def test_an_extra_body_is_a_field_like_others(proxy: Launch) -> None:
    """Neither unwrapped nor added to."""
    front = await proxy()
    body = chat(max_tokens=9, extra_body={"top_k": 5, "extra_body": {"q": 1}})
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body


def multipart(boundary: str) -> bytes:
    """A form with a second of silence, as curl -F writes it."""
    parts = [
        b'name="model"\r\n\r\nw',
        b'name="file"; filename="1s.wav"\r\nContent-Type: audio/wav\r\n\r\n' + b"\0" * 32_000,
        b'name="response_format"\r\n\r\nvtt',
    ]
    mark = b"--" + boundary.encode()
    framed = b"".join(
        mark + b"\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts
    )
    return framed + mark + b"--\r\n"


@pytest.mark.case("PT-08")
@pytest.mark.parametrize(
    ("path", "boundary", "status", "code"),
    [
        pytest.param("/v1/audio/transcriptions", "b0", 404, "not_found", id="a path not served"),
        pytest.param(
            "/v1/audio/transcriptions", "nope", 404, "not_found", id="there with a broken form"
        ),
        pytest.param(CHAT, "b0", 415, "unsupported_media_type", id="a form for a chat"),
        pytest.param(CHAT, "nope", 415, "unsupported_media_type", id="a broken form for a chat"),
    ],
)
async def test_forms_with_files(
    proxy: Launch, path: str, boundary: str, status: int, code: str
) -> None:
    """Audio is not served: a refusal in JSON at once, and the form is read by nobody."""
    front = await proxy()
    fields = {**BEARER, "Content-Type": f"multipart/form-data; boundary={boundary}"}
    answer = await front.ask("POST", path, fields, multipart("b0"))
    await front.assert_refused(answer, status, code)


@pytest.mark.case("PT-09")
async def test_a_model_list(proxy: Launch) -> None:
    """Byte for byte, with the fields that only some engines have and with one that none has."""
    front = await proxy()
    listing = (
        b'{"object": "list",\n "data":[{"id":"org/m","max_model_len":32768,"root":"/srv/m",'
        b'"permission":[{"id":"p","allow_sampling":true}],"zz_future":{"a":[1,null]}}] }\n'
    )
    front.upstream.reply = [upstreams.response(listing)]
    answer = await front.ask("GET", "/v1/models", BEARER)
    assert (answer.status, answer.body) == (200, listing)


PRETTY = (
    b'\t{"model" : "m",\r\n  "tools":[{"type":"function","function":{"parameters":{"z":{"type":'
    b'"string"},"a":{}},"name":"f","description":"<&> a\\/b"}}],\n\n "messages":[ {"role":"user", '
    b'"content":"caf\xc3\xa9 caf\\u00e9 a\\/b <&>"} ] ,"max_tokens":\t9 }\n'
)


@pytest.mark.case("PT-10")
async def test_a_body_within_the_caps_is_not_written_again(proxy: Launch) -> None:
    """White space, the order of keys, escapes: the digests are equal, so prefix caches still hit."""
    front = await proxy()
    assert (await front.chat(PRETTY)).status == 200
    (received,) = front.upstream.requests
    assert hashlib.sha256(received.body).digest() == hashlib.sha256(PRETTY).digest()
    assert compact(received.json()) != received.body  # or nobody would see it rewritten
