"""The state of the engine, check by check: when it changes, and when it does not yet."""

from collections.abc import Sequence

import pytest

from proxy.upstream.readings import Reading
from proxy.upstream.states import Check, Course, Health, State

# One check a letter, one second apart.
HEALTHS = {
    "o": (Health.WELL, ""),
    "r": (Health.ABSENT, "refused"),
    "l": (Health.LOADING, "unavailable"),
    "f": (Health.FAILING, "failing"),
    "s": (Health.FAILING, "silent"),
}


def states(course: Course, letters: str, start: float = 0.0) -> list[State]:
    """The state after each of these checks, without readings."""
    seen = []
    for index, letter in enumerate(letters):
        health, why = HEALTHS[letter]
        course.note(Check(at=start + index, health=health, why=why))
        seen.append(course.state)
    return seen


@pytest.mark.parametrize(
    ("checks", "states_then", "reason"),
    [
        pytest.param("o", "R", "", id="ready at the first success"),
        pytest.param("r", "S", "refused", id="nobody there is starting"),
        pytest.param("rrrrrrrro", "SSSSSSSSR", "", id="and ready at the first success"),
        pytest.param("rrlllo", "SSSSSR", "", id="it binds, loads, and is ready"),
        pytest.param("sssss", "SSSSS", "silent", id="never there, whatever it does, is starting"),
        pytest.param("fffff", "SSSSS", "failing", id="so is failing from the start"),
        pytest.param("orr", "RRR", "", id="two refusals change nothing"),
        pytest.param("orrr", "RRRS", "refused", id="three are a restart"),
        pytest.param("orrro", "RRRSR", "", id="after which the first success counts"),
        pytest.param("offoffo", "RRRRRRR", "", id="two failures and a success change nothing"),
        pytest.param("offf", "RRRD", "failing", id="three failures in a row are down"),
        pytest.param("osss", "RRRD", "silent", id="so are three times of silence"),
        pytest.param("ofsf", "RRRD", "failing", id="or three of different kinds"),
        pytest.param("ofsr", "RRRS", "refused", id="the last of which says what it is"),
        pytest.param("olll", "RRRD", "unavailable", id="503 once it was ready is a dead engine"),
        pytest.param("offfo", "RRRDD", "failing", id="one success is not back yet"),
        pytest.param("offfoo", "RRRDDR", "", id="two are"),
        pytest.param("offfofo", "RRRDDDD", "failing", id="not if there is a failure between"),
        pytest.param("offfr", "RRRDS", "refused", id="down, and then it is restarted"),
        pytest.param("offfrllo", "RRRDSSSR", "", id="loads again, and is ready"),
        pytest.param("orrrss", "RRRSDD", "silent", id="it was there, vanished and hangs"),
        pytest.param("orrrl", "RRRSS", "unavailable", id="it was there, vanished and loads"),
    ],
)  # fmt: skip
def test_the_states(checks: str, states_then: str, reason: str) -> None:
    """After each check: Starting, Ready, Down."""
    course = Course()
    assert "".join(state.name[0] for state in states(course, checks)) == states_then
    assert course.reason == reason


def test_nobody_has_looked_yet() -> None:
    """That is no state in which requests are served."""
    assert (Course().state, Course().reason) == (State.STARTING, "not_asked_yet")
    assert [state for state in State if state.serves] == [State.READY, State.SATURATED]


def reading(**figures: float | None) -> Reading:
    """One of an engine that works: its tokens are its progress."""
    tokens = figures.pop("tokens", 0.0)
    return Reading(engine="vllm", progress=(tokens,), **{"running": 1, **figures})  # type: ignore[arg-type]


def loads(course: Course, readings: Sequence[Reading | None], start: float = 0.0) -> str:
    """The first letter of the state after each of these, all with good health, a second apart."""
    seen = ""
    for index, each in enumerate(readings):
        course.note(Check(at=start + index, health=Health.WELL, reading=each))
        seen += "W" if course.state is State.SATURATED else course.state.name[0]
    return seen


IDLE = reading(running=0, waiting=0, kv_usage=0.0)
WAITS = reading(running=0, waiting=1, kv_usage=0.1)
FULL = reading(running=0, waiting=0, kv_usage=0.951)
NEARLY = reading(running=0, waiting=0, kv_usage=0.95)


