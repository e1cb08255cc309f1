"""For how long claims keep others out, and for how long not."""

import pytest

from proxy.admission.closing import Closing

Look = tuple[float, bool]
"""When somebody looks, and whether there is a claim."""


@pytest.mark.parametrize(
    ("looks", "closed"),
    [
        pytest.param([(0, False)], False, id="nobody claims"),
        pytest.param([(0, True)], True, id="somebody does"),
        pytest.param([(0, True), (4.9, True)], True, id="for nearly five seconds"),
        pytest.param([(0, True), (5, True)], False, id="for five"),
        pytest.param([(0, True), (5, True), (9.9, True)], False, id="open for nearly five"),
        pytest.param([(0, True), (5, True), (10, True)], True, id="and closed again"),
        pytest.param([(0, True), (60, True), (64.9, True)], False, id="nobody has looked for long"),
        pytest.param([(0, True), (60, True), (65, True)], True, id="that long is as long as five"),
        pytest.param([(0, True), (3, False), (3, True), (4.9, True)], True, id="another at once"),
        pytest.param([(0, True), (3, False), (3, True), (5, True)], False, id="begins no new five"),
        pytest.param(
            [(0, True), (4, False), (6, True), (8.9, True)], True, id="two come back in two"
        ),
        pytest.param([(0, True), (4, False), (6, True), (9, True)], False, id="and not more"),
        pytest.param(
            [(0, True), (4, False), (60, True), (64.9, True)], True, id="five at the most"
        ),
        pytest.param(
            [(0, True), (4, False), (60, True), (65, True)], False, id="whatever the time"
        ),
    ],
)
def test_closed_for_five_seconds_and_open_for_five(looks: list[Look], closed: bool) -> None:
    """However many claims there are one after the other."""
    closing = Closing(5)
    told = [closing.closes(wanted, 100 + at) for at, wanted in looks]
    assert told[-1] is closed
    assert (closing.until is not None) is closed


def test_somebody_is_to_look_when_it_opens() -> None:
    """At the time that is left, and at no time while it is open."""
    closing = Closing(5)
    assert closing.until is None
    closing.closes(True, 100)
    assert closing.until == 105
    closing.closes(True, 103)
    assert closing.until == 105
    closing.closes(False, 104)
    assert closing.until is None
    closing.closes(True, 105)
    assert closing.until == 107
