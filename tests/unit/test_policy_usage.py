"""Asking the engine for the usage of a stream."""

import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.policy.edit import apply
from proxy.policy.usage import ask_for_usage

ODD: list[Any] = ["true", 1, 0, 0.0, "false", [], {}]

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
            b'{"stream_options":{"continuous_usage_stats":1},"stream":true}',
            b'{"stream_options":{"include_usage":true,"continuous_usage_stats":false},"stream":true}',
            id="all the time, in another type",
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
        pytest.param(BodyKind.CHAT, {"stream": 1}, id="a stream to some only"),
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
        pytest.param(BodyKind.CHAT, {"stream": True, "stream_options": []}, id="a list"),
        pytest.param(BodyKind.CHAT, {"stream": True, "stream_options": "x"}, id="a text"),
        pytest.param(BodyKind.CHAT, {"stream": True, "stream_options": False}, id="a truth"),
        *(
            pytest.param(
                BodyKind.CHAT,
                {"stream": True, "stream_options": {"include_usage": value}},
                id=f"{value!r}, which vLLM reads as it likes",
            )
            for value in ODD
        ),
        *(
            pytest.param(kind, {"stream": True}, id=f"{kind}, which always tells")
            for kind in BodyKind
            if kind not in (BodyKind.CHAT, BodyKind.COMPLETIONS)
        ),
    ],
)
def test_whose_body_stays(kind: BodyKind, members: dict[str, Any]) -> None:
    """Because there is nothing to ask, or nothing that we would understand."""
    assert ask_for_usage(kind, members) == ()
