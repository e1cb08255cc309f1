"""Sampling parameters that have ended or filled up an engine, and how far they may go.

llama.cpp's server reads them as 32-bit floats and trusts them: where the arithmetic leaves that
range no token is left to pick, an assertion fails, and the server is gone with everybody in it. Each
bound is orders of magnitude from what anybody uses, and from where it was seen to happen (live).
Other types than JSON numbers pass: that server refuses them itself, and nobody else minds.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from proxy.errors import InvalidValue

_MAX_MAGNITUDE = 1e6

# Logits are divided by it: 1e-10 was enough with a bias of 1e30. Zero is greedy, and apart.
_MIN_TEMPERATURE = 1e-6

# Each is added to a logit, or multiplied with a count and added. -3e38 ended the server.
_ADDED = (
    "temperature",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "repeat_penalty",
    "dry_multiplier",
)

# Each is memory of so many tokens, taken at once: 2,147,483,647 of them took 8 GB and 12 s.
_REMEMBERED = ("repeat_last_n", "dry_penalty_last_n")
_MAX_REMEMBERED = 131_072

# 800 times `penalties` took 3 GB, 9,000 times another one 37 ms a token.
_MAX_SAMPLERS = 64

# Without an end of text there is nothing left to pick where a structure is complete.
_STRUCTURES = ("response_format", "json_schema", "grammar")


# All that is looked at, but for the temperature: most requests have no other.
_UNUSUAL = frozenset(
    {*_ADDED, *_REMEMBERED, "samplers", "logit_bias", "ignore_eos"} - {"temperature"}
)


def check_sampling(body: Mapping[str, Any]) -> None:
    """Looks at the top level of one body.

    Raises:
        InvalidValue: Naming the field and its bound.
    """
    if _UNUSUAL.isdisjoint(body):
        temperature = body.get("temperature")
        if temperature is None:
            return
        kind = type(temperature)
        if (kind is float or kind is int) and (
            temperature == 0 or _MIN_TEMPERATURE <= temperature <= _MAX_MAGNITUDE
        ):
            return
    _check_all(body)


def _check_all(body: Mapping[str, Any]) -> None:
    for name in _ADDED:
        if name in body and _magnitude(body[name]) > _MAX_MAGNITUDE:
            raise InvalidValue(f"{name} must be within ±{_MAX_MAGNITUDE:,.0f}.", param=name)
    if 0 < _magnitude(body.get("temperature")) < _MIN_TEMPERATURE:
        raise InvalidValue(
            f"temperature must be 0 or at least {_MIN_TEMPERATURE:.6f}.", param="temperature"
        )
    for name in _REMEMBERED:
        if name in body and _magnitude(body[name]) > _MAX_REMEMBERED:
            raise InvalidValue(f"{name} must be at most {_MAX_REMEMBERED:,}.", param=name)
    samplers = body.get("samplers")
    if type(samplers) in (str, list) and len(samplers) > _MAX_SAMPLERS:  # type: ignore[arg-type]
        raise InvalidValue(f"samplers must be at most {_MAX_SAMPLERS}.", param="samplers")
    if any(_magnitude(bias) > _MAX_MAGNITUDE for bias in _biases(body.get("logit_bias"))):
        raise InvalidValue(
            f"Each logit_bias must be within ±{_MAX_MAGNITUDE:,.0f}.", param="logit_bias"
        )
    if body.get("ignore_eos") not in (None, False):
        _check_end(body)


def _check_end(body: Mapping[str, Any]) -> None:
    for name in _STRUCTURES:
        value = body.get(name)
        if value is None or (name == "response_format" and _is_text(value)):
            continue
        raise InvalidValue(
            f"ignore_eos and {name} exclude each other: a structure has an end.", param="ignore_eos"
        )


def _is_text(response_format: object) -> bool:
    return type(response_format) is dict and response_format.get("type") == "text"


def _biases(value: object) -> Iterable[object]:
    """The numbers of a logit bias: an object of them, or llama.cpp's list of pairs."""
    if type(value) is dict:
        return value.values()
    if type(value) is list:
        return (pair[-1] for pair in value if type(pair) is list and pair)
    return ()


def _magnitude(value: object) -> float:
    return abs(value) if type(value) is int or type(value) is float else 0.0
