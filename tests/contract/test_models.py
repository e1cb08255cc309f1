"""Which models a key is shown, and which it may use."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.tables.caps import PATHS
from tests.harness.keys import bearer, key_file
from tests.harness.running import BEARER, CHAT, JSON, Launch, Running
from tests.harness.upstream import response

LIST = {
    "object": "list",
    "data": [
        {"id": "small", "object": "model", "root": "/srv/small", "parent": None, "zz": 1.0},
        {"id": "large", "object": "model", "root": "/srv/large", "parent": None},
        {"id": "sql", "object": "model", "root": "/srv/sql", "parent": "large"},
    ],
}
# Not as anything of ours would write it.
WIRE = json.dumps(LIST, indent=1).encode()

INPUTS: dict[str, dict[str, Any]] = {
    "chat.completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16},
    "completions": {"prompt": "hi", "max_tokens": 16},
    "responses": {"input": "hi", "max_output_tokens": 16},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16},
    "messages.count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "embeddings": {"input": "hi"},
}


async def listed(front: Running, key: dict[str, str] = BEARER) -> bytes:
    """The list that this key is shown."""
    front.upstream.reply = [response(WIRE)]
    answer = await front.ask("GET", "/v1/models", key)
    assert answer.status == 200
    assert answer.header(b"content-length") == str(len(answer.body)).encode()
    assert answer.header(b"content-type") == b"application/json"
    return answer.body


def ids(body: bytes) -> list[str]:
    """The names in it."""
    return [entry["id"] for entry in json.loads(body)["data"]]


async def test_a_key_without_a_limit_is_shown_the_very_bytes(proxy: Launch) -> None:
    """Nothing is read, so nothing can be lost."""
    front = await proxy()
    assert await listed(front) == WIRE


@pytest.mark.parametrize(
    ("settings", "own", "shown"),
    [
        pytest.param({}, "", ["small", "large", "sql"], id="no limit at all"),
        pytest.param({}, 'models = ["small"]', ["small"], id="the key's own"),
        pytest.param({"models": "small, sql"}, "", ["small", "sql"], id="everybody's"),
        pytest.param({"models": "small, sql"}, 'models = ["sql", "large"]', ["sql"], id="of both"),
        pytest.param({"models": "small"}, 'models = ["large"]', [], id="of both: none"),
        pytest.param({}, 'models = ["gone"]', [], id="one that the engine has no more"),
    ],
)
async def test_a_key_is_shown_what_it_may_use_and_may_use_that(
    proxy: Launch, tmp_path: Path, settings: dict[str, Any], own: str, shown: list[str]
) -> None:
    """The list and the refusals say the same."""
    path, (key,) = key_file(tmp_path, own)
    front = await proxy(keys_file=path, **settings)
    assert ids(await listed(front, bearer(key))) == shown
    for entry in LIST["data"]:
        model = entry["id"]  # type: ignore[index]
        body = json.dumps({"model": model, **INPUTS["chat.completions"]}).encode()
        answer = await front.ask("POST", CHAT, {**bearer(key), **JSON}, body)
        assert answer.status == (200 if model in shown else 404)


async def test_a_filtered_list_hides_places_and_other_names(proxy: Launch) -> None:
    """And keeps everything else of what it shows."""
    front = await proxy(models="small,sql")
    body = await listed(front)
    small, sql = json.loads(body)["data"]
    assert small == {"id": "small", "object": "model", "root": "small", "parent": None, "zz": 1.0}
    assert sql == {"id": "sql", "object": "model", "root": "sql", "parent": None}
    assert b"/srv" not in body


async def test_the_strict_profile_hides_places_and_shows_all(proxy: Launch) -> None:
    """To whoever may use all."""
    body = await listed(await proxy(profile="strict"))
    assert ids(body) == ["small", "large", "sql"]
    assert b"/srv" not in body
    assert json.loads(body)["data"][2]["parent"] == "large"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"data":{"small":{"root":"/srv"}}}', id="another form"),
        pytest.param(b"<html>large</html>", id="no JSON"),
        pytest.param(b"[" * 300_000, id="without end"),
        pytest.param(b" " * 1_048_577, id="too long"),
    ],
)
async def test_what_is_no_list_of_models_is_not_passed_on(proxy: Launch, body: bytes) -> None:
    """To whoever may not see all: it could name anything. Others are shown what there is."""
    limited, unlimited = await proxy(models="small"), await proxy()
    for front in (limited, unlimited):
        front.upstream.reply = [response(body)]
    refused = await limited.ask("GET", "/v1/models", BEARER)
    assert (refused.status, refused.json()["error"]["code"]) == (502, "upstream_error")
    assert b"/srv" not in refused.body
    line = await limited.log.of(refused)
    assert (line["status"], line["outcome"], line["level"]) == (502, "upstream_error", "error")
    limited.assert_counted(line)
    assert (await unlimited.ask("GET", "/v1/models", BEARER)).body == body


async def test_an_error_in_place_of_the_list_is_passed_on(proxy: Launch) -> None:
    """It is none of its models."""
    front = await proxy(models="small")
    front.upstream.reply = [response(b'{"error":"starting"}', status=503)]
    answer = await front.ask("GET", "/v1/models", BEARER)
    assert (answer.status, answer.body) == (503, b'{"error":"starting"}')


@pytest.mark.parametrize("endpoint", list(PATHS))
@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        pytest.param({"model": "large"}, 404, "model_not_found", id="another model"),
        pytest.param({"model": "SMALL"}, 404, "model_not_found", id="another spelling"),
        pytest.param({"model": "small:sql"}, 404, "model_not_found", id="SGLang's adapters"),
        pytest.param({}, 400, "invalid_value", id="no model"),
        pytest.param({"model": None}, 400, "invalid_value", id="null"),
        pytest.param({"model": ""}, 400, "invalid_value", id="an empty name"),
        pytest.param({"model": ["small"]}, 400, "invalid_value", id="a list"),
        pytest.param(
            {"model": "small", "lora": [{"id": 0}]}, 400, "invalid_value", id="an adapter"
        ),
    ],
)
async def test_every_endpoint_holds_to_the_models(
    proxy: Launch, endpoint: str, model: dict[str, Any], status: int, code: str
) -> None:
    """And to the names character for character; the engine is not asked, which would choose."""
    front = await proxy(models="small,tiny")
    body = json.dumps({**model, **INPUTS[endpoint]}).encode()
    refused = await front.ask("POST", PATHS[endpoint], {**BEARER, **JSON}, body)
    await front.assert_refused(refused, status, code)
    error = refused.json()["error"]
    assert "PROXY_MODELS" in error["message"]
    if not endpoint.startswith("messages"):
        assert error["param"] == ("lora" if "lora" in model else "model")
    elif status == 404:
        assert error["type"] == "not_found_error"


@pytest.mark.parametrize("endpoint", list(PATHS))
async def test_a_model_that_may_be_used_passes_untouched(proxy: Launch, endpoint: str) -> None:
    """The very bytes."""
    front = await proxy(models="small")
    body = json.dumps({"model": "small", **INPUTS[endpoint]}, indent=2).encode()
    answer = await front.ask("POST", PATHS[endpoint], {**BEARER, **JSON}, body)
    assert answer.status == 200
    assert front.upstream.requests[0].body == body


async def test_a_refusal_names_no_model_that_is_not_the_keys(proxy: Launch, tmp_path: Path) -> None:
    """What others may use is theirs to know."""
    path, (one, other) = key_file(tmp_path, 'models = ["secret-a"]', 'models = ["secret-b"]')
    front = await proxy(keys_file=path, models="secret-a,secret-b,secret-c")
    body = json.dumps({"model": "secret-b", **INPUTS["chat.completions"]}).encode()
    refused = await front.ask("POST", CHAT, {**bearer(one), **JSON}, body)
    assert refused.status == 404
    assert b"secret-a" in refused.body
    assert b"secret-b" not in refused.body
    assert b"secret-c" not in refused.body
    assert (await front.ask("POST", CHAT, {**bearer(other), **JSON}, body)).status == 200
    assert "secret" not in front.log.text


async def test_without_a_limit_the_engine_decides(proxy: Launch) -> None:
    """No model, another form of it: what the engine makes of it is its own affair."""
    front = await proxy()
    for model in ({}, {"model": None}, {"model": ["x"]}, {"model": "x"}):
        body = json.dumps({**model, **INPUTS["chat.completions"]}).encode()
        assert (await front.chat(body)).status == 200
