"""How many places and how much memory one key may hold."""

from datetime import UTC, datetime, timedelta

import pytest

from proxy.app import admission
from proxy.app.clocks import Clocks
from proxy.auth.keys import KeyRecord, KeyStore
from proxy.config import load
from proxy.errors import ProxyError

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
    assert admission.key_share(load(KEYS | settings), keys) == share


@pytest.mark.parametrize(
    ("settings", "keys", "own", "strangers"),
    [
        pytest.param({}, 1, 4096, 3072, id="one alone has all"),
        pytest.param({}, 2, 3072, 3072, id="one of several has three quarters"),
        pytest.param(
            {"PROXY_ALLOW_ANONYMOUS": "true"}, 1, 3072, 3072, id="strangers together, too"
        ),
        pytest.param(
            {"PROXY_ALLOW_ANONYMOUS": "true"}, 0, 3072, 4096, id="unless there are no keys"
        ),
        pytest.param({"PROXY_MAX_BODY_BYTES": "4000"}, 2, 4000, 4000, id="and one body always"),
    ],
)
def test_the_share_of_memory(settings: dict[str, str], keys: int, own: int, strangers: int) -> None:
    """As of places: whoever has none may still send one request."""
    usual = {"PROXY_MAX_BODY_BYTES": "1024", "PROXY_MAX_BUFFERED_BYTES": "4096"}
    budget = admission.buffers(load(KEYS | usual | settings), keys)
    one_stranger = max(strangers // 2, int(settings.get("PROXY_MAX_BODY_BYTES", "1024")))
    for account, most in (("k", own), ("anonymous 192.0.2.7", one_stranger)):
        with budget.lease(account) as lease:
            lease.grow(most)
            with pytest.raises(ProxyError):
                lease.grow(1)
    with budget.lease("anonymous 192.0.2.7") as one, budget.lease("anonymous 192.0.2.8") as other:
        one.grow(one_stranger)
        # One of them is never enough to keep all others out.
        other.grow(strangers - one_stranger)
        with pytest.raises(ProxyError):
            other.grow(1)


def test_memory_is_shared_out_again() -> None:
    """As places are, by the keys that may be used then: one whose companion has expired is alone."""
    now = datetime(2026, 11, 30, tzinfo=UTC)
    keys = KeyStore(
        file=[KeyRecord("one", bytes(32)), KeyRecord("other", bytes(32), expires=now)],
        now=lambda: now,
    )
    now -= timedelta(seconds=1)
    settings = load(
        KEYS | {"PROXY_MAX_BODY_BYTES": "1024", "PROXY_MAX_BUFFERED_BYTES": "4096"},
    )
    memory = admission.buffers(settings, keys.usable)
    places = admission.slots(settings, Clocks(), keys=keys.usable, budget=None)
    share_out = admission.sharing(settings, keys, [places], memory)

    def most() -> int:
        with memory.lease("one") as lease:
            for size in (4096, 3072):
                try:
                    lease.grow(size)
                except ProxyError:
                    continue
                return size
        return 0

    assert most() == 3072
    now += timedelta(seconds=1)
    share_out()
    assert most() == 4096
