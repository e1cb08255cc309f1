"""The fair queue: when what is large gets its claim, and whom that keeps out."""

from collections.abc import Callable

import pytest

from proxy.admission.parties import Standing
from tests.harness.desk import Desk


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
    ("names", "tokens", "order"),
    [
        pytest.param("b1", 30, "b1", id="one that leaves it room"),
        pytest.param("b1", 31, "", id="one that does not"),
        pytest.param("b1 b2 b3", 15, "b1 b2", id="as many as do together"),
        pytest.param("b1 c1 d1", 15, "b1 c1", id="whoever they are"),
        pytest.param("a2", 1, "", id="not its own account's"),
        pytest.param("b1 b2", 0, "b1 b2", id="those that need nothing"),
    ],
)
def test_what_fits_beside_a_claim_passes(names: str, tokens: int, order: str) -> None:
    """When those have gone who were there before it, there is room for it: nobody puts it off."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=40)
    desk.join("a1", tokens=70)
    assert desk.serve() == ""
    desk.now += 5
    desk.join(*names.split(), tokens=tokens)
    assert desk.serve() == order
    desk.done("z1")
    assert desk.serve(1) == "a1"
    desk.end()


def test_what_has_passed_a_claim_and_gone_leaves_its_room_to_the_next() -> None:
    """Short requests go by one after the other, as long as they leave room together."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=40)
    desk.join("a1", tokens=70)
    desk.serve()
    desk.now += 5
    for number in range(9):
        desk.join(f"b{number}", tokens=20)
        assert desk.serve() == f"b{number}"
        desk.join(f"c{number}", tokens=20)
        assert desk.serve() == ""
        desk.leave(f"c{number}")
        desk.done(f"b{number}")
    desk.end()


def test_what_passes_is_counted_for_each_claim_anew() -> None:
    """What has passed the one before is among those who were there before this one."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=50)
    desk.join("a1", tokens=70)
    desk.serve()
    desk.now += 5
    desk.join("b1", tokens=20)
    assert desk.serve() == "b1"
    desk.join("c1", tokens=70)
    desk.leave("a1")
    desk.serve()
    # What was spent of being closed has come back, and c's claim is the one.
    desk.now += 5
    desk.join("d1", tokens=20)
    assert desk.serve() == "d1"
    # Nor does it leave its room to others when it goes: that is for the claim.
    desk.done("b1")
    desk.join("e1", tokens=20)
    assert desk.serve() == ""
    desk.end()


@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        pytest.param(4.9, "", id="for less than five seconds: nobody"),
        pytest.param(5.0, "c1", id="five: who holds nothing, and for the first"),
        pytest.param(9.9, "c1", id="and for as long as it was closed"),
        pytest.param(10.0, "", id="then it is closed again"),
    ],
)
def test_a_claim_closes_for_some_time_and_opens_again(seconds: float, order: str) -> None:
    """It must not take its account's part and everybody else's time until a long answer has ended."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=40)
    desk.hold("b1", tokens=0)
    desk.join("a1", tokens=97)
    desk.serve()
    desk.now += 5
    assert desk.serve() == ""
    assert desk.queue.closed_until == desk.now + 5
    for later in (4.9, seconds):
        if later <= seconds:
            desk.now = 105 + later
            assert desk.serve() == ""
    if seconds > 5:
        desk.now = 110
        assert desk.serve() == ""
        assert desk.queue.closed_until is None
        desk.now = 105 + seconds
    desk.join("b2", "c1", "c2", tokens=10)
    assert desk.serve() == order
    desk.end()


@pytest.mark.parametrize(
    ("held", "claim", "order"),
    [
        pytest.param("b1", "a1", "B1", id="none of them holds anything"),
        pytest.param("A1", "a1", "", id="one of them does, and so each does"),
        pytest.param("A1", "C1", "B1", id="among themselves each is alone"),
    ],
)
def test_strangers_are_one_beside_a_key_that_claims(held: str, claim: str, order: str) -> None:
    """Who holds nothing may have what is free while it is open: one address after the other could."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=40)
    desk.hold(held, tokens=0)
    desk.join(claim, tokens=97)
    assert desk.serve() == ""
    for _ in range(2):
        desk.now += 5
        assert desk.serve() == ""
    assert desk.queue.closed_until is None
    desk.join("B1", tokens=10)
    assert desk.serve() == order
    desk.end()


@pytest.mark.parametrize(
    ("held", "waiting", "order"),
    [
        pytest.param(10, "", "a2", id="nobody else is there"),
        pytest.param(10, "c1", "c1", id="somebody who holds nothing goes first"),
        pytest.param(10, "b2", "a2", id="who holds something, and does not fit beside, does not"),
        pytest.param(41, "", "", id="it does not fit"),
    ],
)
def test_a_claim_that_fits_is_met_while_it_is_open(held: int, waiting: str, order: str) -> None:
    """What nobody else may have is not left free, although its account holds something."""
    desk = Desk(tokens=100)
    desk.hold("a1", tokens=10)
    desk.hold("z1", tokens=50)
    desk.hold("b1", tokens=held - 10)
    desk.join("a2", tokens=60)
    desk.serve()
    for seconds in (5, 5):
        desk.now += seconds
        desk.serve()
    assert desk.queue.closed_until is None
    desk.join(*waiting.split(), tokens=41)
    desk.done("z1")
    assert desk.serve() == order
    desk.end()


def test_claims_in_turns_close_for_no_longer_than_one() -> None:
    """Keys that take turns in claiming keep somebody with little out for half of the time at most."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=50)
    closed, longest, row = 0, 0, 0
    for second in range(200):
        desk.now = 100.0 + second
        greedy = "cdefgh"[second % 6]
        if f"{greedy}1" in desk.entries and desk.entries[f"{greedy}1"].standing is Standing.WAITS:
            desk.leave(f"{greedy}1")
        desk.join(f"{greedy}1", tokens=100)
        desk.serve()
        desk.join("a1", tokens=1)
        kept_out = desk.serve() == ""
        desk.leave("a1") if kept_out else desk.done("a1")
        closed += kept_out
        row = row + 1 if kept_out else 0
        longest = max(longest, row)
    assert 0 < longest <= 5
    assert closed <= 105
    desk.end()


