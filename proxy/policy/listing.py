"""The model list, where it may not be relayed byte for byte.

Engines tell more of a model than its name: where it lies on disk (`root`), how its server was started
(a llama.cpp router's `status`), and names of other ones (`parent`, `aliases`). What nobody here knows
of a model stays, because clients may; of the list itself nothing does where models are left out.
"""

import json
from typing import Any

# Of a llama.cpp router: where a model lies, and the command line of its server.
_PLACES = ("path",)
_STATUS_PLACES = ("args", "preset")

# What a list of OpenAI's has. llama.cpp adds the same models in Ollama's form.
_LIST_MEMBERS = ("object", "data")


def filter_models(body: bytes, models: frozenset[str] | None, redact: bool) -> bytes:
    """A model list that shows these models only, and not where they lie.

    Args:
        body: What the upstream said.
        models: What may be shown; None is all.
        redact: Whether places are hidden although every model may be shown.

    Returns:
        The list, or this very body where nothing is to be hidden.

    Raises:
        ValueError: Not a model list. What is not understood is not relayed.
    """
    if models is None and not redact:
        return body
    listing = _parse(body)
    if models is not None:
        listing = {name: listing[name] for name in listing if name in _LIST_MEMBERS}
        listing["data"] = [entry for entry in listing["data"] if entry["id"] in models]
        for entry in listing["data"]:
            _hide_others(entry, models)
    for entry in listing["data"]:
        _hide_places(entry)
    return json.dumps(listing, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _parse(body: bytes) -> dict[str, Any]:
    try:
        listing = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deep") from None
    entries = listing.get("data") if isinstance(listing, dict) else None
    # Each must have a name to judge it by.
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries
    ):
        raise ValueError("not a model list")
    found: dict[str, Any] = listing
    return found


def _hide_others(entry: dict[str, Any], models: frozenset[str]) -> None:
    """The base of an adapter, say, may not be for whoever may use the adapter."""
    if "parent" in entry and not _may_be_shown(entry["parent"], models):
        entry["parent"] = None
    if "aliases" in entry:
        aliases = entry["aliases"] if isinstance(entry["aliases"], list) else []
        entry["aliases"] = [alias for alias in aliases if _may_be_shown(alias, models)]


def _may_be_shown(name: object, models: frozenset[str]) -> bool:
    return isinstance(name, str) and name in models


def _hide_places(entry: dict[str, Any]) -> None:
    if "root" in entry:
        entry["root"] = entry["id"]
    for name in _PLACES:
        entry.pop(name, None)
    if isinstance(status := entry.get("status"), dict):
        for name in _STATUS_PLACES:
            status.pop(name, None)
