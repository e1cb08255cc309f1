"""The model list of the strict profile."""

import json

import pytest

from proxy.policy.listing import redact_models


def test_the_path_on_disk_gives_way_to_the_id() -> None:
    """Everything else stays, unknown members too."""
    listing = {
        "object": "list",
        "data": [
            {"id": "m", "root": "/home/me/models/secret", "max_model_len": 8192, "zz": [1]},
            {"id": "adapter", "parent": "m"},
        ],
    }
    redacted = json.loads(redact_models(json.dumps(listing).encode()))
    assert redacted["data"][0] == {"id": "m", "root": "m", "max_model_len": 8192, "zz": [1]}
    assert redacted["data"][1] == listing["data"][1]
    assert b"/home" not in redact_models(json.dumps(listing).encode())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"data":{}}', id="data that is no list"),
        pytest.param(b'{"data":["m"]}', id="a model that is no object"),
        pytest.param(b'{"data":[{"root":"/x"}]}', id="a model without an id"),
        pytest.param(b'{"data":[{"id":1}]}', id="an id that is no string"),
    ],
)
def test_what_is_not_a_model_list_is_not_relayed(body: bytes) -> None:
    """Fail closed: it may name a path in a place that we do not know."""
    with pytest.raises(ValueError):  # noqa: PT011 (json's own message varies)
        redact_models(body)
