"""The limits of keys, by a clock of the test's own: both sides of each, in words and in fields."""

from dataclasses import dataclass

import pytest

from proxy.admission.rates import Grant, RateLimits, build
from proxy.admission.rates.memory import MemoryBooks
from proxy.admission.rates.wording import duration
from proxy.errors import RateLimitExceeded, RequestExceedsRateLimit
from proxy.principal import Allowance

DAY = 86_400.0


@dataclass
class Clock:
    """A clock that the test moves. It begins at a turn of minutes and of days."""

    now: float = 10 * DAY

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """What time it is."""
    return Clock()


@pytest.fixture
def rates(clock: Clock) -> RateLimits:
    """Limits that are kept here."""
    return build(clock=clock)


def field(fields: object, name: str) -> str | None:
    """One of the fields, which no name has twice."""
    assert isinstance(fields, list | tuple)
    found = [value.decode() for key, value in fields if key == name.encode()]
    assert len(found) <= 1
    return found[0] if found else None


def told(fields: object, noun: str) -> tuple[str | None, str | None, str | None]:
    """Limit, remaining and reset."""
    limit, remaining, reset = (
        field(fields, f"x-ratelimit-{what}-{noun}") for what in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset


async def fill(rates: RateLimits, name: str, limit: int) -> None:
    """Uses all of one limit."""
    allowance = Allowance(**{name: limit})  # type: ignore[arg-type]
    if name == "requests_per_minute":
        for _ in range(limit):
            await rates.admit("k", allowance)
    else:
        await rates.reserve("k", allowance, limit)


async def one_more(rates: RateLimits, name: str, limit: int) -> object:
    """Uses one more of it."""
    allowance = Allowance(**{name: limit})  # type: ignore[arg-type]
    if name == "requests_per_minute":
        return await rates.admit("k", allowance)
    return await rates.reserve("k", allowance, 1)


OVER_TIME = [
    pytest.param("requests_per_minute", 61, "10 requests a minute", id="requests a minute"),
    pytest.param("tokens_per_minute", 61, "10 tokens a minute", id="tokens a minute"),
    pytest.param("tokens_per_day", 86_401, "10 tokens a day", id="tokens a day"),
]


@pytest.mark.parametrize(("name", "seconds", "said"), OVER_TIME)
async def test_a_limit_over_time(
    rates: RateLimits, clock: Clock, name: str, seconds: int, said: str
) -> None:
    """Ten pass, the eleventh is told when it will, and then it does, and no second sooner."""
    await fill(rates, name, 10)
    with pytest.raises(RateLimitExceeded) as refused:
        await one_more(rates, name, 10)
    # The window itself, and a moment of the next one.
    assert refused.value.retry_after_seconds == seconds
    assert said in refused.value.message
    assert f"{name} of the key" in refused.value.message
    assert f"PROXY_KEY_{name.upper()}" in refused.value.message
    assert duration(seconds * 10).decode() in refused.value.message
    noun = "requests" if name.startswith("requests") else "tokens"
    assert told(refused.value.headers, noun)[:2] == ("10", "0")
    clock.now += seconds - 1
    with pytest.raises(RateLimitExceeded) as early:
        await one_more(rates, name, 10)
    assert early.value.retry_after_seconds == 1
    clock.now += 1
    await one_more(rates, name, 10)
    with pytest.raises(RateLimitExceeded):
        await one_more(rates, name, 10)


@pytest.mark.parametrize(
    ("of_key", "tokens"),
    [
        pytest.param({"tokens_per_minute": 100}, 100, id="as large as a minute passes"),
        pytest.param({"tokens_per_day": 100}, 100, id="as large as a day passes"),
        pytest.param({"tokens_per_minute": 100}, 0, id="nothing passes"),
    ],
)
async def test_a_request_as_large_as_its_limit(
    rates: RateLimits, of_key: dict[str, int], tokens: int
) -> None:
    """It waits at most for the limit to be whole."""
    await rates.reserve("k", Allowance(**of_key), tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tokens_per_minute", "tokens_per_day"])
async def test_a_request_larger_than_its_limit(rates: RateLimits, name: str) -> None:
    """No time would be enough: it is no 429, which SDKs send again."""
    allowance = Allowance(**{name: 100})  # type: ignore[arg-type]
    with pytest.raises(RequestExceedsRateLimit) as refused:
        await rates.reserve("k", allowance, 101)
    assert refused.value.status == 400
    for words in ("101 tokens", "100 tokens a ", name, f"PROXY_KEY_{name.upper()}"):
        assert words in refused.value.message
    assert refused.value.retry_after_seconds is None
    # And it has used nothing.
    await rates.reserve("k", allowance, 100)


async def test_concurrency(rates: RateLimits) -> None:
    """Two run; a third may as soon as one has ended."""
    allowance = Allowance(concurrency=2)
    first = await rates.reserve("k", allowance, 5)
    await rates.reserve("k", allowance, 5)
    with pytest.raises(RateLimitExceeded) as refused:
        await rates.reserve("k", allowance, 5)
    assert refused.value.retry_after_seconds == 1
    assert "2 requests at once" in refused.value.message
    assert "PROXY_KEY_CONCURRENCY" in refused.value.message
    assert refused.value.headers == ()
    # Another key is another matter.
    await rates.reserve("other", allowance, 5)
    rates.settle(first, 5)
    rates.settle(first, 5)
    await rates.reserve("k", allowance, 5)
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", allowance, 5)


async def test_concurrency_is_the_keys_and_not_the_minutes(rates: RateLimits, clock: Clock) -> None:
    """What runs, runs, however long it takes."""
    allowance = Allowance(concurrency=1, tokens_per_minute=10)
    grant = await rates.reserve("k", allowance, 1)
    clock.now += 10 * DAY
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", allowance, 1)
    rates.settle(grant, 1)
    await rates.reserve("k", allowance, 1)


async def test_nothing_is_charged_unless_all_is(rates: RateLimits, clock: Clock) -> None:
    """A refusal by any limit leaves all others as they were."""
    for account, allowance in enumerate(
        (
            Allowance(tokens_per_minute=100, tokens_per_day=10, concurrency=1),
            Allowance(tokens_per_minute=10, tokens_per_day=100, concurrency=1),
        )
    ):
        name = f"k{account}"
        grant = await rates.reserve(name, allowance, 10)
        rates.settle(grant, 10)
        for _ in range(3):
            with pytest.raises(RateLimitExceeded):
                await rates.reserve(name, allowance, 10)
        clear = Allowance(tokens_per_minute=100, tokens_per_day=100, concurrency=1)
        grant = await rates.reserve(name, clear, 90)
        with pytest.raises(RateLimitExceeded):
            await rates.reserve(name, clear, 1)


@pytest.mark.parametrize(
    ("allowance", "named", "seconds"),
    [
        pytest.param(
            Allowance(tokens_per_minute=10, tokens_per_day=10, concurrency=1),
            "tokens_per_day",
            86_401,
            id="of all three the day",
        ),
        pytest.param(
            Allowance(tokens_per_minute=10, tokens_per_day=100, concurrency=1),
            "tokens_per_minute",
            61,
            id="the minute rather than what runs",
        ),
        pytest.param(
            Allowance(tokens_per_minute=100, tokens_per_day=100, concurrency=1),
            "concurrency",
            1,
            id="what runs, where nothing else is in the way",
        ),
    ],
)
async def test_the_longest_wait_is_told(
    rates: RateLimits, allowance: Allowance, named: str, seconds: int
) -> None:
    """Who comes back after it is not refused by another limit that was full by then already."""
    await rates.reserve("k", allowance, 10)
    with pytest.raises(RateLimitExceeded, match=named) as refused:
        await rates.reserve("k", allowance, 1)
    assert refused.value.retry_after_seconds == seconds


async def test_settling_gives_back_what_was_not_used(rates: RateLimits) -> None:
    """A reservation is what may be used, and what is left of it is there at once."""
    allowance = Allowance(tokens_per_minute=100, tokens_per_day=100)
    grant = await rates.reserve("k", allowance, 100)
    rates.settle(grant, 30)
    rates.settle(grant, 0)  # a second time: as if it had not been said
    grant = await rates.reserve("k", allowance, 70)
    assert told(grant.fields, "tokens")[1] == "0"


async def test_settling_charges_what_was_used_beyond(rates: RateLimits) -> None:
    """An engine that gave more than was asked for has given it."""
    allowance = Allowance(tokens_per_minute=100)
    grant = await rates.reserve("k", allowance, 10)
    rates.settle(grant, 95)
    await rates.reserve("k", allowance, 5)
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", allowance, 1)


@pytest.mark.parametrize(
    ("tokens", "left"),
    [
        pytest.param(-5, 100, id="less than nothing is nothing"),
        pytest.param(10**30, 0, id="more than there can be"),
    ],
)
async def test_figures_that_cannot_be(rates: RateLimits, tokens: int, left: int) -> None:
    """Whatever an upstream says that it has used, the books hold."""
    allowance = Allowance(tokens_per_minute=100)
    rates.settle(await rates.reserve("k", allowance, 10), tokens)
    assert (
        told((await rates.reserve("k", allowance, 0)).fields, "tokens")[1] == str(left)
        if (left)
        else True
    )
    if not left:
        with pytest.raises(RateLimitExceeded):
            await rates.reserve("k", allowance, 1)


async def test_late_requests_do_not_pay_for_new_ones(rates: RateLimits, clock: Clock) -> None:
    """What was reserved in a window long past gives nothing back to the current one."""
    allowance = Allowance(tokens_per_minute=100)
    late = await rates.reserve("k", allowance, 100)
    clock.now += 300
    await rates.reserve("k", allowance, 100)
    rates.settle(late, 0)
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", allowance, 1)


async def test_a_request_over_a_turn_gives_back_to_its_own_window(
    rates: RateLimits, clock: Clock
) -> None:
    """A request that was asked in one minute and ended in the next has cost what it used."""
    allowance = Allowance(tokens_per_minute=100)
    grant = await rates.reserve("k", allowance, 100)
    clock.now += 60
    rates.settle(grant, 0)
    await rates.reserve("k", allowance, 100)


async def test_fields_of_requests(rates: RateLimits, clock: Clock) -> None:
    """How many may be made, how many are left, and when all are."""
    allowance = Allowance(requests_per_minute=3)
    assert told(await rates.admit("k", allowance), "requests") == ("3", "2", "2m0s")
    clock.now += 59.5
    assert told(await rates.admit("k", allowance), "requests") == ("3", "1", "1m1s")
    clock.now += 0.5
    assert told(await rates.admit("k", allowance), "requests") == ("3", "0", "2m0s")


@pytest.mark.parametrize(
    ("minute", "day", "expected"),
    [
        pytest.param(100, None, ("100", "90", "2m0s"), id="the minute alone"),
        pytest.param(None, 500, ("500", "490", "48h0m0s"), id="the day alone"),
        pytest.param(100, 500, ("100", "90", "2m0s"), id="the minute is tighter"),
        pytest.param(500, 100, ("100", "90", "48h0m0s"), id="the day is tighter"),
        pytest.param(100, 100, ("100", "90", "48h0m0s"), id="of equals the one that takes longer"),
    ],
)
async def test_fields_of_tokens(
    rates: RateLimits,
    minute: int | None,
    day: int | None,
    expected: tuple[str, str, str],
) -> None:
    """The tighter of the minute and the day."""
    grant = await rates.reserve("k", Allowance(tokens_per_minute=minute, tokens_per_day=day), 10)
    assert told(grant.fields, "tokens") == expected
    assert told(grant.fields, "requests") == (None, None, None)


@pytest.mark.parametrize(
    ("ticks", "text"),
    [
        pytest.param(0, b"0s", id="now"),
        pytest.param(1, b"100ms", id="a tick"),
        pytest.param(9, b"900ms", id="below a second"),
        pytest.param(10, b"1s", id="a second"),
        pytest.param(11, b"2s", id="rounded up"),
        pytest.param(599, b"1m0s", id="rounded up to a minute"),
        pytest.param(3600, b"6m0s", id="minutes have seconds"),
        pytest.param(36_000, b"1h0m0s", id="hours have minutes"),
        pytest.param(1_728_000, b"48h0m0s", id="two days are hours"),
    ],
)
def test_durations(ticks: int, text: bytes) -> None:
    """As OpenAI's API prints them, and Go's clients parse them."""
    assert duration(ticks) == text


async def test_without_limits_there_is_nothing_to_tell(rates: RateLimits) -> None:
    """No fields, no books, and a grant that can be settled all the same."""
    books = MemoryBooks(lambda: 0.0)
    rates = RateLimits(books)
    assert await rates.admit("k", Allowance()) == []
    grant = await rates.reserve("k", Allowance(), 10**12)
    assert grant == Grant(_account="k")
    rates.settle(grant, 5)
    assert len(books) == 0
    assert (rates.redis_up, rates.failures) == (True, 0)


async def test_a_limit_that_was_lowered_counts_at_once(rates: RateLimits) -> None:
    """A key file that is read again: what was used is used."""
    await rates.reserve("k", Allowance(tokens_per_minute=100), 60)
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", Allowance(tokens_per_minute=50), 1)
    await rates.reserve("k", Allowance(tokens_per_minute=61), 1)


async def test_keys_know_nothing_of_each_other(rates: RateLimits) -> None:
    """What one has used is not another's, nor told to it."""
    allowance = Allowance(requests_per_minute=5, tokens_per_minute=50)
    for account in ("a", "anonymous 192.0.2.7", "anonymous 192.0.2.8"):
        await rates.admit(account, allowance)
        await rates.reserve(account, allowance, 37)
    assert told(await rates.admit("b", allowance), "requests")[1] == "4"
    assert told((await rates.reserve("b", allowance, 1)).fields, "tokens")[1] == "49"


async def test_strangers_are_bounded_and_keys_are_not(clock: Clock) -> None:
    """Of addresses the last ones are remembered; of keys all, and those that run in any case."""
    books = MemoryBooks(clock, max_strangers=10)
    rates = RateLimits(books)
    allowance = Allowance(requests_per_minute=1, concurrency=1)
    runs = await rates.reserve("anonymous 0", allowance, 0)
    for number in range(100):
        await rates.admit(f"anonymous {number}", allowance)
        await rates.admit(f"k{number}", allowance)
    assert len(books) == 10 + 100
    # The first has used no request that is remembered, but the one that runs is.
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("anonymous 0", allowance, 0)
    rates.settle(runs, 0)
    await rates.reserve("anonymous 0", allowance, 0)
    # The last is remembered, and so is each key.
    for account in ("anonymous 99", "k0", "k99"):
        with pytest.raises(RateLimitExceeded):
            await rates.admit(account, allowance)


async def test_an_account_that_was_forgotten_is_settled_in_peace(clock: Clock) -> None:
    """Its reservation went with it; one that came since is not touched by it."""
    rates = RateLimits(MemoryBooks(clock, max_strangers=1))
    allowance = Allowance(tokens_per_minute=100)
    forgotten = await rates.reserve("anonymous 1", allowance, 50)
    await rates.reserve("anonymous 2", allowance, 50)
    rates.settle(forgotten, 10)
    assert told((await rates.reserve("anonymous 2", allowance, 0)).fields, "tokens")[1] == "50"


@pytest.mark.parametrize("account", ["k", "anonymous 192.0.2.7"])
async def test_an_account_that_was_forgotten_is_charged_all_the_same(
    clock: Clock, account: str
) -> None:
    """A request so long that nothing of its account was left counts when it ends."""
    rates = RateLimits(MemoryBooks(clock, max_strangers=1))
    allowance = Allowance(tokens_per_minute=100)
    long = await rates.reserve(account, allowance, 50)
    clock.now += 600
    for other in ("k1", "k2", "anonymous 1"):
        await rates.reserve(other, allowance, 1)
    rates.settle(long, 90)
    assert told((await rates.reserve(account, allowance, 0)).fields, "tokens")[1] == "60"


async def test_keys_that_are_gone_are_forgotten(clock: Clock) -> None:
    """Keys come and go for years: those whose counters say nothing make room."""
    books = MemoryBooks(clock)
    rates = RateLimits(books)
    for number in range(1_000):
        await rates.admit(f"k{number}", Allowance(requests_per_minute=1))
        clock.now += 60
    assert len(books) <= 4


@pytest.mark.parametrize("start", [0.0, 7.5, 59.9])
@pytest.mark.parametrize("limit", [1, 7, 60])
async def test_no_minute_holds_much_more_than_its_limit(
    rates: RateLimits, clock: Clock, limit: int, start: float
) -> None:
    """Whoever asks ten times a second for ten minutes gets the limit each minute, and a start."""
    clock.now += start
    made = 0
    for _ in range(6_000):
        clock.now += 0.1
        try:
            await rates.admit("k", Allowance(requests_per_minute=limit))
        except RateLimitExceeded:
            continue
        made += 1
    assert 9 * limit <= made <= 11 * limit


@pytest.mark.parametrize(
    ("used", "seconds", "told_not_to"),
    [
        pytest.param(0, 61, False, id="a minute: the SDKs wait for it"),
        pytest.param(
            86_400 - 121, 121, True, id="two minutes and a second: nobody should sleep on"
        ),
        pytest.param(86_400 - 120, 120, False, id="two minutes"),
    ],
)
async def test_who_would_wait_for_very_long_is_told_not_to(
    rates: RateLimits, clock: Clock, used: int, seconds: int, told_not_to: bool
) -> None:
    """Anthropic's SDK would sleep until tomorrow; ``x-should-retry`` keeps it from that."""
    name = "tokens_per_day" if used else "requests_per_minute"
    clock.now = 10 * DAY
    await fill(rates, name, 10)
    clock.now += used and used + 1
    with pytest.raises(RateLimitExceeded) as refused:
        await one_more(rates, name, 10)
    assert refused.value.retry_after_seconds == seconds
    assert ((b"x-should-retry", b"false") in refused.value.headers) == told_not_to
