"""The lineup does what a plain list would, only faster."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.lineup import UNBOUNDED, Lineup


@dataclass(eq=False)
class Item:
    """Somebody who stands in a line."""

    name: int
    place: int = 0


def line(*needs: int) -> tuple[Lineup[Item], list[Item]]:
    """A lineup of that many, and they."""
    lineup: Lineup[Item] = Lineup()
    items = [Item(number) for number in range(len(needs))]
    for item, need in zip(items, needs, strict=True):
        lineup.append(item, need)
    return lineup, items


@pytest.mark.parametrize(
    ("needs", "at_most", "found"),
    [
        pytest.param([], UNBOUNDED, None, id="nobody is there"),
        pytest.param([5], 5, 0, id="exactly so much"),
        pytest.param([5], 4, None, id="one too many"),
        pytest.param([9, 3, 3], 5, 1, id="the first of those that fit, not the smallest"),
        pytest.param([9, 4, 3], 3, 2, id="past two that do not"),
        pytest.param([0, 0], 0, 0, id="nothing needed, nothing there"),
        pytest.param([0], -1, None, id="less than nothing there"),
    ],
)
def test_the_first_that_needs_at_most(needs: list[int], at_most: int, found: int | None) -> None:
    """Order of arrival among those that fit."""
    lineup, _ = line(*needs)
    first = lineup.first(at_most)
    assert (first and first.name) == found


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "remove", "change"]), st.integers(0, 200)),
    max_size=200,
)


@given(STEPS, st.integers(0, 200))
def test_it_is_a_list(steps: list[tuple[str, int]], at_most: int) -> None:
    """Whatever comes and goes, the answers are those of a list searched from its front."""
    lineup: Lineup[Item] = Lineup()
    there: list[tuple[Item, int]] = []
    named: set[Item] = set()
    for number, (what, value) in enumerate(steps):
        if what == "append":
            there.append((Item(number), value))
            lineup.append(*there[-1])
        elif there:
            index = value % len(there)
            item, _ = there[index]
            if what == "remove":
                del there[index]
                lineup.remove(item)
            else:
                there[index] = (item, value // 2)
                lineup.change(item, value // 2)
        fitting = [item for item, need in there if need <= at_most]
        assert lineup.count == len(there)
        assert lineup.first(at_most) is (fitting[0] if fitting else None)
        assert lineup.front() is (there[0][0] if there else None)
        assert lineup.last() is (there[-1][0] if there else None)
        if there:
            assert lineup.least == min(need for _, need in there)
        if number % 7 == 0:
            end = there[len(there) // 2][0] if there else None
            before = [item for item, _ in there[: len(there) // 2]] if there else []
            fresh = list(lineup.newly_before(end))
            assert fresh == [item for item in before if item not in named]
            named |= set(before)


def test_places_are_used_again() -> None:
    """Coming and going for ever takes no more room than those who are there."""
    lineup, items = line(*range(8))
    for number in range(10_000):
        lineup.remove(items.pop(0))
        items.append(Item(number))
        lineup.append(items[-1], number)
    assert len(lineup._least) <= 4 * (2 * 8)
    assert lineup.front() is items[0]


def test_who_comes_where_somebody_left_is_named_all_the_same() -> None:
    """His place was named before, but he was not: nobody would look whether he fits."""
    lineup, (first, second) = line(5, 5)
    assert list(lineup.newly_before(None)) == [first, second]
    lineup.remove(second)
    assert lineup.last() is first
    lineup.append(third := Item(2), 5)
    assert third.place == second.place
    assert list(lineup.newly_before(None)) == [third]
