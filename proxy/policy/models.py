"""Which models a key may use."""

from collections.abc import Mapping
from typing import Any

from proxy.errors import InvalidValue, ModelNotFound

# Fields that put an adapter onto a model without its being in `model`: SGLang's and llama.cpp's.
_ADAPTERS = ("lora_path", "lora")

_MAX_TOLD_CHARS = 400
_WHERE = "PROXY_MODELS, or the models of your key"


def check_model(members: Mapping[str, Any], models: frozenset[str]) -> None:
    """Lets a body pass that names one of these models.

    Character for character: what an engine makes of another spelling is its own affair. SGLang reads
    `model:adapter`, vLLM takes an empty name for its first model.

    Raises:
        InvalidValue: It names none, so that the engine would choose; or it picks an adapter besides.
        ModelNotFound: It names another.
    """
    model = members.get("model")
    if model is None or model == "":
        raise InvalidValue(f"model must be given. {_told(models)}", param="model")
    if type(model) is not str:
        raise InvalidValue(f"model must be a string. {_told(models)}", param="model")
    if model not in models:
        # The name stays out of it: up to a whole body of it could come back.
        raise ModelNotFound(
            f"This model does not exist, or is not for you. {_told(models)}", param="model"
        )
    for name in _ADAPTERS:
        if members.get(name) not in (None, False, []):
            raise InvalidValue(
                f"{name} is not accepted where models are limited ({_WHERE}): it picks an adapter.",
                param=name,
            )


def _told(models: frozenset[str]) -> str:
    """The models that may be used, as many as fit into a sentence."""
    names = sorted(models)
    told: list[str] = []
    chars = 0
    for name in names:
        chars += len(name)
        if told and chars > _MAX_TOLD_CHARS:
            told.append(f"{len(names) - len(told)} more")
            break
        told.append(name)
    return f"You may use {', '.join(told) if told else 'no model at all'} ({_WHERE})."
