"""The fair queue: whose turn it is, who gives way, and when what is large gets its claim."""

from collections.abc import Callable
from typing import Any

import pytest

from proxy.admission.lineup import UNBOUNDED
from proxy.admission.queue import Entry, FairQueue, Standing


class Desk:
    """A queue, a clock, a number of tokens, and who has been served.

    Requests are called by their account and a number: ``a1`` is account ``a``'s first.
    """

    def __init__(self, *, size: int = 100, share: int = 100, tokens: int = UNBOUNDED) -> None:
        self.queue: FairQueue[Any] = FairQueue(size=size, share=share, patience_seconds=5)
        self.entries: dict[str, Entry[Any]] = {}
        self.tokens = tokens
        self.free = tokens
        self.now = 100.0

    def hold(self, *names: str, tokens: int = 0) -> None:
        """They get slots without waiting."""
        for name in names:
            self.entries[name] = self.queue.enter(name[0], tokens, self.now)
            self.free -= tokens

    def join(self, *names: str, tokens: int = 0) -> list[str]:
        """They queue up; gives those who had to give way."""
        gone = []
        for name in names:
            self.entries[name] = self.queue.join(name[0], tokens, self.now)
            leaving = self.queue.give_way()
            if leaving is not None:
                self.queue.leave(leaving, self.now)
                gone.append(self.name(leaving))
        return gone

    def leave(self, *names: str) -> None:
        """They give up waiting."""
        for name in names:
            self.queue.leave(self.entries[name], self.now)

    def done(self, *names: str) -> None:
        """They give back what they held."""
        for name in names:
            self.free += self.entries[name].tokens
            self.queue.done(self.entries[name])

    def serve(self, slots: int = 1_000) -> str:
        """Gives away that many slots, as far as somebody may have one; who got them, in order."""
        served: list[str] = []
        while len(served) < slots:
            entry = self.queue.next(self.free, self.tokens, self.now)
            if entry is None:
                break
            assert entry.standing is Standing.HOLDS
            assert entry.tokens <= self.free
            self.free -= entry.tokens
            served.append(self.name(entry))
        return " ".join(served)

    def name(self, entry: Entry[Any]) -> str:
        """What the test calls it."""
        return next(name for name, known in self.entries.items() if known is entry)

    def end(self) -> None:
        """Everybody goes home, and there must be no trace of anybody."""
        for entry in self.entries.values():
            if entry.standing is Standing.WAITS:
                self.queue.leave(entry, self.now)
            elif entry.standing is Standing.HOLDS:
                self.queue.done(entry)
        queue = self.queue
        assert (len(queue), queue.accounts, queue._most) == (0, 0, 0)
        assert (queue._rings, queue._by_waits) == ({}, {})
        assert (len(queue._passed_over), len(queue._claims)) == (0, 0)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        pytest.param("a1 a2 a3", "a1 a2 a3", id="within an account, order of arrival"),
        pytest.param("a1 a2 a3 b1 b2", "a1 b1 a2 b2 a3", id="between accounts, in turns"),
        pytest.param("a1 b1 c1 a2 b2 c2", "a1 b1 c1 a2 b2 c2", id="equal ones, as they came"),
        pytest.param("a1 a2 a3 a4 b1", "a1 b1 a2 a3 a4", id="the last to come is second in line"),
    ],
)
def test_turns(names: str, order: str) -> None:
    """Each account in its turn, and of each the oldest."""
    desk = Desk()
    desk.join(*names.split())
    assert desk.serve() == order
    desk.end()


def test_who_comes_back_is_behind_everybody() -> None:
    """No account gains by leaving the line and coming anew: others have their turn between."""
    desk = Desk()
    desk.join("a1", "b1", "b2", "c1", "c2")
    assert desk.serve(1) == "a1"
    desk.join("a2")
    assert desk.serve() == "b1 c1 a2 b2 c2"
    desk.end()


def test_a_turn_is_as_long_as_the_number_of_accounts() -> None:
    """However much one of them asks, each is served once in as many turns as there are accounts."""
    desk = Desk(size=10_000)
    desk.join(*(f"a{number}" for number in range(500)))
    desk.join(*(f"{account}{number}" for number in range(20) for account in "bcde"))
    order = desk.serve().split()
    for start in range(0, 100, 5):
        assert {name[0] for name in order[start : start + 5]} == set("abcde")
    desk.end()


