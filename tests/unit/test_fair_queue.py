"""The fair queue: whose turn it is, and who gives way."""

import pytest

from tests.harness.desk import Desk


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


@pytest.mark.parametrize(
    ("waiting", "newcomer", "gone"),
    [
        pytest.param("A1 B1 C1", "a1", "C1", id="the youngest stranger to a key"),
        pytest.param("A1", "a1", "A1", id="the only one"),
        pytest.param("A1 A2 B1", "a1", "A2", id="of strangers, the one with the most"),
        pytest.param("A1 B1 a1 a2", "a3", "a3", id="not to a key that has more than all of them"),
        pytest.param("A1 a1 a2 a3", "b1", "a3", id="a key gives way to a key"),
        pytest.param("a1 b1 A1", "B1", "B1", id="a stranger more is one more of theirs"),
        pytest.param("a1 b1 c1", "A1", "A1", id="no key to a stranger, where each has one"),
        pytest.param("a1 a2 a3", "A1", "a3", id="a key with more than all strangers"),
        pytest.param("a1 a2 A1", "B1", "B1", id="as many strangers as it has are not fewer"),
        pytest.param("A1 A2 B1", "C1", "A2", id="among themselves, as keys are"),
    ],
)
def test_strangers_give_way_as_one(waiting: str, newcomer: str, gone: str) -> None:
    """However many addresses they have."""
    names = waiting.split()
    desk = Desk(size=len(names))
    assert desk.join(*names) == []
    assert desk.join(newcomer) == [gone]
    desk.end()


@pytest.mark.parametrize(
    ("held", "waiting", "order"),
    [
        pytest.param("", "A1 B1 C1 a1", "A1 a1 B1 C1", id="many addresses have one turn"),
        pytest.param("", "a1 b1 A1 B1", "a1 b1 A1 B1", id="keys that came before them go first"),
        pytest.param("A1", "B1 C1 a1", "a1 B1 C1", id="they hold what one of them holds"),
        pytest.param("A1 B1", "C1 a1 a2", "a1 a2 C1", id="and what all of them hold"),
        pytest.param(
            "A1 a1 a2", "a3 B1", "B1 a3", id="who holds fewer comes first, too, if it is they"
        ),
        pytest.param("a1", "A1 A2 B1", "A1 B1 A2", id="among themselves in turns"),
    ],
)
def test_strangers_have_turns_as_one(held: str, waiting: str, order: str) -> None:
    """A key does not wait for one turn of each of any number of addresses."""
    desk = Desk()
    desk.hold(*held.split())
    desk.join(*waiting.split())
    assert desk.serve() == order
    desk.end()


@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        pytest.param(29.9, "a2 b2 c1", id="soon: where it was"),
        pytest.param(30.0, "b2 c1 a2", id="half a minute later: at the end"),
    ],
)
def test_who_has_given_up_keeps_its_place(seconds: float, order: str) -> None:
    """As a key does that has another waiting: those with several must not get ahead of it for that."""
    desk = Desk()
    desk.join("a1", "b1", "b2")
    desk.leave("a1", "b1")
    desk.join("c1")
    desk.now += seconds
    desk.join("a2")
    assert desk.serve() == order
    desk.end()


def test_a_stranger_that_gives_up_keeps_no_place() -> None:
    """One has any number of addresses, and would have as many places."""
    desk = Desk()
    desk.join("A1", "B1")
    desk.leave("A1")
    desk.join("A2")
    assert desk.serve() == "B1 A2"
    desk.end()


def test_who_gives_up_where_nobody_else_waits_keeps_nothing() -> None:
    """A place before nobody is none."""
    desk = Desk()
    desk.join("a1")
    desk.leave("a1")
    assert desk.queue._keys.rings == {}
    desk.join("b1", "a2")
    assert desk.serve() == "b1 a2"
    desk.end()


def test_a_place_that_is_kept_is_passed_over_like_others() -> None:
    """Its turn comes while it is away; once it is back, what does not fit gets its claim in time."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=60)
    desk.join("a1", "b1", tokens=95)
    assert desk.serve() == ""
    desk.leave("a1")
    desk.serve()
    desk.join("a2", tokens=95)
    assert desk.serve() == ""
    assert desk.entries["a2"].passed_over == desk.now
    desk.done("z1")
    assert desk.serve() == "a2"
    desk.end()
