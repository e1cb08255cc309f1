"""JF: JSON that two parsers read differently, and JSON that a second writer would spoil."""

import pytest

from tests.harness import upstream as upstreams
from tests.harness.bodies import chat
from tests.harness.running import BEARER, CHAT, JSON, Launch

HI = b'{"model":"m","messages":[{"role":"user","content":"hi"}],'


@pytest.mark.case("JF-01")
async def test_integers_beyond_doubles(proxy: Launch) -> None:
    """Every digit arrives, though the body had to be edited."""
    front = await proxy()
    body = HI + (
        b'"seed":9007199254740993,"tools":[{"type":"function","function":{"name":"f",'
        b'"parameters":{"const":18446744073709551617}}}],"max_tokens":99999}'
    )
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body.replace(b"99999", b"4096")


def saying(text: bytes) -> bytes:
    """A chat that has to be clamped, with these bytes in its message."""
    return (
        b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}],"max_tokens":99999}'
    )


@pytest.mark.case("JF-03")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"a\\ud83d", id="a high one at the end"),
        pytest.param(b"\\ud83d a", id="a high one"),
        pytest.param(b"\\ude00", id="a low one"),
        pytest.param(b"\\ude00\\ud83d", id="the wrong way round"),
    ],
)
async def test_half_a_surrogate_pair(proxy: Launch, text: bytes) -> None:
    """A clean 400 that says what it was."""
    front = await proxy()
    answer = await front.chat(saying(text))
    await front.assert_refused(answer, 400, "invalid_json")
    assert "surrogate" in answer.json()["error"]["message"]


@pytest.mark.case("JF-03")
async def test_a_whole_surrogate_pair(proxy: Launch) -> None:
    """Works, and stays an escape."""
    front = await proxy()
    body = saying(b"a\\ud83d\\ude00")
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body.replace(b"99999", b"4096")


@pytest.mark.case("JF-04")
@pytest.mark.parametrize("name", [b"max_tokens", b"temperature", b"zz_future"])
@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
async def test_numbers_that_are_none(proxy: Launch, name: bytes, value: bytes) -> None:
    """400 in JSON, wherever they stand; no cap is skipped."""
    front = await proxy()
    answer = await front.chat(HI + b'"' + name + b'":' + value + b"}")
    await front.assert_refused(answer, 400, "invalid_json")


@pytest.mark.case("JF-05")
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_with_numbers_that_are_none(proxy: Launch, streamed: bool) -> None:
    """The bytes are relayed, and it counts as well as any other."""
    front = await proxy()
    body = b'{"choices":[{"logprobs":{"logprob":-Infinity,"x":NaN}}],"usage":{"total_tokens":NaN}}'
    front.upstream.reply = [upstreams.response(body)]
    if streamed:
        body = upstreams.sse(body.decode()) + upstreams.DONE
        front.upstream.reply = [upstreams.SSE_HEAD, upstreams.chunk(body), upstreams.LAST_CHUNK]
    answer = await front.chat(chat(max_tokens=9, stream=streamed))
    assert (answer.status, answer.body, answer.complete) == (200, body, True)
    line = await front.log.of(answer)
    assert (line["outcome"], line["level"]) == ("ok", "info")
    front.assert_counted(line)


SHORT = b'"messages":[{"role":"user","content":"hi"}]'
LONG = b'"messages":[{"role":"user","content":"' + b"x" * 50_000 + b'"}]'


@pytest.mark.case("JF-06")
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            b'{"max_tokens":10,' + SHORT + b',"max_tokens":99999}', id="a small bound first"
        ),
        pytest.param(
            b'{"max_tokens":99999,' + SHORT + b',"max_tokens":10}', id="a small bound last"
        ),
        pytest.param(b'{"max_tokens":1,' + SHORT + b"," + LONG + b"}", id="short messages first"),
        pytest.param(b'{"max_tokens":1,' + LONG + b"," + SHORT + b"}", id="short messages last"),
        pytest.param(
            b'{"max_tokens":10,' + SHORT + b',"max\\u005ftokens":99999}', id="another spelling"
        ),
        pytest.param(
            b'{"max_tokens":1,"messages":[{"content":"hi","role":"user","content":"x"}]}',
            id="in a message",
        ),
    ],
)
async def test_a_key_twice(proxy: Launch, body: bytes) -> None:
    """Refused in every order: no two parsers have to agree on which one counts."""
    front = await proxy()
    await front.assert_refused(await front.chat(body), 400, "invalid_json")


