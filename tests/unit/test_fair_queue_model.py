"""The fair queue against its rules written down in plain lists, and the bound on anybody's wait."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.admission.absent import REMEMBERED_SECONDS
from proxy.admission.closing import Closing
from proxy.admission.parties import Entry
from proxy.admission.queue import FairQueue

PATIENCE = 5

NAMES = ("a", "b", "c", "anonymous d", "anonymous e")


def stranger(account: str) -> bool:
    """Whether it is an address."""
    return account.startswith("anonymous")


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
    turns: dict[str, int] = field(default_factory=dict)
    absent: dict[str, float] = field(default_factory=dict)
    now_serving: int = 0
    passed_over: list[Asked] = field(default_factory=list)
    kept_for: Asked | None = None
    beside: list[Asked] = field(default_factory=list)
    closing: Closing = field(default_factory=lambda: Closing(PATIENCE))

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
        """Whoever waits and is below its share has its turn after those who do already."""
        may = {a.account for a in self.waiting if len(self.held(a.account)) < self.share}
        kept = may | {"strangers"} | set(self.absent)
        self.turns = {who: turn for who, turn in self.turns.items() if who in kept}
        for account in dict.fromkeys(asked.account for asked in self.waiting):
            if account in may and account not in self.turns:
                self.turns[account] = self.number()

    def forget(self, now: float) -> None:
        """Nobody keeps a place for ever, nor where nobody waits."""
        for account, since in list(self.absent.items()):
            if not self.waiting or now - since >= REMEMBERED_SECONDS:
                del self.absent[account]
        self.line_up()

    def number(self) -> int:
        """The next of all numbers."""
        self.now_serving += 1
        return self.now_serving

    def join(self, asked: Asked, now: float) -> None:
        """Waits; with the first stranger, all of them."""
        self.forget(now)
        self.absent.pop(asked.account, None)
        if stranger(asked.account) and not any(stranger(a.account) for a in self.waiting):
            self.turns["strangers"] = self.number()
        self.waiting.append(asked)
        self.line_up()

    def holds(self, account: str) -> int:
        """How many it holds, strangers together."""
        if not stranger(account):
            return len(self.held(account))
        return sum(stranger(asked.account) for asked in self.holding)

    def order(self) -> list[str]:
        """Whose turn it is, and whose then."""
        accounts = [account for account in self.turns if account != "strangers"]
        fronts: dict[int, int] = {}
        for account in accounts:
            if not stranger(account):
                turn, held = self.turns[account], self.holds(account)
                fronts[held] = min(turn, fronts.get(held, turn))
        return sorted(
            (account for account in accounts if account not in self.absent),
            key=lambda account: (
                self.holds(account),
                self.turns["strangers"] if stranger(account) else fronts[self.holds(account)],
                len(self.held(account)),
                self.turns[account],
            ),
        )

    def leave(self, asked: Asked, now: float) -> None:
        """Gives up; a turn that had come is the next one's of its account."""
        self.waiting.remove(asked)
        if asked in self.passed_over:
            self.passed_over.remove(asked)
            for heir in self.of(asked.account)[:1]:
                self.pass_over(heir, now)
        account = asked.account
        if not stranger(account) and not self.of(account) and not self.held(account):
            self.absent[account] = now
        self.forget(now)

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
        self.forget(now)
        asked = self.choose(now)
        self.forget(now)
        return asked

    def choose(self, now: float) -> Asked | None:
        """Who gets it, of those that wait."""
        claim = next((asked for asked in self.passed_over if self.keeps(asked, now)), None)
        if claim is not self.kept_for:
            self.kept_for, self.beside = claim, []
        closed = self.closing.closes(claim is not None, now)
        early = None if claim is None else self.before(claim, now)
        if early is not None:
            return self.serve(early)
        if claim is not None and closed and claim.tokens <= self.free:
            return self.serve(claim)
        for account in self.order():
            head, *younger = self.of(account)
            free = self.free if claim is None else self.may_have(account, claim, closed)
            may = [head] if self.claims(head, now) else [head, *younger]
            for asked in may:
                if asked.tokens <= free:
                    if asked is not head:
                        self.pass_over(head, now)
                    return self.serve(asked)
            self.pass_over(head, now)
        if claim is not None and claim.tokens <= self.free:
            return self.serve(claim)
        return None

    def before(self, claim: Asked, now: float) -> Asked | None:
        """Who goes before a claim."""
        for account in self.order():
            if self.turns[account] < self.turns[claim.account] and self.holds_nothing(
                account, claim
            ):
                head, *younger = self.of(account)
                may = [head] if self.claims(head, now) else [head, *younger]
                for asked in may:
                    if asked.tokens <= self.free:
                        if asked is not head:
                            self.pass_over(head, now)
                        return asked
        return None

    def holds_nothing(self, account: str, claim: Asked) -> bool:
        """As it is seen from where the claim is."""
        as_one = not stranger(claim.account)
        return not (self.holds(account) if as_one else len(self.held(account)))

    def keeps(self, asked: Asked, now: float) -> bool:
        """Whether others may have to wait for it."""
        accounts = {asked.account for asked in self.waiting + self.holding}
        part = sum(other.tokens for other in self.held(asked.account))
        counts = asked.account in self.turns and part * len(accounts) <= self.tokens
        return counts and self.claims(asked, now)

    def may_have(self, account: str, claim: Asked, closed: bool) -> int:
        """What an account may have although somebody has a claim."""
        if not closed and self.holds_nothing(account, claim):
            return self.free
        passed = sum(asked.tokens for asked in self.beside)
        return min(self.free, max(0, self.tokens - claim.tokens - passed))

    def serve(self, asked: Asked) -> Asked:
        """It holds, and its account goes to the end."""
        self.waiting.remove(asked)
        if asked in self.passed_over:
            self.passed_over.remove(asked)
        self.holding.append(asked)
        if self.kept_for is not None and asked is not self.kept_for:
            self.beside.append(asked)
        self.to_the_end(asked.account)
        return asked

    def done(self, asked: Asked) -> None:
        """It gives back what it held."""
        self.holding.remove(asked)
        if asked in self.beside:
            self.beside.remove(asked)
        self.to_the_end(asked.account)

    def to_the_end(self, account: str) -> None:
        """Holding more or fewer than before, it is behind those that hold as many."""
        self.turns.pop(account, None)
        if stranger(account):
            self.turns["strangers"] = self.number()
        self.line_up()

    def gives_way(self, newcomer: Asked) -> bool:
        """Whether it is the newcomer that goes."""
        most = max(len(self.of(asked.account)) for asked in self.peers())
        return newcomer in self.peers() and len(self.of(newcomer.account)) == most

    def peers(self) -> list[Asked]:
        """Of whom one gives way: strangers, if no key has more than they have together."""
        strangers = [asked for asked in self.waiting if stranger(asked.account)]
        keys = [asked for asked in self.waiting if asked not in strangers]
        most = max((len(self.of(asked.account)) for asked in keys), default=0)
        return strangers if len(strangers) >= most else keys


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 4), st.integers(0, 60)),
        st.tuples(st.just("join"), st.integers(0, 4), st.integers(0, 60)),
        st.tuples(st.just("done"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("again"), st.integers(0, 50), st.integers(0, 60)),
        st.tuples(st.just("later"), st.integers(0, 14), st.just(0)),
    ),
    # Without a least, most would be of about five.
    min_size=20,
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
            due, waiting = queue.closed_until, len(queue)
            self.now += number
            self.serve()
            # Time alone lets nobody in of whom the queue has not said when.
            assert len(queue) == waiting or (due is not None and due <= self.now)
        elif what == "join":
            self.join(Asked(NAMES[number], tokens))
        elif what == "done" and model.holding:
            asked = model.holding[number % len(model.holding)]
            queue.done(self.entries[asked])
            model.done(asked)
        elif what in {"leave", "again"} and model.waiting:
            asked = model.waiting[number % len(model.waiting)]
            queue.leave(self.entries[asked], self.now)
            model.leave(asked, self.now)
            if what == "again":
                self.join(Asked(asked.account, tokens))
        self.serve()

    def join(self, asked: Asked) -> None:
        """Somebody comes, and has to go again or makes another go if there is no place."""
        model, queue = self.model, self.queue
        self.entries[asked] = queue.join(asked.account, asked.tokens, self.now)
        model.join(asked, self.now)
        leaving = queue.give_way()
        if len(model.waiting) <= model.size:
            assert leaving is None
            return
        gone = next(known for known, entry in self.entries.items() if entry is leaving)
        if model.gives_way(asked):
            assert gone is asked
        else:
            most = max(len(model.of(other.account)) for other in model.peers())
            assert gone in model.peers()
            assert len(model.of(gone.account)) == most
            assert most > len(model.of(asked.account)) or not stranger(asked.account)
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
        assert all(len(model.held(account)) <= model.share for account in NAMES)
        assert self.queue.accounts == len({a.account for a in model.waiting + model.holding})


COMES_BACK = [("join", 0, 0), ("join", 1, 0), ("join", 2, 0), ("again", 0, 0), ("done", 0, 0)]


@example(COMES_BACK, 8, 1, 1)
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
        twins.join(Asked(NAMES[number], tokens))
    there = list(twins.model.waiting)
    twins.serve()
    rounds = 0
    while any(asked in twins.model.waiting for asked in there):
        # The oldest ends, and whoever made use of it comes again with something small.
        twins.now += seconds
        twins.take("done", 0, 0)
        for account in range(5):
            twins.join(Asked(NAMES[account], account))
        twins.serve()
        rounds += 1
        # A turn a request and account, and a drain of all slots with the patience before it.
        assert rounds <= len(there) * (5 + slots + 5 * PATIENCE)
