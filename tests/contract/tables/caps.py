"""What is too much, and what is just not, as rows: for the recording upstream and for real engines."""

from typing import Any

import pytest

CAP = 10_000
ROLES = ["system", "developer", "user", "assistant", "tool", "function"]
PATHS = {
    "chat.completions": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "messages.count_tokens": "/v1/messages/count_tokens",
    "embeddings": "/v1/embeddings",
}


PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="


def user(content: object) -> dict[str, Any]:
    """A body with one user message."""
    return {"messages": [{"role": "user", "content": content}]}


AT_THE_CAP = [
    pytest.param("chat.completions", lambda n: user("é" * n), id="one message"),
    pytest.param(
        "chat.completions",
        lambda n: {
            "messages": [
                *({"role": role, "content": "x" * 1_000} for role in ROLES),
                {"role": "user", "content": "x" * (n - 6_000)},
            ]
        },
        id="six roles",
    ),
    pytest.param(
        "chat.completions",
        lambda n: user([{"type": "text", "text": "x" * 5_000}, {"text": "x" * (n - 5_000)}]),
        id="text parts",
    ),
    pytest.param(
        "chat.completions",
        lambda n: {"messages": [], "zz": "x" * (n - 10)},
        id="unknown fields",
    ),
    pytest.param(
        "completions", lambda n: {"prompt": ["x" * 5_000, "x" * (n - 5_000)]}, id="two prompts"
    ),
    pytest.param("responses", lambda n: {"input": "x" * n}, id="a response's input"),
    pytest.param(
        "messages", lambda n: {"system": "x", **user("x" * (n - 1))}, id="an Anthropic message"
    ),
    pytest.param("messages.count_tokens", lambda n: user("x" * n), id="tokens to count"),
    pytest.param("embeddings", lambda n: {"input": ["x" * n, "y"]}, id="one of two inputs"),
]

WAYS_AROUND = [
    pytest.param(
        "chat.completions",
        {"messages": [{}] * 69_000},
        "body_too_complex",
        id="69,000 messages",
    ),
    pytest.param(
        "chat.completions",
        {"messages": [{"role": "user"}] * 3_000},
        "context_length_exceeded",
        id="3,000 empty messages",
    ),
    pytest.param(
        "messages",
        user([{"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1] * 8_000}}]),
        "context_length_exceeded",
        id="8,000 numbers in a tool's input",
    ),
    pytest.param("completions", {"prompt": [1.0, 2.0]}, "invalid_value", id="ids written as 1.0"),
    pytest.param("completions", {"prompt": [True]}, "invalid_value", id="ids that are true"),
    pytest.param("completions", {"prompt": ["a"] * 9}, "too_many_inputs", id="nine prompts"),
    pytest.param("completions", {"prompt": ["a"] * 5_000}, "too_many_inputs", id="5,000 prompts"),
    pytest.param("embeddings", {"input": ["a"] * 2_049}, "too_many_inputs", id="2,049 inputs"),
    pytest.param("chat.completions", {**user("hi"), "n": 64}, "too_many_choices", id="64 choices"),
    pytest.param(
        "chat.completions",
        {**user("hi"), "max_tokens": "99999"},
        "invalid_value",
        id="a number that is a string",
    ),
    pytest.param(
        "chat.completions", {**user("hi"), "max_tokens": -1}, "invalid_value", id="minus one"
    ),
    pytest.param(
        "chat.completions",
        {**user("hi"), "kv_transfer_params": {"prompt_token_ids": [1] * 1_500}},
        "field_refused",
        id="a smuggled prompt",
    ),
    pytest.param(
        "chat.completions",
        {**user("hi"), "chat_template": "{{ 1 }}"},
        "field_refused",
        id="a template",
    ),
    pytest.param(
        "chat.completions",
        {**user("hi"), "tools": [{"d": "x" * 64_000}]},
        "tools_too_large",
        id="large tools",
    ),
    pytest.param(
        "chat.completions",
        {**user("hi"), "metadata": {"d": "x" * 16_000}},
        "parameters_too_large",
        id="large metadata",
    ),
    pytest.param(
        "chat.completions",
        user([{"type": "image_url", "image_url": {"url": "http://10.0.0.5/"}}]),
        "media_refused",
        id="an image to fetch",
    ),
    pytest.param(
        "chat.completions",
        user([{"type": "image_url", "image_url": {"url": PNG}}] * 9),
        "media_refused",
        id="nine images",
    ),
]

NO_STRICT_JSON = [
    pytest.param(b"", "invalid_json", 400, id="an empty body"),
    pytest.param(b"[]", "invalid_json", 400, id="an array"),
    pytest.param(b'{"messages":[]} x', "invalid_json", 400, id="bytes behind the object"),
    pytest.param(b'{"max_tokens":1,"max_tokens":99999}', "invalid_json", 400, id="a key twice"),
    pytest.param(b'{"max_tokens":NaN}', "invalid_json", 400, id="NaN"),
    pytest.param(b'{"a":"\\ud83d"}', "invalid_json", 400, id="a lone surrogate"),
    pytest.param(b'{"a":"caf\xe9"}', "invalid_json", 400, id="latin-1"),
    pytest.param(b"\xef\xbb\xbf{}", "invalid_json", 400, id="a byte order mark"),
    pytest.param(b"\x28\xb5\x2f\xfd\x00", "invalid_json", 400, id="zstd without a header"),
    pytest.param(
        b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "body_too_complex", 400, id="deep"
    ),
    pytest.param(b'{"a":"' + b"x" * 2_097_145 + b'"}', "body_too_large", 413, id="one byte more"),
]

ENCODINGS = [
    ("gzip", 415),
    ("zstd", 415),
    ("br", 415),
    ("deflate", 415),
    ("gzip, identity", 415),
    ("identity", 200),
]

CONTENT_TYPES = [
    pytest.param("application/json", 200, id="plain"),
    pytest.param("application/json; charset=utf-8", 200, id="with a charset"),
    pytest.param("APPLICATION/JSON", 200, id="in capitals"),
    pytest.param("text/plain", 415, id="text"),
    pytest.param("application/x-www-form-urlencoded", 415, id="what curl -d sends"),
    pytest.param("multipart/form-data; boundary=x", 415, id="a form"),
    pytest.param("application/json; charset=utf-16", 415, id="another charset"),
    pytest.param(None, 415, id="none"),
]
