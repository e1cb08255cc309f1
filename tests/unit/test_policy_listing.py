"""What a model list shows to whom."""

import json
from typing import Any

import pytest

from proxy.policy.listing import filter_models

VLLM = {
    "object": "list",
    "data": [
        {
            "id": "small",
            "object": "model",
            "owned_by": "vllm",
            "root": "/home/me/models/secret",
            "parent": None,
            "max_model_len": 8192,
            "permission": [{"id": "modelperm-1", "allow_sampling": True, "organization": "*"}],
            "zz": [1],
        },
        {"id": "large", "root": "/home/me/models/large", "parent": None},
        {"id": "large-sql", "root": "/home/me/lora/sql", "parent": "large"},
    ],
}
ROUTER = {
    "data": [
        {
            "id": "small",
            "aliases": ["tiny", "hidden-alias", 7],
            "path": "/models/small.gguf",
            "status": {
                "value": "loaded",
                "args": ["llama-server", "--model", "/models/small.gguf"],
                "preset": "[small]\nmodel = /models/small.gguf\n",
            },
        },
        {"id": "large", "aliases": []},
    ],
    "object": "list",
    "models": [{"name": "small", "model": "small"}, {"name": "large", "model": "large"}],
}


def shown(listing: object, models: set[str] | None, *, redact: bool = False) -> Any:
    """The filtered list, parsed."""
    allowed = None if models is None else frozenset(models)
    return json.loads(filter_models(json.dumps(listing).encode(), allowed, redact))


def test_the_path_on_disk_gives_way_to_the_id() -> None:
    """Everything else stays, unknown members too."""
    first, second, adapter = shown(VLLM, None, redact=True)["data"]
    assert first == {**VLLM["data"][0], "root": "small"}  # type: ignore[dict-item]
    assert second == {"id": "large", "root": "large", "parent": None}
    assert adapter == {"id": "large-sql", "root": "large-sql", "parent": "large"}


def test_a_list_of_which_all_may_be_shown_is_not_looked_at() -> None:
    """The very same bytes, whatever they are."""
    body = b'{"data": [ ]  , "x":1.0}'
    assert filter_models(body, None, redact=False) is body
    junk = b"\xff junk"
    assert filter_models(junk, None, redact=False) is junk


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize(
    ("models", "ids"),
    [
        pytest.param({"small"}, ["small"], id="one"),
        pytest.param({"large-sql", "small"}, ["small", "large-sql"], id="two, in the list's order"),
        pytest.param({"small", "large", "large-sql"}, ["small", "large", "large-sql"], id="all"),
        pytest.param({"SMALL", "small ", "smal"}, [], id="none of another spelling"),
        pytest.param({"modelperm-1", "vllm", "/home/me/models/secret"}, [], id="no other member"),
        pytest.param(set(), [], id="none at all"),
    ],
)
def test_a_key_is_shown_what_it_may_use(models: set[str], ids: list[str], *, redact: bool) -> None:
    """With its other members, in the list's order, and never with a path."""
    listing = shown(VLLM, models, redact=redact)
    assert listing["object"] == "list"
    assert [entry["id"] for entry in listing["data"]] == ids
    assert [entry["root"] for entry in listing["data"]] == ids
    assert "/home" not in json.dumps(listing)
    if "small" in ids:
        assert listing["data"][0]["permission"] == VLLM["data"][0]["permission"]  # type: ignore[index]
        assert listing["data"][0]["zz"] == [1]


@pytest.mark.parametrize(
    ("models", "parent"),
    [
        pytest.param({"large-sql"}, None, id="hidden"),
        pytest.param({"large-sql", "large"}, "large", id="shown"),
    ],
)
def test_the_base_of_an_adapter_is_named_to_whoever_may_use_it(
    models: set[str], parent: str | None
) -> None:
    """An adapter may be for somebody for whom its base is not."""
    assert shown(VLLM, models)["data"][-1]["parent"] == parent


def test_no_other_model_is_named_by_another_way() -> None:
    """llama.cpp names them in a second list, in aliases, and in command lines."""
    listing = shown(ROUTER, {"small", "tiny"})
    (entry,) = listing["data"]
    assert entry == {"id": "small", "aliases": ["tiny"], "status": {"value": "loaded"}}
    assert set(listing) == {"data", "object"}


def test_a_router_shows_no_path_in_the_strict_profile_either() -> None:
    """Names and aliases stay: all models may be used."""
    listing = shown(ROUTER, None, redact=True)
    assert listing["data"][0]["aliases"] == ROUTER["data"][0]["aliases"]  # type: ignore[index]
    assert listing["models"] == ROUTER["models"]
    assert "gguf" not in json.dumps(listing)


@pytest.mark.parametrize(
    "member",
    [
        pytest.param({"parent": ["large"]}, id="a parent that is no string"),
        pytest.param({"parent": {"id": "large"}}, id="a parent that is an object"),
        pytest.param({"aliases": "large"}, id="aliases that are no list"),
        pytest.param({"aliases": [["large"], {"x": "large"}]}, id="aliases that are no strings"),
    ],
)
def test_a_name_in_an_unknown_form_is_not_shown(member: dict[str, object]) -> None:
    """It could name anything."""
    listing = shown({"data": [{"id": "small", **member}]}, {"small"})
    assert "large" not in json.dumps(listing)


def test_what_an_upstream_says_of_a_status_in_another_form_stays() -> None:
    """It holds no command line that we know of."""
    data = [{"id": "small", "status": "loaded"}]
    assert shown({"data": data}, {"small"}) == {"data": data}


@pytest.mark.parametrize("models", [None, {"m"}])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"data":{}}', id="data that is no list"),
        pytest.param(b'{"object":"list"}', id="no data"),
        pytest.param(b'{"data":["m"]}', id="a model that is no object"),
        pytest.param(b'{"data":[{"root":"/x"}]}', id="a model without an id"),
        pytest.param(b'{"data":[{"id":1}]}', id="an id that is no string"),
        pytest.param(b'{"data":[{"id":"m"},{"id":null}]}', id="one of two ids that is no string"),
        pytest.param(b'{"data":[{"id":"m","x":NaN}]}', id="what is no JSON"),
        pytest.param(b'{"data":[{"id":"m","x":1e999}]}', id="a number that cannot be written"),
        pytest.param(b'{"data":[{"id":"m","x":"\\ud800"}]}', id="half a surrogate pair"),
        pytest.param(b'{"data":[{"id":"m","x":"\xff"}]}', id="what is no UTF-8"),
        pytest.param(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", id="too deep to be read"),
    ],
)
def test_what_is_not_a_model_list_is_not_relayed(body: bytes, models: set[str] | None) -> None:
    """Fail closed: it may name a path, or another model, in a place that we do not know."""
    with pytest.raises(ValueError):  # noqa: PT011 (json's own message varies)
        filter_models(body, None if models is None else frozenset(models), redact=True)