def test_who_holds_fewer_comes_first() -> None:
    """Turns are among equals: long requests would otherwise hold more slots than short ones."""
    desk = Desk()
    desk.hold("a1", "a2", "b1")
    desk.join("a3", "a4", "b2", "b3", "c1", "c2")
    assert desk.serve(1) == "c1"
    assert desk.serve(2) == "b2 c2"
    desk.join("b4")
    assert desk.serve() == "a3 b3 a4 b4"
    desk.end()


def test_who_gives_back_is_behind_its_equals() -> None:
    """It has just had a turn; those who hold as few have waited for theirs."""
    desk = Desk()
    desk.hold("a1", "b1")
    desk.join("a2", "b2", "c1")
    desk.done("b1")
    desk.done("a1")
    assert desk.serve() == "c1 b2 a2"
    desk.end()


def test_an_account_holds_its_share_and_not_more() -> None:
    """The surplus waits, is in nobody's way, and has its turn when something is given back."""
    desk = Desk(share=2)
    desk.hold("a1")
    desk.join("a2", "a3", "a4", "b1", "b2", "b3")
    assert desk.serve() == "b1 a2 b2"
    assert desk.queue.at_share("a")
    assert desk.queue.at_share("b")
    assert not desk.queue.at_share("c")
    desk.done("a1")
    assert desk.serve() == "a3"
    desk.done("b1", "a2")
    assert desk.serve() == "b3 a4"
    desk.end()


def test_a_share_given_back_does_not_jump_the_line() -> None:
    """Who held all it might stands at the end again, however long it has waited."""
    desk = Desk(share=1)
    desk.hold("a1")
    desk.join("a2", "b1", "c1")
    desk.done("a1")
    assert desk.serve() == "b1 c1 a2"
    desk.end()


@pytest.mark.parametrize(
    ("waiting", "newcomer", "gone"),
    [
        pytest.param("a1 a2", "a3", "a3", id="the only account there is has no better right"),
        pytest.param("a1 a2 a3", "b1", "a3", id="the youngest of the one with the most"),
        pytest.param("a1 b1 a2 a3", "c1", "a3", id="of the one with the most, not the latest"),
        pytest.param("a1 a2 b1", "b2", "b2", id="two and two would be two and two again"),
        pytest.param("a1 a2 a3 b1", "b2", "a3", id="three and one becomes two and two"),
        pytest.param("a1 b1 c1", "d1", "d1", id="everybody has one"),
        pytest.param("a1 a2 b1 b2", "c1", "b2", id="of two with the most, the later"),
        pytest.param("b1 b2 a1 a2", "c1", "a2", id="the other way round"),
        pytest.param("", "a1", "a1", id="nobody may wait"),
    ],
)
def test_a_full_queue(waiting: str, newcomer: str, gone: str) -> None:
    """Whoever has the most gives way to whoever has fewer even then; else the newcomer goes."""
    names = waiting.split()
    desk = Desk(size=len(names))
    assert desk.join(*names) == []
    assert desk.join(newcomer) == [gone]
    assert len(desk.queue) == len(names)
    desk.end()


def test_giving_way_comes_to_an_end() -> None:
    """Two accounts that both go on asking do not throw each other out for ever."""
    desk = Desk(size=8)
    desk.join(*(f"a{number}" for number in range(8)))
    gone = desk.join(*(f"{account}{number}" for number in range(100, 150) for account in "ba"))
    assert gone[:4] == ["a7", "a100", "a6", "a101"]
    thrown_out = [name for name in gone if int(name[1:]) < 100]
    assert thrown_out == ["a7", "a6", "a5", "a4"]
    assert all(name in gone for name in ("a149", "b149"))
    desk.end()