@pytest.mark.parametrize(
    ("readings", "states_then", "reason"),
    [
        pytest.param([WAITS] * 3, "RRW", "requests_wait", id="requests wait in it three times"),
        pytest.param([FULL] * 3, "RRW", "kv_cache_full", id="its cache is full three times"),
        pytest.param([NEARLY] * 9, "R" * 9, "", id="its cache is nearly full"),
        pytest.param([WAITS, FULL, WAITS], "RRW", "requests_wait", id="one or the other"),
        pytest.param([WAITS, WAITS, IDLE] * 3, "R" * 9, "", id="never three times in a row"),
        pytest.param([WAITS, None, WAITS, WAITS], "RRRW", "requests_wait", id="a gap between"),
        pytest.param([WAITS] * 3 + [IDLE] * 4, "RRWWWWW", "requests_wait", id="four good ones"),
        pytest.param([WAITS] * 3 + [IDLE] * 5, "RRWWWWWR", "", id="five good ones"),
        pytest.param(
            [WAITS] * 3 + [IDLE] * 4 + [WAITS] + [IDLE] * 4,
            "RRW" + "W" * 9,
            "requests_wait",
            id="five good ones not in a row",
        ),
        pytest.param([WAITS] * 3 + [None] * 15, "RRW" + "W" * 15, "requests_wait", id="15 s ago"),
        pytest.param([WAITS] * 3 + [None] * 16, "RRW" + "W" * 15 + "R", "", id="16 s ago"),
        pytest.param([reading()] * 9, "R" * 9, "", id="it does not tell"),
    ],
)
def test_saturation(readings: list[Reading | None], states_then: str, reason: str) -> None:
    """After several in a row, and over after more of them."""
    course = Course()
    assert loads(course, readings) == states_then
    assert course.reason == reason


def test_a_saturated_engine_that_fails_is_down() -> None:
    """And not saturated when it comes back some time later."""
    course = Course()
    assert loads(course, [WAITS] * 3) == "RRW"
    assert [state.name[0] for state in states(course, "ffsoo", 3.0)] == list("SSDDS")
    assert [state.name[0] for state in states(course, "fffoo", 30.0)] == list("SSDDR")


def at_work(seconds: int, **figures: float | None) -> list[Reading | None]:
    """So many readings in which nothing moves."""
    return [reading(**figures)] * seconds


@pytest.mark.parametrize(
    ("readings", "states_then"),
    [
        pytest.param(at_work(60), "R" * 60, id="59 s without a token"),
        pytest.param(at_work(61), "R" * 60 + "D", id="60 s without a token"),
        pytest.param(at_work(200, running=0), "R" * 200, id="nothing runs, so nothing has to move"),
        pytest.param(at_work(200, running=None), "R" * 200, id="it does not tell what runs"),
        pytest.param(at_work(200, tokens=None), "R" * 200, id="it does not tell what moves"),
        pytest.param(
            at_work(59) + at_work(59, tokens=1.0) + at_work(61, tokens=2.0),
            "R" * (59 + 59 + 60) + "D",
            id="60 s since the last token",
        ),
        pytest.param(
            [*at_work(59), IDLE, *at_work(59)], "R" * 119, id="another request runs since then"
        ),
        pytest.param(
            at_work(61) + at_work(1, tokens=1.0), "R" * 60 + "DR", id="it goes on after all"
        ),
        pytest.param([*at_work(61), IDLE], "R" * 60 + "DR", id="they have all been given up"),
        pytest.param(at_work(5) + [None] * 56 + at_work(1), "R" * 61 + "D", id="with a gap"),
        pytest.param(
            at_work(61) + [None] * 60, "R" * 60 + "D" * 61, id="it tells nothing any more"
        ),
        pytest.param(
            at_work(61) + [None] * 61, "R" * 60 + "D" * 61 + "R", id="for too long to say"
        ),
    ],
)
def test_a_stall(readings: list[Reading | None], states_then: str) -> None:
    """Its health is good, requests run, and nothing has moved for a minute."""
    course = Course()
    assert loads(course, readings) == states_then
    assert course.reason == ("stalled" if states_then.endswith("D") else "")


def test_an_engine_that_had_stalled_and_was_restarted_is_ready() -> None:
    """Even if it does not show its figures any more."""
    course = Course()
    assert loads(course, at_work(61)).endswith("D")
    assert [state.name[0] for state in states(course, "rrrlo", 61.0)] == list("DDSSR")


@pytest.mark.parametrize(
    ("checks", "states_then"),
    [
        pytest.param("lo", "DD", id="one success is not back yet, as from any other outage"),
        pytest.param("loo", "DDR", id="two are, and the stall is forgotten"),
        pytest.param("foo", "DDD", id="a failure that is no restart forgets nothing"),
    ],
)
def test_an_engine_that_had_stalled_and_loads_again(checks: str, states_then: str) -> None:
    """It may be so quick that nobody sees it refuse."""
    course = Course()
    assert loads(course, at_work(61)).endswith("D")
    assert "".join(state.name[0] for state in states(course, checks, 61.0)) == states_then


def test_restarts_are_counted() -> None:
    """Also where no check has fallen into the gap."""
    course = Course()
    of_then, of_now = Reading(engine="vllm", started_at=1.0), Reading(engine="vllm", started_at=2.0)
    loads(course, [of_then, of_then, None, of_now, of_now])
    assert course.restarts == 1
