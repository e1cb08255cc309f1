"""The strict reading of a request body.

The policy must see what the upstream will see. So whatever two JSON parsers could read differently
is refused here: duplicate keys, NaN, lone surrogates, a byte order mark, deep nesting.
"""

import re
from typing import Any

import jiter

from proxy.errors import BodyTooComplex, InvalidJson

MAX_DEPTH = 100

# Below this size no structure is costly enough to matter (measured: 64 KiB of `{}` is 8 ms).
_COMPLEX_BYTES = 64 * 1024

# What a body within the other caps may need besides prompt and schema.
_STRUCTURE_SLACK = 10_000
_STRUCTURE_PER_COLON = 3

_POSITION = re.compile(r" at (line \d+ column \d+)$")


def parse(body: bytes, *, max_structure: int) -> dict[str, Any]:
    """The body as a JSON object.

    Args:
        body: Raw bytes, identity encoding.
        max_structure: Commas and opening brackets allowed in a body of more than 64 KiB, and a third
            as many colons, counted in the raw bytes, which takes 3 ms for 2 MB where the parse would
            hold the loop for 500.

    Raises:
        InvalidJson: Not one strict JSON object in UTF-8.
        BodyTooComplex: Too much or too deep structure.
    """
    if len(body) > _COMPLEX_BYTES:
        structure = body.count(b",") + body.count(b"[") + body.count(b"{")
        if structure > max_structure:
            raise _too_complex(structure, "commas and opening brackets", max_structure)
        # Keys cost most: 173,000 in one object took 150 ms to parse, as many numbers take 7.
        max_colons = max_structure // _STRUCTURE_PER_COLON
        if (colons := body.count(b":")) > max_colons:
            raise _too_complex(colons, "colons", max_colons)
    try:
        value = jiter.from_json(
            body, catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="keys"
        )
    except ValueError as exc:
        raise _unreadable(str(exc)) from None
    if type(value) is not dict:
        raise InvalidJson("The body must be a JSON object.")
    # A body with no more brackets than levels cannot be too deep: most need no look at all.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise BodyTooComplex(f"The body is nested more than {MAX_DEPTH} levels deep.")
    return value


def max_structure(max_prompt_chars: int, max_schema_chars: int) -> int:
    """The structure bound that no body within these caps comes near."""
    return max_prompt_chars + max_schema_chars + _STRUCTURE_SLACK


def deeper_than(value: object, levels: int) -> bool:
    """Whether arrays and objects are nested more than so many levels. Iterative: no recursion."""
    layer: list[Any] = [value] if type(value) in (dict, list) else []
    for _ in range(levels):
        if not layer:
            return False
        layer = [
            child
            for node in layer
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    return bool(layer)


def _too_complex(number: int, what: str, limit: int) -> BodyTooComplex:
    return BodyTooComplex(
        f"The body has {number:,} {what}; a body of more than {_COMPLEX_BYTES:,} bytes may have "
        f"{limit:,} (from PROXY_MAX_PROMPT_CHARS and PROXY_MAX_SCHEMA_CHARS)."
    )


def _unreadable(message: str) -> InvalidJson | BodyTooComplex:
    """The parser's complaint in our words. Its own may quote the body, without any bound."""
    found = _POSITION.search(message)
    where = f" ({found[1]})" if found else ""
    if "duplicate key" in message:
        return InvalidJson(f"The body has the same key twice in one object{where}.")
    if "recursion limit" in message:
        return BodyTooComplex(f"The body is nested more than {MAX_DEPTH} levels deep{where}.")
    if "surrogate" in message or "hex escape" in message:
        return InvalidJson(f"The body has a broken or unpaired surrogate escape{where}.")
    if "EOF" in message:
        return InvalidJson("The body is empty or ends before its JSON does.")
    if "code point" in message:
        return InvalidJson(f"The body is not valid UTF-8{where}.")
    return InvalidJson(f"The body is not strict JSON{where}.")
