"""The model list, where it may not be relayed byte for byte."""

import json


def redact_models(body: bytes) -> bytes:
    """A model list without paths of the server's disk: each ``root`` becomes the model's id.

    Raises:
        ValueError: Not a model list. What is not understood is not relayed.
    """
    listing = json.loads(body)
    models = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(models, list) or not all(
        isinstance(model, dict) and isinstance(model.get("id"), str) for model in models
    ):
        raise ValueError("not a model list")
    for model in models:
        if "root" in model:
            model["root"] = model["id"]
    return json.dumps(listing, ensure_ascii=False, separators=(",", ":")).encode()