def test_short_requests_for_ever_do_not_keep_a_large_one_out() -> None:
    """It has its room when it is closed for the second time at the latest."""
    desk = Desk(tokens=100)
    desk.hold("y1", "z1", tokens=20)
    desk.join("a1", tokens=100)
    served: list[str] = []
    for second in range(40):
        desk.now = 100.0 + second
        desk.done(*(name for name in served if name != "a1"), *(["y1", "z1"] if not second else []))
        desk.join(*(f"{account}{second}" for account in "bcd"), tokens=30)
        served = desk.serve().split()
        if "a1" in served:
            break
    assert second <= 10
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
    desk.join("a1", tokens=97)
    assert desk.serve() == ""
    assert desk.entries["a1"].passed_over == 100
    desk.now += seconds
    desk.join("a2", "b1", tokens=5)
    assert sorted(desk.serve().split()) == order.split()
    desk.done("z1", "z2", *order.split())
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


def met(desk: Desk) -> None:
    """The claim of ``a1``, behind ``z1``."""
    desk.done("z1")
    assert desk.serve() == "a1"
    desk.done("a1")


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda desk: desk.leave("a1"), id="it leaves"),
        pytest.param(met, id="it is met"),
    ],
)
def test_a_claim_ends(ends: Callable[[Desk], None]) -> None:
    """Nobody is kept waiting for somebody who no longer waits."""
    desk = Desk(tokens=100)
    desk.hold("z1", tokens=60)
    desk.join("a1", tokens=95)
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
    desk.join("a1", "a2", tokens=95)
    desk.join("b1", "b2", "b3", tokens=10)
    assert desk.serve(1) == "b1"
    desk.leave("a1")
    desk.now += 5
    assert desk.serve() == ""
    desk.done("z1", "b1")
    assert desk.serve().startswith("a2")
    desk.end()


def test_an_account_at_its_share_has_no_claim() -> None:
    """It could not be served anyway, however much came free; it claims when it may hold again."""
    desk = Desk(tokens=100, share=2)
    desk.hold("a1", tokens=10)
    desk.hold("z1", tokens=70)
    desk.join("a2", tokens=96)
    assert desk.serve() == ""
    desk.join("a3", tokens=5)
    assert desk.serve() == "a3"
    desk.now += 60
    desk.join("b1", "b2", tokens=5)
    assert desk.serve(1) == "b1"
    desk.done("a3")
    assert desk.serve() == ""
    desk.done("a1", "z1", "b1")
    assert desk.serve() == "a2"
    desk.done("a2")
    assert desk.serve() == "b2"
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
    desk.join("a2", tokens=91)
    desk.serve()
    desk.now += 5
    desk.join("a3", "b1", "b2", tokens=10)
    assert desk.serve() == order
    desk.done("a1")
    desk.done(*order.split())
    first = desk.serve()
    assert first == ("a2" if order else "b1")
    desk.done(first)
    assert desk.serve().startswith("a2" if not order else "a3")
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


@pytest.mark.parametrize(
    ("names", "order"),
    [
        pytest.param("b1", "b1", id="who has waited goes first"),
        pytest.param("b1 b2 c1", "b1 c1", id="each with one, and then it is the claim's turn"),
        pytest.param("b1 A1", "b1 A1", id="strangers, too"),
        pytest.param("", "a2", id="nobody has waited"),
    ],
)
def test_a_claim_comes_in_its_accounts_turn(names: str, order: str) -> None:
    """Who asks for all of it again and again has it in turns with those who ask for little."""
    desk = Desk(tokens=100)
    desk.hold("a1", tokens=100)
    desk.join("a2", tokens=100)
    assert desk.serve() == ""
    desk.now += 5
    desk.join(*names.split(), tokens=5)
    assert desk.serve() == ""
    desk.done("a1")
    desk.join("d1", tokens=5)
    assert desk.serve() == order
    if names:
        desk.done(*order.split())
        assert desk.serve() == "a2"
    desk.end()