def test_the_smaller_pass_and_are_passed_themselves() -> None:
    """What does not fit keeps nobody waiting: not another account, not its own."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=60)
    desk.join("a1", tokens=50)
    desk.join("a2", "b1", tokens=20)
    assert desk.serve() == "a2 b1"
    desk.done("z1")
    assert desk.serve() == "a1"
    desk.end()


@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        pytest.param(4.9, "a2 b1", id="less than five seconds: the smaller pass"),
        pytest.param(5.0, "", id="five seconds: nobody passes any more"),
    ],
)
def test_a_claim_comes_with_time(seconds: float, order: str) -> None:
    """What has been passed over for five seconds is passed no more, by its own account neither."""
    desk = Desk(tokens=100)
    desk.hold("z1", "z2", tokens=30)
    desk.join("a1", tokens=50)
    assert desk.serve() == ""
    assert desk.entries["a1"].passed_over == 100
    desk.now += seconds
    desk.join("a2", "b1", tokens=5)
    assert sorted(desk.serve().split()) == order.split()
    desk.done("z1")
    assert desk.serve().startswith("a1")
    desk.end()


def test_patience_begins_with_the_turn() -> None:
    """Waiting behind others for a slot gives no claim: only its own turn that came too early."""
    desk = Desk(tokens=100)
    desk.join("a1", tokens=10)
    desk.join("b1", tokens=95)
    desk.now += 60
    assert desk.serve(1) == "a1"
    assert desk.entries["b1"].passed_over is None
    assert desk.serve() == ""
    assert desk.entries["b1"].passed_over == desk.now
    desk.end()


def test_two_claims_are_met_in_order() -> None:
    """What comes free is kept for the first, even where it would do for the second."""
    desk = Desk(tokens=100)
    desk.hold("x1", "x2", "x3", tokens=30)
    desk.join("a1", tokens=80)
    assert desk.serve() == ""
    desk.now += 1
    desk.join("b1", tokens=40)
    assert desk.serve() == ""
    desk.now += 10
    desk.done("x1")
    assert desk.serve() == ""
    desk.done("x2", "x3")
    assert desk.serve() == "a1"
    desk.done("a1")
    assert desk.serve() == "b1"
    desk.end()


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda desk: desk.leave("a1"), id="it leaves"),
        pytest.param(lambda desk: desk.done("z1"), id="it is met"),
    ],
)
def test_a_claim_ends(ends: Callable[[Desk], None]) -> None:
    """Nobody is kept waiting for somebody who no longer waits."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=60)
    desk.join("a1", tokens=50)
    desk.serve()
    desk.now += 5
    desk.join("b1", tokens=10)
    assert desk.serve() == ""
    ends(desk)
    assert "b1" in desk.serve().split()
    desk.end()


def test_a_turn_that_came_is_the_next_ones_when_its_owner_leaves() -> None:
    """Otherwise a large one behind one that gave up would never get a claim."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=60)
    desk.join("a1", "a2", tokens=50)
    desk.join("b1", "b2", "b3", tokens=10)
    assert desk.serve(1) == "b1"
    desk.leave("a1")
    desk.now += 5
    assert desk.serve() == ""
    desk.done("z1")
    assert desk.serve().startswith("a2")
    desk.end()


def test_an_account_at_its_share_has_no_claim() -> None:
    """It could not be served anyway, however much came free; it claims when it may hold again."""
    desk = Desk(tokens=100, share=2)
    desk.hold("a1", tokens=10)
    desk.hold("z1", tokens=70)
    desk.join("a2", tokens=90)
    assert desk.serve() == ""
    desk.join("a3", tokens=5)
    assert desk.serve() == "a3"
    desk.now += 60
    desk.join("b1", "b2", tokens=5)
    assert desk.serve(1) == "b1"
    desk.done("a3")
    assert desk.serve() == ""
    desk.done("a1", "z1")
    assert desk.serve() == "a2 b2"
    desk.end()


@pytest.mark.parametrize(
    ("held", "order"),
    [
        pytest.param(50, "", id="half of it, with one other account there: everybody waits"),
        pytest.param(51, "b1 b2", id="more than half: only its own account waits"),
    ],
)
def test_who_holds_much_keeps_only_itself_waiting(held: int, order: str) -> None:
    """One that fills the cache with one request and asks for another must not close it to the rest."""
    desk = Desk(tokens=100)
    desk.hold("a1", tokens=held)
    desk.join("a2", tokens=90)
    desk.serve()
    desk.now += 5
    desk.join("a3", "b1", "b2", tokens=10)
    assert desk.serve() == order
    desk.done("a1")
    desk.done(*order.split())
    assert desk.serve() == ("a2 b1" if not order else "a2 a3")
    desk.end()


def test_a_smaller_pool_lets_nobody_in_until_it_fits() -> None:
    """Not even those who need nothing: the engine has more than it can hold."""
    desk = Desk(tokens=100)
    desk.hold("a1", tokens=60)
    desk.free = desk.tokens = 40
    desk.free -= 60
    desk.join("b1", tokens=0)
    assert desk.serve() == ""
    desk.done("a1")
    assert desk.serve() == "b1"
    desk.end()
