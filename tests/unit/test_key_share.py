"""How many places one key may hold."""

import pytest

from proxy.app import capacity
from proxy.config import load

KEYS = {"PROXY_API_KEYS": "k" * 32}


@pytest.mark.parametrize(
    ("settings", "keys", "share"),
    [
        pytest.param({}, 1, 32, id="one alone has all"),
        pytest.param({}, 2, 24, id="one of several has three quarters"),
        pytest.param({"PROXY_MAX_INFLIGHT": "5"}, 2, 3, id="rounded down"),
        pytest.param({"PROXY_MAX_INFLIGHT": "1"}, 2, 1, id="and never none"),
        pytest.param({"PROXY_ALLOW_ANONYMOUS": "true"}, 1, 24, id="strangers are several"),
        pytest.param({"PROXY_KEY_MAX_INFLIGHT": "7"}, 1, 7, id="as it is set"),
    ],
)
def test_the_share_of_one_key(settings: dict[str, str], keys: int, share: int) -> None:
    """By how many there are, unless it is set."""
    assert capacity.key_share(load(KEYS | settings), keys) == share
