"""Books that are kept elsewhere, by a double of theirs: when what is said, and what is given up."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from proxy.admission.rates.guarded import GuardedBooks
from proxy.admission.rates.ledger import AnsweredError, Ask, Charge, Decision, LinkError
from proxy.admission.rates.limits import RateLimits
from proxy.admission.rates.memory import MemoryBooks
from proxy.admission.rates.shared import read_decision
from proxy.admission.rates.window import TOKENS, Reading
from tests.harness.forwarding import until

ASK = Ask((TOKENS,), (10,), 1, 5)
GRANT = Decision(None, 0, [Reading(7, 9, 1200)])


class Elsewhere:
    """Answers what the test says, when the test says."""

    def __init__(self) -> None:
        self.answers = True
        self.fails_one: LinkError | None = None
        self.taken = self.probed = self.closed = 0
        self.settled: list[tuple[Charge, int]] = []
        self.renewed: list[tuple[str, tuple[str, ...]]] = []
        self.before_answer: Callable[[], Awaitable[object]] | None = None

    async def take(self, account: str, ask: Ask, lease: str) -> Decision:
        """A grant."""
        self.taken += 1
        await self._say()
        if self.fails_one is not None:
            raise self.fails_one
        return GRANT

    async def settle(self, charge: Charge, used: int) -> None:
        """Kept."""
        await self._say()
        self.settled.append((charge, used))

    async def renew(self, account: str, leases: Iterable[str]) -> None:
        """Kept."""
        self.renewed.append((account, tuple(leases)))
        await self._say()

    async def probe(self, seconds: float | None = None) -> None:
        """Whether it answers."""
        self.probed += 1
        await self._say()

    async def aclose(self) -> None:
        """Counted."""
        self.closed += 1

    async def _say(self) -> None:
        if self.before_answer is not None:
            await self.before_answer()
        if not self.answers:
            raise LinkError("it is away")


@pytest.fixture
def elsewhere() -> Elsewhere:
    """The double."""
    return Elsewhere()


async def stop(task: "asyncio.Task[None]") -> None:
    """Its end."""
    task.cancel()
    await asyncio.wait([task])


async def test_an_outage_is_told_once_and_counted_always(elsewhere: Elsewhere) -> None:
    """Ten requests that ask just then: ten failures, one outage, and nobody asks again."""
    told: list[tuple[bool, str]] = []
    failures: list[int] = []
    books = GuardedBooks(
        elsewhere,
        on_change=lambda up, why: told.append((up, why)),
        on_failure=lambda: failures.append(1),
        retry_seconds=3600,
    )
    elsewhere.answers = False
    answers = await asyncio.gather(*(books.take("k", ASK, "") for _ in range(10)))
    assert answers == [None] * 10
    assert (books.up, books.failures, len(failures)) == (False, 10, 10)
    assert told == [(False, "it is away")]
    assert await books.take("k", ASK, "") is None
    assert elsewhere.taken == 10


@pytest.mark.parametrize(
    ("error", "up", "probed"),
    [
        pytest.param(AnsweredError("WRONGTYPE"), True, 1, id="what one account has is unreadable"),
        pytest.param(AnsweredError("ERR"), True, 1, id="the script failed with it"),
        pytest.param(AnsweredError("READONLY"), False, 0, id="a replica"),
        pytest.param(AnsweredError("OOM"), False, 0, id="no memory"),
        pytest.param(AnsweredError("NOAUTH"), False, 0, id="no password"),
        pytest.param(AnsweredError("LOADING"), False, 0, id="it is not there yet"),
        pytest.param(AnsweredError("NOSCRIPT"), False, 0, id="it does not take the script"),
        pytest.param(LinkError("it ended the connection"), False, 0, id="no answer"),
    ],
)
async def test_a_failure_of_one_is_no_outage(
    elsewhere: Elsewhere, error: LinkError, up: bool, probed: int
) -> None:
    """It goes without Redis, and a probe tells whether all others would have to as well."""
    books = GuardedBooks(elsewhere)
    elsewhere.fails_one = error
    assert await books.take("k", ASK, "") is None
    await books.flush()
    assert (books.up, books.failures, elsewhere.probed) == (up, 1, probed)
    elsewhere.fails_one = None
    assert (await books.take("other", ASK, "") is not None) is up


async def test_a_failure_of_one_that_is_a_failure_of_all(elsewhere: Elsewhere) -> None:
    """The probe fails, too."""
    books = GuardedBooks(elsewhere)
    elsewhere.fails_one = AnsweredError("ERR")

    async def fail_probes() -> None:
        elsewhere.answers = not elsewhere.probed

    elsewhere.before_answer = fail_probes
    assert await books.take("k", ASK, "") is None
    await books.flush()
    assert (books.up, books.failures) == (False, 2)


@pytest.mark.parametrize("late", [True, False], ids=["late", "in time"])
async def test_the_first_connection(elsewhere: Elsewhere, late: bool) -> None:
    """Whoever asks meanwhile waits a little, and is no outage if that is not enough."""
    books = GuardedBooks(elsewhere)
    gate = asyncio.Event()
    elsewhere.before_answer = gate.wait
    running = asyncio.create_task(books.run())
    await until(lambda: elsewhere.probed == 1)
    asked = asyncio.create_task(books.take("k", ASK, ""))
    if not late:
        gate.set()
    assert await asked == (None if late else GRANT)
    gate.set()
    await until(lambda: books._first is None)
    assert (books.up, books.failures) == (True, 0)
    assert await books.take("k", ASK, "") == GRANT
    await stop(running)


@pytest.mark.parametrize("asks", [True, False], ids=["a request", "nobody"])
async def test_it_is_in_use_once_it_has_answered(elsewhere: Elsewhere, asks: bool) -> None:
    """Not before: a key may be refused meanwhile. Nothing is told of it, for nothing has changed."""
    told: list[bool] = []
    books = GuardedBooks(elsewhere, on_change=lambda up, _why: told.append(up))
    rates = RateLimits(MemoryBooks(lambda: 0.0), books)
    gate = asyncio.Event()
    elsewhere.before_answer = gate.wait
    # Whoever serves without `run` has its first answer from a request.
    started = asyncio.create_task(books.take("k", ASK) if asks else books.run())
    await until(lambda: elsewhere.taken + elsewhere.probed == 1)
    assert not rates.redis_up
    gate.set()
    await until(lambda: rates.redis_up)
    assert told == []
    started.cancel()
    await asyncio.wait([started])


async def test_who_waits_for_the_first_connection_and_it_fails(elsewhere: Elsewhere) -> None:
    """He is told as soon as it is known."""
    books = GuardedBooks(elsewhere)
    gate = asyncio.Event()
    elsewhere.before_answer, elsewhere.answers = gate.wait, False
    running = asyncio.create_task(books.run())
    await until(lambda: elsewhere.probed == 1)
    asked = asyncio.create_task(books.take("k", ASK, ""))
    gate.set()
    assert await asked is None
    assert (books.up, books.failures, elsewhere.taken) == (False, 1, 0)
    await stop(running)


async def test_who_leaves_gives_back_what_comes_later(elsewhere: Elsewhere) -> None:
    """The answer that nobody waits for is settled with nothing used."""
    books = GuardedBooks(elsewhere)
    gate = asyncio.Event()
    elsewhere.before_answer = gate.wait
    asking = asyncio.create_task(books.take("k", ASK, "a"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert elsewhere.settled == []
    gate.set()
    await until(lambda: bool(elsewhere.settled))
    assert elsewhere.settled == [(Charge("k", (TOKENS,), 1, [7], "a"), 0)]


async def test_who_leaves_an_answer_that_never_comes_owes_nothing(elsewhere: Elsewhere) -> None:
    """There is nothing to give back, and the outage is noticed all the same."""
    books = GuardedBooks(elsewhere)
    gate = asyncio.Event()
    elsewhere.before_answer = gate.wait
    elsewhere.answers = False
    asking = asyncio.create_task(books.take("k", ASK, "a"))
    await asyncio.sleep(0)
    asking.cancel()
    gate.set()
    await until(lambda: not books.up)
    await books.flush()
    assert elsewhere.settled == []


async def test_what_failed_to_be_settled_is_not_said_twice(elsewhere: Elsewhere) -> None:
    """Perhaps it was done; what was never said is said on its return, the oldest given up first."""
    books = GuardedBooks(elsewhere, retry_seconds=0)
    elsewhere.answers = False
    charge = Charge("k", (TOKENS,), 1, [7])
    books.settle(charge, 1)
    await until(lambda: not books.up)
    for used in range(2, 1_503):
        books.settle(charge, used)
    elsewhere.answers = True
    running = asyncio.create_task(books.run())
    await until(lambda: books.up)
    await books.flush()
    assert [used for _, used in elsewhere.settled] == list(range(503, 1_503))
    await stop(running)
    await books.aclose()
    assert elsewhere.closed == 1


async def test_leases_are_renewed_by_account(elsewhere: Elsewhere) -> None:
    """One word for each account, however many of its requests run, and none for who has ended."""
    books = GuardedBooks(elsewhere, renew_seconds=0)
    for number in range(250):
        books.hold(f"k{number % 125}", f"l{number}")
    books.let_go("l0")
    running = asyncio.create_task(books.run())
    await until(lambda: len(elsewhere.renewed) >= 125)
    assert dict(elsewhere.renewed[:125]) == {
        f"k{number}": (f"l{number}", f"l{number + 125}") if number else ("l125",)
        for number in range(125)
    }
    await stop(running)


async def test_what_began_before_the_first_connection_is_told_by_it(elsewhere: Elsewhere) -> None:
    """At once: until then the other proxies do not know that it runs."""
    books = GuardedBooks(elsewhere, renew_seconds=3600)
    books.hold("k", "a")
    running = asyncio.create_task(books.run())
    await until(lambda: books._first is None and elsewhere.probed == 1)
    await until(lambda: elsewhere.renewed == [("k", ("a",))])
    await stop(running)


async def test_what_ends_while_it_is_renewed_is_ended_again(elsewhere: Elsewhere) -> None:
    """Its renewal may have overtaken its end, and would leave a lease of nobody."""
    books = GuardedBooks(elsewhere, renew_seconds=0)
    books.hold("k", "a")
    books.hold("k", "b")

    async def meanwhile() -> None:
        if elsewhere.renewed:
            books.let_go("a")

    running = asyncio.create_task(books.run())
    elsewhere.before_answer = meanwhile
    await until(lambda: bool(elsewhere.settled))
    assert elsewhere.settled[0] == (Charge("k", (), 0, [], "a"), 0)
    await stop(running)
    await books.flush()


async def test_a_renewal_notices_that_nobody_answers(elsewhere: Elsewhere) -> None:
    """Without any request that asks."""
    books = GuardedBooks(elsewhere, renew_seconds=0, retry_seconds=0)
    books.hold("k", "a")
    running = asyncio.create_task(books.run())
    await until(lambda: bool(elsewhere.renewed))
    elsewhere.answers = False
    await until(lambda: not books.up)
    probed = elsewhere.probed
    await until(lambda: elsewhere.probed > probed + 2)
    elsewhere.answers = True
    await until(lambda: books.up)
    await stop(running)


async def test_names_of_leases_are_nobody_elses(elsewhere: Elsewhere) -> None:
    """Of two proxies, and of one."""
    one, other = GuardedBooks(elsewhere), GuardedBooks(elsewhere)
    assert len({books.lease() for books in (one, other) for _ in range(100)}) == 200


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        pytest.param(b"-1 0 7 9 1200", GRANT, id="a grant"),
        pytest.param(b"-1 0 7 10 0", Decision(None, 0, [Reading(7, 10, 0)]), id="nothing used"),
        pytest.param(b"0 61 7 0 5", Decision(0, 61, [Reading(7, 0, 5)]), id="a refusal"),
        pytest.param(
            b"0 1200 7 0 1200", Decision(0, 1200, [Reading(7, 0, 1200)]), id="the longest wait"
        ),
        pytest.param(b"1 10 7 9 5", Decision(1, 10, [Reading(7, 9, 5)]), id="too many at once"),
    ],
)
def test_what_the_script_says(answer: bytes, decision: Decision) -> None:
    """In numbers."""
    assert read_decision(answer, ASK) == decision


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"OK", id="a word"),
        pytest.param(b"-1", id="one number"),
        pytest.param(b"-1 0", id="no counter"),
        pytest.param(b"-1 0 7 9", id="half a counter"),
        pytest.param(b"-1 0 7 9 1 7 9 1", id="a counter too many"),
        pytest.param(b"-1 0 7 nan 1", id="no number"),
        pytest.param(b"1 0 7 9 1200", id="a refusal that need not be waited for"),
        pytest.param(b"2 10 7 9 1200", id="a refusal by no limit"),
        pytest.param(b"-2 0 7 9 1200", id="a grant of another kind"),
        pytest.param(b"0 1201 7 0 5", id="a wait for longer than two windows"),
        pytest.param(b"0 99999999999999999999 7 0 5", id="a wait for ever"),
        pytest.param(b"0 -1 7 0 5", id="a wait that is over"),
        pytest.param(b"-1 0 7 11 5", id="more left than there is"),
        pytest.param(b"-1 0 7 -1 5", id="less than nothing left"),
        pytest.param(b"-1 0 7 9 1201", id="a window that is too long"),
        pytest.param(b"-1 0 7 9 -300", id="a window that has ended"),
        pytest.param(b"-1 0 -7 9 5", id="a window before all others"),
    ],
)
def test_what_the_script_never_says(answer: bytes) -> None:
    """Whoever says it is not believed."""
    with pytest.raises(LinkError):
        read_decision(answer, ASK)