@pytest.mark.case("JF-08")
async def test_a_byte_order_mark(proxy: Launch) -> None:
    """400: what cannot be read is not forwarded as it is."""
    front = await proxy()
    answer = await front.chat(b"\xef\xbb\xbf" + chat(max_tokens=99999))
    await front.assert_refused(answer, 400, "invalid_json")


@pytest.mark.case("JF-10")
@pytest.mark.parametrize("depth", [101, 5_000, 20_000])
@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["lists", "objects"]
)
async def test_deep_structures(
    proxy: Launch,
    capfd: pytest.CaptureFixture[str],
    depth: int,
    opening: bytes,
    closing: bytes,
) -> None:
    """400, no traceback, and the next request on the same connection works."""
    front = await proxy()
    nested = opening * depth + b"1" + closing * depth
    client = await front.connect()
    fields = {**BEARER, **JSON}
    body = b'{"model":"m","messages":[],"x":' + nested + b"}"
    refused = await client.request("POST", CHAT, fields, body)
    await front.assert_refused(refused, 400, "body_too_complex")
    assert (await client.request("POST", CHAT, fields, chat())).status == 200
    assert "Traceback" not in front.log.text
    assert capfd.readouterr() == ("", "")


@pytest.mark.case("JF-12")
async def test_latin_1_in_a_body(proxy: Launch) -> None:
    """400 in OpenAI's shape."""
    front = await proxy()
    body = b'{"model":"m","messages":[{"role":"user","content":"caf\xe9"}]}'
    answer = await front.chat(body)
    await front.assert_refused(answer, 400, "invalid_json")
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.case("JF-13")
@pytest.mark.parametrize(
    "body",
    [b"", b"   ", b"[]", b'"x"', b"1", b"null", b"true", b'{"messages":[]} trailing', b"{}{}"],
)
async def test_bodies_that_are_no_object(proxy: Launch, body: bytes) -> None:
    """400, and nothing forwarded."""
    front = await proxy()
    await front.assert_refused(await front.chat(body), 400, "invalid_json")


@pytest.mark.case("JF-13")
@pytest.mark.parametrize(
    "messages", [b"5", b"true", b'"hi"', b"[null]", b"[[]]", b'["hi"]', b'{"role":"user"}']
)
async def test_messages_that_are_no_list_of_objects(proxy: Launch, messages: bytes) -> None:
    """400, naming them: what cannot be counted is not forwarded."""
    front = await proxy()
    answer = await front.chat(b'{"messages":' + messages + b"}")
    await front.assert_refused(answer, 400, "invalid_value")
    assert answer.json()["error"]["param"].startswith("messages")


@pytest.mark.case("JF-13")
@pytest.mark.parametrize(
    "body", [b"{}", b'{"messages":null}', b'{"messages":[]}', b'{"messages":[{"content":5}]}']
)
async def test_objects_that_ask_nothing(proxy: Launch, body: bytes) -> None:
    """Bounded like others; what is wrong with them is the engine's to say."""
    front = await proxy()
    complaint = b'{"error":{"message":"no chat","type":"BadRequestError"}}'
    front.upstream.reply = [upstreams.response(complaint, 400)]
    answer = await front.chat(body)
    assert (answer.status, answer.body) == (400, complaint)
    bounded = b'{"max_tokens":4096' + (b"," if len(body) > 2 else b"") + body[1:]
    assert front.upstream.requests[0].body == bounded
