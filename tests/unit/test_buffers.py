"""The bound on request bodies in memory."""

from contextlib import ExitStack

import pytest

from proxy.admission.buffers import BufferBudget
from proxy.errors import Overloaded, RateLimitExceeded


def test_the_bound_is_over_all_requests() -> None:
    """The last byte fits, the one after it does not, whoever holds the others."""
    budget = BufferBudget(100)
    with budget.lease("a") as one, budget.lease("b") as other:
        one.grow(60)
        other.grow(40)
        with pytest.raises(Overloaded, match=r"100 \(PROXY_MAX_BUFFERED_BYTES\)") as refused:
            other.grow(1)
        assert refused.value.retry_after_seconds == 5
        assert budget.leased_bytes == 100
    assert budget.leased_bytes == 0


def test_a_lease_is_given_back_whatever_happens() -> None:
    """A request that fails gives back as much as one that does not."""
    budget = BufferBudget(100)

    def fail() -> None:
        with budget.lease("a") as lease:
            lease.grow(100)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert budget.leased_bytes == 0


def test_a_refused_growth_is_not_taken() -> None:
    """What did not fit is not given back either."""
    budget = BufferBudget(100)
    with budget.lease("a") as lease:
        lease.grow(50)
        with pytest.raises(Overloaded):
            lease.grow(51)
        lease.grow(50)
        assert budget.leased_bytes == 100
    assert budget.leased_bytes == 0


@pytest.mark.parametrize(
    ("held", "account", "size", "refused"),
    [
        pytest.param({"a": 60}, "a", 15, "", id="all of its share"),
        pytest.param({"a": 60}, "a", 16, "Your requests hold", id="a byte more"),
        pytest.param({"a": 75}, "b", 25, "", id="another has what is left"),
        pytest.param({"a": 75}, "b", 26, "This server holds", id="and not a byte more"),
        pytest.param(
            {"anonymous 192.0.2.7": 60}, "anonymous 192.0.2.7", 16, "Your", id="a stranger"
        ),
        pytest.param(
            {"anonymous 192.0.2.7": 60}, "anonymous 192.0.2.8", 20, "", id="two strangers"
        ),
        pytest.param(
            {"anonymous 2001:db8:0:1::": 40, "anonymous 2001:db8:0:2::": 30},
            "anonymous 2001:db8:0:3::",
            11,
            "Requests without a key hold",
            id="strangers together, however many addresses they have",
        ),
        pytest.param({"anonymous 192.0.2.7": 75}, "a", 25, "", id="a key beside them"),
    ],
)
def test_a_share_of_each(held: dict[str, int], account: str, size: int, refused: str) -> None:
    """One account's is 75 of 100, that of all strangers together 80."""
    budget = BufferBudget(100, account_bytes=75, strangers_bytes=80)
    with ExitStack() as leases:
        for name, amount in held.items():
            leases.enter_context(budget.lease(name)).grow(amount)
        lease = leases.enter_context(budget.lease(account))
        if not refused:
            lease.grow(size)
            assert budget.leased_bytes == sum(held.values()) + size
        else:
            error = Overloaded if refused.startswith("This server") else RateLimitExceeded
            with pytest.raises(error, match=refused) as told:
                lease.grow(size)
            assert "PROXY_MAX_BUFFERED_BYTES" in told.value.message
            assert told.value.retry_after_seconds == 5
            assert budget.leased_bytes == sum(held.values())
            lease.grow(size - 1)
    assert (budget.leased_bytes, budget.accounts) == (0, 0)


def test_shares_follow_the_keys_there_are() -> None:
    """Whoever holds more than its share keeps it, and gets no more."""
    budget = BufferBudget(100)
    with budget.lease("a") as lease:
        lease.grow(80)
        budget.share_out(75, 75)
        with pytest.raises(RateLimitExceeded, match="75 of 100"):
            lease.grow(1)
        budget.share_out(None, None)
        lease.grow(20)


@pytest.mark.parametrize(
    ("account", "most", "refused"),
    [
        pytest.param("a", 2, False, id="one more may be"),
        pytest.param("a", 1, True, id="no more may be"),
        pytest.param("b", 1, False, id="another's"),
        pytest.param("a", None, False, id="any number may be"),
    ],
)
def test_bodies_on_their_way_count(account: str, most: int | None, refused: bool) -> None:
    """Of a key that may have one request at once, one body is received at once."""
    budget = BufferBudget(100)
    with budget.lease("a", 1) as lease:
        lease.begin()
        with budget.lease(account, most) as other:
            if not refused:
                other.begin()
                return
            with pytest.raises(RateLimitExceeded, match="You may have 1 request at once") as told:
                other.begin()
            assert told.value.retry_after_seconds == 5
        lease.end()
        with budget.lease(account, most) as other:
            other.begin()


def test_a_body_that_does_not_come_counts_no_longer() -> None:
    """When its request has ended; the account is forgotten with its last one."""
    budget = BufferBudget(100)
    for _ in range(3):
        with budget.lease("a", 1) as lease:
            lease.begin()
            assert budget.accounts == 1
    assert budget.accounts == 0


def test_a_body_that_broke_off_is_on_its_way_no_more() -> None:
    """Beside another request of the same account, for which the account goes on."""
    budget = BufferBudget(100)
    with budget.lease("a"):
        with budget.lease("a", 1) as broken:
            broken.begin()
        with budget.lease("a", 1) as next_one:
            next_one.begin()
