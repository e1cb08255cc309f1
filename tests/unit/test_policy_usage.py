"""Asking the engine for the usage of a stream."""

import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import InvalidValue
from proxy.policy import Limits, Policy, Terms
from proxy.policy.edit import apply
from proxy.policy.usage import ask_for_usage

ASKED = b'{"include_usage":true}'


@pytest.mark.parametrize("kind", [BodyKind.CHAT, BodyKind.COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            b'{ "stream": true }',
            b'{"stream_options":' + ASKED + b', "stream": true }',
            id="absent",
        ),
        pytest.param(
            b'{"stream":true,"stream_options" : null }',
            b'{"stream":true,"stream_options" : ' + ASKED + b" }",
            id="null",
        ),
        pytest.param(
            b'{"stream_options":{ }, "stream":true}',
            b'{"stream_options":{"include_usage":true }, "stream":true}',
            id="empty",
        ),
        pytest.param(
            b'{"stream_options":{"include_usage" : false, "x":1.0},"stream":true}',
            b'{"stream_options":{"include_usage" : true, "x":1.0},"stream":true}',
            id="false",
        ),
        pytest.param(
            b'{"stream_options":{"include_usage":null},"stream":true}',
            b'{"stream_options":{"include_usage":true},"stream":true}',
            id="null within",
        ),
        pytest.param(
            b'{"stream_options":{"continuous_usage_stats":true},"stream":true}',
            b'{"stream_options":{"include_usage":true,"continuous_usage_stats":false},"stream":true}',
            id="only all the time, which means nothing alone",
        ),
        pytest.param(
            b'{"stream_options":{"continuous_usage_stats":false},"stream":true}',
            b'{"stream_options":{"include_usage":true,"continuous_usage_stats":false},"stream":true}',
            id="not all the time",
        ),
        pytest.param(
            b'{"stream":true,"x":{"stream_options":{}}}',
            b'{"stream_options":' + ASKED + b',"stream":true,"x":{"stream_options":{}}}',
            id="a namesake deep down stays",
        ),
    ],
)
def test_who_did_not_ask(kind: BodyKind, body: bytes, expected: bytes) -> None:
    """The engine is asked, and no other byte changes."""
    assert apply(body, ask_for_usage(kind, json.loads(body))) == expected


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        pytest.param(BodyKind.CHAT, {}, id="no stream"),
        pytest.param(BodyKind.CHAT, {"stream": False, "stream_options": None}, id="false"),
        pytest.param(BodyKind.CHAT, {"stream": None}, id="null"),
        pytest.param(
            BodyKind.CHAT, {"stream_options": {"include_usage": False}}, id="no stream to ask for"
        ),
        pytest.param(
            BodyKind.CHAT,
            {"stream": True, "stream_options": {"include_usage": True}},
            id="a client that has asked",
        ),
        pytest.param(
            BodyKind.CHAT,
            {
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            },
            id="a client that has asked for more",
        ),
        *(
            pytest.param(kind, {"stream": True}, id=f"{kind}, which always tells")
            for kind in BodyKind
            if kind not in (BodyKind.CHAT, BodyKind.COMPLETIONS)
        ),
    ],
)
def test_whose_body_stays(kind: BodyKind, members: dict[str, Any]) -> None:
    """Because there is nothing to ask."""
    assert ask_for_usage(kind, members) == ()


@pytest.mark.parametrize("kind", BodyKind)
@pytest.mark.parametrize(
    ("members", "param"),
    [
        *(
            pytest.param({"stream": value}, "stream", id=f"stream: {value!r}")
            for value in ["true", "", 1, 0, 1.0, [], {}]
        ),
        *(
            pytest.param(
                {"stream": True, "stream_options": value},
                "stream_options",
                id=f"stream_options: {value!r}",
            )
            for value in ["x", [], True, False, 0]
        ),
        pytest.param({"stream_options": []}, "stream_options", id="options without a stream"),
        *(
            pytest.param(
                {"stream": True, "stream_options": {name: value}},
                f"stream_options.{name}",
                id=f"{name}: {value!r}",
            )
            for name in ("include_usage", "continuous_usage_stats")
            for value in ["true", "off", 1, 0, 0.0, [], {}]
        ),
        pytest.param(
            {
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": 1},
            },
            "stream_options.continuous_usage_stats",
            id="one of two",
        ),
    ],
)
def test_what_engines_read_as_they_like_is_refused(
    kind: BodyKind, members: dict[str, Any], param: str
) -> None:
    """Or a stream would be none to us, and its usage not be asked for."""
    with pytest.raises(InvalidValue) as caught:
        ask_for_usage(kind, members)
    assert caught.value.param == param


@pytest.mark.parametrize("kind", BodyKind)
def test_who_is_not_limited_may_send_what_the_engine_takes(kind: BodyKind) -> None:
    """Nobody has to know what it uses."""
    sent: dict[str, Any] = {
        "messages": [],
        "stream": "true",
        "stream_options": {"include_usage": "off"},
    }
    if kind is BodyKind.MESSAGES:
        sent["max_tokens"] = 1
    body = json.dumps(sent).encode()
    policy = Policy(Limits())
    assert b'"stream": "true"' in policy.check(kind, body, Terms()).body
    with pytest.raises(InvalidValue):
        policy.check(kind, body, Terms(want_usage=True))
