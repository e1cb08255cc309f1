"""The parts of the benchmarks that no clock can move: the simulated engine's rules, and the figures."""

import math

import pytest

from bench.engine import exposition, measure
from bench.load import Ask, Mix, Outcome, Refusal, Spread, arrivals, percentile
from bench.rehearsal import outcomes_of
from bench.scenario import MODEST, Offer
from bench.scheduler import Machine, Scheduler, Sequence
from bench.verdict import figures, full_queue_seconds, gave_way_seconds, targets

# Round numbers: a step of a second computes 100 prompt tokens and 10 of each answer.
SMALL = Machine(
    pool_tokens=400,
    block_tokens=10,
    max_sequences=2,
    prefill_per_second=100.0,
    decode_per_second=10.0,
)


def admit(scheduler: Scheduler, *sizes: tuple[int, int]) -> list[Sequence]:
    """Requests of these sizes, prompt and answer, in this order."""
    sequences = [Sequence(*size) for size in sizes]
    for sequence in sequences:
        scheduler.submit(sequence)
    return sequences


def test_a_request_is_prefilled_and_then_answered() -> None:
    """Two seconds for 200 tokens of prompt, and two for 20 of answer."""
    scheduler = Scheduler(SMALL)
    (sequence,) = admit(scheduler, (200, 20))
    generated = []
    for _ in range(4):
        scheduler.step(1.0)
        generated.append(sequence.generated)
    assert generated == [0, 0, 10, 20]
    assert sequence.finished
    assert (scheduler.running, scheduler.usage) == (0, 0.0)
    assert (scheduler.prompt_tokens, scheduler.generated_tokens) == (200, 20)


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [pytest.param(1.0, 4, id="coarse"), pytest.param(0.1, 40, id="fine")],
)
def test_the_length_of_a_step_does_not_matter(seconds: float, steps: int) -> None:
    """What a busy machine makes longer takes no longer in all."""
    scheduler = Scheduler(SMALL)
    (sequence,) = admit(scheduler, (200, 20))
    for _ in range(steps - 1):
        scheduler.step(seconds)
    assert not sequence.finished
    scheduler.step(seconds + 1e-6)
    assert sequence.finished


def test_who_comes_third_waits_for_a_place() -> None:
    """And has it in the step after one has ended."""
    scheduler = Scheduler(SMALL)
    first, _, third = admit(scheduler, (10, 10), (10, 100), (10, 10))
    scheduler.step(1.0)
    assert (scheduler.running, scheduler.waiting) == (2, 1)
    scheduler.step(1.0)
    assert first.finished
    scheduler.step(1.0)
    assert (scheduler.running, scheduler.waiting) == (2, 0)
    assert not third.prefilling


@pytest.mark.parametrize(
    ("second", "running"),
    [
        pytest.param(200, 2, id="what just fits is let in"),
        pytest.param(201, 1, id="a block more waits, though there is a place"),
    ],
)
def test_a_prompt_has_to_fit_beside_the_whole_of_those_before(second: int, running: int) -> None:
    """Also beside what a half computed prompt has still to take."""
    scheduler = Scheduler(SMALL)
    admit(scheduler, (200, 1), (second, 1))
    scheduler.step(0.5)
    assert scheduler.running == running


def test_a_full_pool_costs_the_youngest_all_that_it_has() -> None:
    """Nothing was reserved for the answers, so that both grow until it is full."""
    scheduler = Scheduler(SMALL)
    old, young = admit(scheduler, (190, 100), (190, 100))
    while not scheduler.preemptions:
        scheduler.step(0.1)
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert young.computed == 0
    assert young.generated > 0  # What it has said it need not say again, but has to compute again.
    assert (scheduler.running, scheduler.waiting) == (1, 1)
    while not young.finished:
        scheduler.step(0.1)
    assert old.finished
    assert scheduler.recomputed_tokens > 190
    assert scheduler.generated_tokens == 200


def test_who_was_thrown_out_comes_before_who_has_not_begun() -> None:
    """As in vLLM: to the front of the queue."""
    scheduler = Scheduler(SMALL)
    _, young, new = admit(scheduler, (190, 100), (190, 100), (10, 10))
    while not scheduler.preemptions:
        scheduler.step(0.1)
    scheduler.step(0.1)
    assert (young.computed, new.computed) == (0, 0)
    while not young.computed:
        scheduler.step(0.1)
    assert not new.finished


@pytest.mark.parametrize(
    ("shared", "short_done", "long_left"),
    [
        pytest.param(True, True, 150, id="side by side, the short prompt is through"),
        pytest.param(False, False, 100, id="by age, it waits behind the long one"),
    ],
)
def test_prompts_share_the_machine(*, shared: bool, short_done: bool, long_left: int) -> None:
    """A long prompt before a short one, after the second in which the first was let in and one more."""
    machine = Machine(
        pool_tokens=400, block_tokens=10, prefill_per_second=100.0, shared_prefill=shared
    )
    scheduler = Scheduler(machine)
    long, short = admit(scheduler, (300, 10), (50, 10))
    scheduler.step(1.0)
    scheduler.step(1.0)
    assert short.prefilling is not short_done
    assert long.length - long.computed == long_left


