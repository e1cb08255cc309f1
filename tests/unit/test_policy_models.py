"""Which bodies name a model that may be used."""

import pytest

from proxy.errors import InvalidValue, ModelNotFound
from proxy.policy.models import check_model

MODELS = frozenset({"org/Small-7B", "sql", "Ünïcode"})


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_model_of_the_key_passes(model: str) -> None:
    """Whatever else is in the body."""
    check_model({"model": model, "models": ["x"], "messages": [{"model": "x"}]}, MODELS)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("large", id="another"),
        pytest.param("org/small-7b", id="another case"),
        pytest.param(" sql", id="a space before"),
        pytest.param("sql\n", id="a line break behind"),
        pytest.param("sql\0", id="a NUL behind"),
        pytest.param("sq", id="the beginning of one"),
        pytest.param("sql2", id="one and more"),
        pytest.param("sql:adapter", id="SGLang's way to pick an adapter"),
        pytest.param("sql@main", id="a revision, for transformers"),
        pytest.param("./sql", id="a path"),
        pytest.param("org\uff0fSmall-7B", id="a slash of another width"),
        pytest.param("U\u0308ni\u0308code", id="the same in another normal form"),
        pytest.param("PROXY_MODELS", id="a word of the message"),
    ],
)
def test_another_model_is_not_found(model: str) -> None:
    """Character for character; the message has what may be used, and not what was asked for."""
    with pytest.raises(ModelNotFound) as caught:
        check_model({"model": model}, MODELS)
    refusal = caught.value
    assert (refusal.status, refusal.param) == (404, "model")
    assert "org/Small-7B, sql, Ünïcode" in refusal.message
    assert "PROXY_MODELS" in refusal.message
    assert "adapter" not in refusal.message


@pytest.mark.parametrize(
    "members",
    [
        pytest.param({}, id="none"),
        pytest.param({"model": None}, id="null"),
        pytest.param({"model": ""}, id="the empty one, which is vLLM's default"),
        pytest.param({"Model": "sql"}, id="under another name"),
        pytest.param({"model": ["sql"]}, id="a list"),
        pytest.param({"model": {"id": "sql"}}, id="an object"),
        pytest.param({"model": 0}, id="a number"),
        pytest.param({"model": True}, id="a boolean"),
    ],
)
def test_a_model_must_be_named(members: dict[str, object]) -> None:
    """Or the engine would choose one, which the key may not be for."""
    with pytest.raises(InvalidValue) as caught:
        check_model(members, MODELS | {""})
    assert caught.value.param == "model"


@pytest.mark.parametrize("name", ["lora_path", "lora"])
@pytest.mark.parametrize(
    ("value", "passes"),
    [
        pytest.param(None, True, id="null"),
        pytest.param(False, True, id="false"),
        pytest.param([], True, id="an empty list"),
        pytest.param("", False, id="an empty name, for which an engine may have its own"),
        pytest.param("sql", False, id="a name"),
        pytest.param([{"id": 0, "scale": 1.0}], False, id="llama.cpp's form"),
        pytest.param(["sql"], False, id="a name for each of several prompts"),
    ],
)
def test_an_adapter_is_a_model_too(name: str, value: object, *, passes: bool) -> None:
    """One that is picked besides `model`."""
    members = {"model": "sql", name: value}
    if passes:
        check_model(members, MODELS)
        return
    with pytest.raises(InvalidValue) as caught:
        check_model(members, MODELS)
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("models", "told"),
    [
        pytest.param(set(), "no model at all", id="none"),
        pytest.param({"a"}, "may use a (", id="one"),
        pytest.param({"x" * 256}, f"may use {'x' * 256} (", id="the longest one"),
        pytest.param({c * 200 for c in "ab"}, f"{'b' * 200} (", id="as many as fit"),
        pytest.param({c * 200 for c in "abc"}, f"{'b' * 200}, 1 more (", id="one too many"),
        pytest.param({f"m{n:03}" for n in range(500)}, "m099, 400 more (", id="many too many"),
    ],
)
def test_as_many_models_are_told_as_fit(models: set[str], told: str) -> None:
    """In a message that stays short."""
    with pytest.raises(ModelNotFound) as caught:
        check_model({"model": "zzz"}, frozenset(models))
    assert told in caught.value.message
    assert len(caught.value.message) < 1_000
