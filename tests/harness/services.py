"""What compose makes of its files, and each service in each combination of them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import compose
from tests.harness.compose import Tagged

RAW = compose.files()
FILES = compose.with_defaults(RAW)
BASE = FILES["compose.yaml"]
PROXY = BASE["services"]["proxy"]
VLLM = BASE["services"]["vllm"]
HOST = FILES["compose.host.yaml"]["services"]["proxy"]
DOCKERFILE = (compose.DOCKER / "Dockerfile").read_text("utf-8")

COMBINATIONS = (
    (),
    ("demo",),
    ("tunnel",),
    ("uds",),
    ("uds", "demo"),
    ("host",),
    ("monitoring",),
)
"""The overlays that are laid over compose.yaml together."""


def together(overlays: tuple[str, ...]) -> Any:
    """What compose makes of these files."""
    document = BASE
    for overlay in overlays:
        document = compose.merged(document, FILES[f"compose.{overlay}.yaml"])
    return document


def services() -> Iterator[Any]:
    """Each service in each combination, as a row: the overlays, its name, what it is."""
    for overlays in COMBINATIONS:
        for name, service in together(overlays)["services"].items():
            yield pytest.param(overlays, name, service, id="-".join((*overlays, name)))


def everywhere(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value in a document with the path of keys that leads to it."""
    yield path, value
    match value:
        case dict():
            for key, inner in value.items():
                yield from everywhere(inner, f"{path}.{key}")
        case list():
            for inner in value:
                yield from everywhere(inner, path)
        case Tagged():
            yield from everywhere(value.value, path)


def found(key: str) -> list[tuple[str, Any]]:
    """The values of this key wherever it is, each with its file and path."""
    return [
        (f"{file}{path}", value)
        for file, document in FILES.items()
        for path, value in everywhere(document)
        if path.rpartition(".")[2] == key
    ]


EVERY_SERVICE = pytest.mark.parametrize(("overlays", "name", "service"), list(services()))
