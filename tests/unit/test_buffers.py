"""The bound on request bodies in memory."""

import pytest

from proxy.admission.buffers import BufferBudget
from proxy.errors import Overloaded


def test_the_bound_is_over_all_requests() -> None:
    """The last byte fits, the one after it does not, whoever holds the others."""
    budget = BufferBudget(100)
    with budget.lease() as one, budget.lease() as other:
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
        with budget.lease() as lease:
            lease.grow(100)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert budget.leased_bytes == 0


def test_a_refused_growth_is_not_taken() -> None:
    """What did not fit is not given back either."""
    budget = BufferBudget(100)
    with budget.lease() as lease:
        lease.grow(50)
        with pytest.raises(Overloaded):
            lease.grow(51)
        lease.grow(50)
        assert budget.leased_bytes == 100
    assert budget.leased_bytes == 0