@pytest.mark.parametrize("after", [pytest.param(0, id="waiting"), pytest.param(1, id="running")])
def test_a_client_that_leaves_frees_everything(after: int) -> None:
    """At once, wherever its request is, and a second time does no harm."""
    scheduler = Scheduler(SMALL)
    (sequence,) = admit(scheduler, (100, 10))
    for _ in range(after):
        scheduler.step(0.5)
    scheduler.abort(sequence)
    scheduler.abort(sequence)
    assert (scheduler.running, scheduler.waiting, scheduler.usage) == (0, 0, 0.0)


def test_the_engine_is_the_one_that_was_measured() -> None:
    """30 requests of 64,000 tokens, 20 at once: the owner's figures, within a twentieth.

    SGLang on two RTX PRO 6000: mean time to first token 121.9 s, mean latency 132.9 s, 53.5 tokens a
    second. It computes prompts by age and was not bounded in sequences.
    """
    scheduler = Scheduler(Machine(max_sequences=32, shared_prefill=False))
    tick, now, todo = 0.05, 0.0, 30
    began: dict[Sequence, float] = {}
    firsts: dict[Sequence, float] = {}
    whole: list[float] = []
    while todo or began:
        while todo and len(began) < 20:
            (sequence,) = admit(scheduler, (64_000, 500))
            began[sequence] = now
            todo -= 1
        now += tick
        for sequence in scheduler.step(tick):
            firsts.setdefault(sequence, now - began[sequence])
            if sequence.finished:
                whole.append(now - began.pop(sequence))
    assert sum(firsts.values()) / 30 == pytest.approx(121.9, rel=0.05)
    assert sum(whole) / 30 == pytest.approx(132.9, rel=0.05)
    assert 30 * 500 / now == pytest.approx(53.5, rel=0.05)


def test_the_metrics_page_has_the_pool() -> None:
    """Both ways in which vLLM tells it, and they agree."""
    page = exposition(Machine(), Scheduler(Machine()))
    assert 'kv_cache_size_tokens="186624"' in page
    assert 'num_gpu_blocks="729"' in page
    assert 729 * 256 == 186_624


@pytest.mark.parametrize(
    ("max_tokens", "output"),
    [
        pytest.param(None, 30, id="what was asked for in words"),
        pytest.param(20, 20, id="no more than max_tokens"),
        pytest.param(40, 30, id="no more than the words"),
    ],
)
def test_a_request_says_what_it_will_cost(max_tokens: int | None, output: int) -> None:
    """The engine reads back the sizes that were drawn."""
    ask = Ask(at=0.0, key="a", prompt_tokens=1_000, output_tokens=30)
    assert measure(ask.body(max_tokens)) == (1_000, output)


MIX = Mix(prompt=Spread(1_000, 4_000, 100, 50_000), output=Spread(100, 300, 10, 1_000))


def test_a_key_sends_the_same_whoever_else_is_there() -> None:
    """The same seed and name; another name or another seed sends something else."""
    assert arrivals("a", 2.0, 60, MIX, 1) == arrivals("a", 2.0, 60, MIX, 1)
    assert arrivals("a", 2.0, 60, MIX, 1) != arrivals("b", 2.0, 60, MIX, 1)
    assert arrivals("a", 2.0, 60, MIX, 1) != arrivals("a", 2.0, 60, MIX, 2)


def test_arrivals_are_as_many_as_was_said() -> None:
    """In order, within the time, with the sizes that were said."""
    asks = arrivals("a", 2.0, 2_000, MIX, 1)
    times = [ask.at for ask in asks]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 2_000
    assert len(asks) == pytest.approx(4_000, rel=0.1)
    prompts = [ask.prompt_tokens for ask in asks]
    assert percentile(prompts, 50) == pytest.approx(1_000, rel=0.1)
    assert percentile(prompts, 95) == pytest.approx(4_000, rel=0.15)


@pytest.mark.parametrize(
    ("size", "percent", "expected"),
    [
        pytest.param(1, 50, 1, id="of one, itself"),
        pytest.param(20, 95, 19, id="on a rank"),
        pytest.param(21, 95, 20, id="between two, the higher"),
        pytest.param(100, 99, 99, id="the last but one of a hundred"),
        pytest.param(100, 100, 100, id="the last"),
    ],
)
def test_a_percentile_is_a_value_that_was_seen(size: int, percent: int, expected: int) -> None:
    """The nearest rank, whatever the order of the values."""
    values = list(range(1, size + 1))
    assert percentile(values[::-1], percent) == expected


def test_of_nothing_there_is_no_percentile() -> None:
    """Nor a zero, which would look fast."""
    assert math.isnan(percentile([], 95))


