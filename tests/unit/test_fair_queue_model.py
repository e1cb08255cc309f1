"""The fair queue against its rules written down in plain lists, and the bound on anybody's wait."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.queue import Entry, FairQueue

PATIENCE = 5


@dataclass(eq=False)
class Asked:
    """One request, as the model knows it."""

    account: str
    tokens: int
    passed_over: float | None = None


@dataclass
class Model:
    """The rules, each in a line or two, searched from the front."""

    size: int
    share: int
    tokens: int
    waiting: list[Asked] = field(default_factory=list)
    holding: list[Asked] = field(default_factory=list)
    ring: list[str] = field(default_factory=list)
    passed_over: list[Asked] = field(default_factory=list)

    def of(self, account: str) -> list[Asked]:
        """Its requests that wait."""
        return [asked for asked in self.waiting if asked.account == account]

    def held(self, account: str) -> list[Asked]:
        """Its requests that hold."""
        return [asked for asked in self.holding if asked.account == account]

    @property
    def free(self) -> int:
        """Tokens that nobody holds."""
        return self.tokens - sum(asked.tokens for asked in self.holding)

    def line_up(self) -> None:
        """Whoever waits and is below its share stands in the ring."""
        may = {a.account for a in self.waiting if len(self.held(a.account)) < self.share}
        self.ring = [account for account in self.ring if account in may]
        for account in dict.fromkeys(asked.account for asked in self.waiting):
            if account in may and account not in self.ring:
                self.ring.append(account)

    def leave(self, asked: Asked, now: float) -> None:
        """Gives up; a turn that had come is the next one's of its account."""
        self.waiting.remove(asked)
        if asked in self.passed_over:
            self.passed_over.remove(asked)
            for heir in self.of(asked.account)[:1]:
                self.pass_over(heir, now)
        self.line_up()

    def pass_over(self, asked: Asked, now: float) -> None:
        """Its turn has come, and it does not fit."""
        if asked.passed_over is None:
            asked.passed_over = now
            self.passed_over.append(asked)

    def claims(self, asked: Asked, now: float) -> bool:
        """Whether nothing may pass it."""
        return asked.passed_over is not None and now - asked.passed_over >= PATIENCE

    def next(self, now: float) -> Asked | None:
        """Who gets a free slot."""
        accounts = {asked.account for asked in self.waiting + self.holding}
        for asked in self.passed_over:
            part = sum(other.tokens for other in self.held(asked.account))
            counts = asked.account in self.ring and part * len(accounts) <= self.tokens
            if counts and self.claims(asked, now):
                return self.serve(asked) if asked.tokens <= self.free else None
        for account in sorted(self.ring, key=lambda account: len(self.held(account))):
            head, *younger = self.of(account)
            may = [head] if self.claims(head, now) else [head, *younger]
            for asked in may:
                if asked.tokens <= self.free:
                    if asked is not head:
                        self.pass_over(head, now)
                    return self.serve(asked)
            self.pass_over(head, now)
        return None

    def serve(self, asked: Asked) -> Asked:
        """It holds, and its account goes to the end."""
        self.waiting.remove(asked)
        if asked in self.passed_over:
            self.passed_over.remove(asked)
        self.holding.append(asked)
        self.to_the_end(asked.account)
        return asked

    def done(self, asked: Asked) -> None:
        """It gives back what it held."""
        self.holding.remove(asked)
        self.to_the_end(asked.account)

    def to_the_end(self, account: str) -> None:
        """Holding more or fewer than before, it is behind those that hold as many."""
        self.ring = [other for other in self.ring if other != account]
        self.line_up()

    def gives_way(self, newcomer: Asked) -> bool:
        """Whether it is the newcomer that goes."""
        most = max(len(self.of(asked.account)) for asked in self.waiting)
        return len(self.of(newcomer.account)) == most


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 4), st.integers(0, 60)),
        st.tuples(st.just("join"), st.integers(0, 4), st.integers(0, 60)),
        st.tuples(st.just("done"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("later"), st.integers(0, 4), st.just(0)),
    ),
    max_size=80,
)


class Twins:
    """The queue and the model, told the same."""

    def __init__(self, size: int, share: int, slots: int) -> None:
        self.queue: FairQueue[Any] = FairQueue(size=size, share=share, patience_seconds=PATIENCE)
        self.model = Model(size=size, share=share, tokens=100)
        self.slots = slots
        self.now = 0.0
        self.entries: dict[Asked, Entry[Any]] = {}

    def take(self, what: str, number: int, tokens: int) -> None:
        """One step, and everybody whose turn it is then."""
        model, queue = self.model, self.queue
        if what == "later":
            self.now += number
        elif what == "join":
            self.join(Asked("abcde"[number], tokens))
        elif what == "done" and model.holding:
            asked = model.holding[number % len(model.holding)]
            queue.done(self.entries[asked])
            model.done(asked)
        elif what == "leave" and model.waiting:
            asked = model.waiting[number % len(model.waiting)]
            queue.leave(self.entries[asked], self.now)
            model.leave(asked, self.now)
        self.serve()

    def join(self, asked: Asked) -> None:
        """Somebody comes, and has to go again or makes another go if there is no place."""
        model, queue = self.model, self.queue
        self.entries[asked] = queue.join(asked.account, asked.tokens, self.now)
        model.waiting.append(asked)
        model.line_up()
        leaving = queue.give_way()
        if len(model.waiting) <= model.size:
            assert leaving is None
            return
        gone = next(known for known, entry in self.entries.items() if entry is leaving)
        if model.gives_way(asked):
            assert gone is asked
        else:
            most = max(len(model.of(other.account)) for other in model.waiting)
            assert len(model.of(gone.account)) == most > len(model.of(asked.account))
            assert gone is model.of(gone.account)[-1]
        assert leaving is not None
        queue.leave(leaving, self.now)
        model.leave(gone, self.now)

    def serve(self) -> None:
        """Both give away what there is to the same ones."""
        model = self.model
        while len(model.holding) < self.slots:
            free = model.free
            expected = model.next(self.now)
            entry = self.queue.next(free, model.tokens, self.now)
            assert entry is (expected and self.entries[expected])
            if expected is None:
                break
        assert len(self.queue) == len(model.waiting) <= model.size
        assert all(len(model.held(account)) <= model.share for account in "abcde")
        assert self.queue.accounts == len({a.account for a in model.waiting + model.holding})


@given(STEPS, st.integers(0, 8), st.integers(1, 3), st.integers(1, 4))
def test_the_queue_follows_its_rules(
    steps: list[tuple[str, int, int]], size: int, share: int, slots: int
) -> None:
    """Whatever comes, goes and is given back when: the same are served, and in the same order."""
    twins = Twins(size, share, slots)
    for what, number, tokens in steps:
        twins.take(what, number, tokens)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 7),
)
def test_everybody_has_a_turn(
    asking: list[tuple[int, int]], share: int, slots: int, seconds: int
) -> None:
    """With newcomers for ever, whoever was there is served within a bound: nobody starves."""
    twins = Twins(10_000, share, slots)
    for number, tokens in asking:
        twins.join(Asked("abcde"[number], tokens))
    there = list(twins.model.waiting)
    twins.serve()
    rounds = 0
    while any(asked in twins.model.waiting for asked in there):
        # The oldest ends, and whoever made use of it comes again with something small.
        twins.now += seconds
        twins.take("done", 0, 0)
        for account in range(5):
            twins.join(Asked("abcde"[account], account))
        twins.serve()
        rounds += 1
        # A turn a request and account, and a drain of all slots with the patience before it.
        assert rounds <= len(there) * (5 + slots + 5 * PATIENCE)