FULL = "… wait, which is as many as may (PROXY_QUEUE_SIZE). Try again soon."
DISPLACED = (
    "… (PROXY_QUEUE_SIZE), most of them yours: the last of them gave way to somebody. Try again."
)
LATE = "… which is as long as it may (PROXY_QUEUE_TIMEOUT_SECONDS). Try again soon."


def answered(key: str, first: float, done: float) -> Outcome:
    """A request that got its answer."""
    ask = Ask(at=0.0, key=key, prompt_tokens=1, output_tokens=1)
    return Outcome(ask=ask, first_byte=first, done=done)


def refused(
    key: str, message: str, after: float, retry_after: float | None = 1.0, sent_at: float = 0.0
) -> Outcome:
    """A request that got none."""
    refusal = Refusal(
        status=503, code="overloaded", message=message, after=after, retry_after=retry_after
    )
    ask = Ask(at=sent_at, key=key, prompt_tokens=1, output_tokens=1)
    return Outcome(ask=ask, sent_at=sent_at, refusals=[refusal])


def test_who_is_refused_was_not_answered_fast() -> None:
    """A refusal counts as an answer that never came, and only what came in time is good."""
    outcomes = [answered("a", 1.0, 29.9), answered("a", 1.0, 30.1), refused("a", FULL, 0.01)]
    seen = figures(outcomes, 30.0)
    assert (seen.offered, seen.finished, seen.good) == (3, 2, 1)
    assert seen.first_byte == (1.0, math.inf, math.inf)
    assert seen.refused == {"503 queue full": 1}


def test_refusals_are_told_apart_by_what_they_name() -> None:
    """Only those of a full queue have to be there at once."""
    outcomes = [refused("a", FULL, 0.01), refused("a", DISPLACED, 9.0), refused("a", LATE, 25.0)]
    assert full_queue_seconds(outcomes) == [0.01]
    assert figures(outcomes, 30.0).refused == {
        "503 queue full": 1,
        "503 gave way": 1,
        "503 waited too long": 1,
    }


def test_who_gave_way_is_timed_from_its_newcomer() -> None:
    """The last one of another key that was sent before it heard."""
    newcomer, later = answered("b", 1.0, 2.0), answered("b", 1.0, 2.0)
    newcomer.sent_at, later.sent_at = 5.0, 9.0
    outcomes = [refused("a", DISPLACED, 4.02, sent_at=1.0), newcomer, later]
    assert gave_way_seconds(outcomes) == [pytest.approx(0.02)]


@pytest.mark.parametrize(
    ("shared", "missed"),
    [
        pytest.param([answered("m", 1.5, 2.0)], {"refusal of a full queue"}, id="no full queue"),
        pytest.param([refused("g", FULL, 0.05), answered("m", 1.5, 2.0)], set(), id="all are met"),
        pytest.param(
            [refused("g", FULL, 0.051), answered("m", 1.5, 2.0)],
            {"refusal of a full queue"},
            id="a slow refusal",
        ),
        pytest.param(
            [refused("g", FULL, 0.01, None), answered("m", 1.5, 2.0)],
            {"Retry-After"},
            id="a refusal that does not say when",
        ),
        pytest.param(
            [refused("g", FULL, 0.01), answered("m", 1.51, 2.0)],
            {"first byte"},
            id="slower than alone by more than half",
        ),
        pytest.param(
            [refused("g", FULL, 0.01), refused("m", FULL, 0.01)],
            {"first byte", "finished within"},
            id="a modest key that got nothing",
        ),
    ],
)
def test_the_targets(shared: list[Outcome], missed: set[str]) -> None:
    """Both sides of each; the modest key is `m`, and alone it sees its first byte after a second."""
    met = targets(
        alone=[answered("m", 1.0, 2.0)],
        shared=shared,
        unguarded=[answered("m", 50.0, 60.0)],
        modest=["m"],
        patience_seconds=30.0,
    )
    assert {words for words in missed for t in met if words in t.name and not t.met} == missed
    assert sum(not target.met for target in met) == len(missed)


def test_a_rehearsal_has_no_luck() -> None:
    """Two rounds of a minute and a half have the same end to the last bit."""
    machine, offer = Machine(), Offer()
    asks = offer.asks(machine, 1)
    first, second = (outcomes_of(machine, (4, 1, 6, 25.0), asks, 90.0) for _ in range(2))
    assert [(o.first_byte, o.done, o.cut) for o in first] == [
        (o.first_byte, o.done, o.cut) for o in second
    ]
    assert len(first) == len(asks)
    assert all(o.done is not None for o in first if o.ask.key in MODEST)


def test_without_admission_the_rehearsal_refuses_nobody() -> None:
    """And the engine's queue is longer than the time that is left."""
    machine = Machine()
    outcomes = outcomes_of(machine, None, Offer().asks(machine, 1), 90.0)
    assert not any(o.refusals for o in outcomes)
    assert any(o.cut for o in outcomes)
