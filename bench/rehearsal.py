"""The same scenario in no time: ``python -m bench.rehearsal``, to choose settings by.

The proxy's own queue and budget and the simulated engine, in a loop whose clock jumps to whatever is
next. A round of a minute and a half takes a tenth of a second, so that dozens of them show what is
luck and what is not. No sockets and no processes: what is chosen here is to be measured by
``bench.admission``.
"""

import argparse
import asyncio
import json
import math
import selectors
import sys
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from bench.engine import BYTES_PER_TOKEN, TICK_SECONDS
from bench.load import Ask, Outcome, Refusal, percentile
from bench.scenario import MODEST, PATIENCE_SECONDS, SETTINGS, Offer, of
from bench.scheduler import Machine, Scheduler
from bench.scheduler import Sequence as Running
from bench.verdict import LEAST_OVER_NONE, MOST_OVER_ALONE, figures
from proxy.admission.estimates import Estimates
from proxy.admission.kv import TokenBudget
from proxy.admission.slots import Slots
from proxy.errors import ProxyError

T = TypeVar("T")

Settings = tuple[int, int, int, float]
"""In flight, of one key, in the queue, and seconds there."""

_TICKS_PER_READING = 20  # one a second, as the monitor


class _Selector(selectors.SelectSelector):
    """Waits for nothing: the time that it was to wait has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, in a loop that sleeps through nothing. It must not wait for anything outside."""
    loop = _Loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


class Rehearsal:
    """A proxy's admission in front of an engine, for one round.

    Args:
        settings: The proxy's; None lets everybody in.
    """

    def __init__(self, machine: Machine, settings: Settings | None) -> None:
        self._clock = asyncio.get_running_loop().time
        self._scheduler = Scheduler(machine)
        self._steps: dict[Running, asyncio.Event] = {}
        self._estimates = Estimates(media_tokens=0)
        self._budget = None if settings is None else TokenBudget()
        if self._budget is not None:
            self._budget.set_pool(machine.pool_tokens)
        in_flight, of_a_key, queued, seconds = settings or (10**6, 10**6, 0, 0.0)
        self._slots = Slots(
            max_inflight=in_flight,
            key_max_inflight=of_a_key,
            queue_size=queued,
            queue_timeout_seconds=seconds,
            clock=self._clock,
            budget=self._budget,
        )
        self._output_bound = int(SETTINGS["max_output_tokens"])

    async def round(self, asks: Sequence[Ask], until_seconds: float) -> list[Outcome]:
        """What became of each."""
        engine = asyncio.create_task(self._engine())
        outcomes = await asyncio.gather(*(self._send(ask, until_seconds) for ask in asks))
        engine.cancel()
        return outcomes

    async def _engine(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for sequence in self._scheduler.step(TICK_SECONDS):
                self._steps[sequence].set()
            ticks += 1
            if self._budget is not None and ticks % _TICKS_PER_READING == 0:
                scheduler = self._scheduler
                self._budget.note_load(
                    scheduler.waiting, scheduler.usage, self._clock(), scheduler.running
                )
                self._slots.wake()

    async def _send(self, ask: Ask, until_seconds: float) -> Outcome:
        outcome = Outcome(ask=ask, sent_at=ask.at)
        await asyncio.sleep(ask.at)
        try:
            async with asyncio.timeout_at(until_seconds):
                await self._answer(ask, outcome)
        except TimeoutError:
            outcome.cut = True
        except ProxyError as exc:
            refusal = Refusal(
                status=exc.status,
                code="",
                message=str(exc),
                after=self._clock() - ask.at,
                retry_after=1.0,
            )
            outcome.refusals.append(refusal)
        return outcome

    async def _answer(self, ask: Ask, outcome: Outcome) -> None:
        text_bytes = ask.prompt_tokens * BYTES_PER_TOKEN
        tokens = self._estimates.prompt_tokens(ask.key, text_bytes, 0) + self._output_bound
        least = self._estimates.least_tokens(text_bytes) + self._output_bound
        async with self._slots.hold(ask.key, tokens, at_least=least):
            sequence = Running(ask.prompt_tokens, ask.output_tokens)
            self._steps[sequence] = asyncio.Event()
            self._scheduler.submit(sequence)
            try:
                while not sequence.finished:
                    await self._steps[sequence].wait()
                    self._steps[sequence].clear()
                    if outcome.first_byte is None:
                        outcome.first_byte = self._clock() - ask.at
            finally:
                self._scheduler.abort(sequence)
            self._estimates.learn(ask.key, text_bytes, 0, ask.prompt_tokens)
        outcome.done = self._clock() - ask.at


def outcomes_of(
    machine: Machine, settings: Settings | None, asks: Sequence[Ask], until_seconds: float
) -> list[Outcome]:
    """One round, begun and ended."""

    async def one() -> list[Outcome]:
        return await Rehearsal(machine, settings).round(asks, until_seconds)

    return run(one())


@dataclass(frozen=True, slots=True)
class Round:
    """What is sent in one round, and how much of it is good without admission."""

    asks: Sequence[Ask]
    until_seconds: float
    good: int


def rounds_of(machine: Machine, offer: Offer, seeds: Iterable[int]) -> list[Round]:
    """The rounds of these seeds."""
    until = offer.seconds + PATIENCE_SECONDS
    found = []
    for seed in seeds:
        asks = offer.asks(machine, seed)
        found.append(Round(asks, until, _good(outcomes_of(machine, None, asks, until))))
    return found


def study(machine: Machine, settings: Settings, rounds: Sequence[Round]) -> dict[str, float]:
    """What these settings come to, over all rounds together and round by round."""
    alone: list[Outcome] = []
    shared: list[Outcome] = []
    near = more = 0
    for one in rounds:
        without = of(one.asks, *MODEST)
        quiet = outcomes_of(machine, settings, without, one.until_seconds)
        busy = outcomes_of(machine, settings, one.asks, one.until_seconds)
        near += _p95(busy) <= MOST_OVER_ALONE * _p95(quiet)
        more += _good(busy) >= LEAST_OVER_NONE * one.good
        alone += quiet
        shared += busy
    modest = figures((o for o in shared if o.ask.key in MODEST), PATIENCE_SECONDS)
    return {
        "modest p95 alone, s": _p95(alone),
        "with the greedy, s": _p95(shared),
        "over alone": _p95(shared) / _p95(alone),
        f"rounds ≤ {MOST_OVER_ALONE}, %": 100 * near / len(rounds),
        "modest refused, %": 100 * sum(modest.refused.values()) / modest.offered,
        "good over none": _good(shared) / sum(one.good for one in rounds),
        f"rounds ≥ {LEAST_OVER_NONE}, %": 100 * more / len(rounds),
    }


def _p95(outcomes: Sequence[Outcome]) -> float:
    modest = [o for o in outcomes if o.ask.key in MODEST]
    return percentile([math.inf if o.first_byte is None else o.first_byte for o in modest], 95)


def _good(outcomes: Sequence[Outcome]) -> int:
    return figures(outcomes, PATIENCE_SECONDS).good


def _settings(text: str) -> Settings:
    in_flight, of_a_key, queued, seconds = text.split("/")
    return int(in_flight), int(of_a_key), int(queued), float(seconds)


def main() -> None:
    """Prints a row for each of the settings asked about."""
    usual: Mapping[str, str] = SETTINGS
    names = ("max_inflight", "key_max_inflight", "queue_size", "queue_timeout_seconds")
    parser = argparse.ArgumentParser(prog="python -m bench.rehearsal")
    parser.add_argument(
        "settings",
        nargs="*",
        type=_settings,
        default=[_settings("/".join(usual[name] for name in names))],
        metavar="IN_FLIGHT/OF_A_KEY/QUEUE/SECONDS",
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--modest", type=float, default=Offer().modest)
    parser.add_argument("--prompts-by-age", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    machine = Machine(shared_prefill=not arguments.prompts_by_age)
    offer = Offer(modest=arguments.modest)
    rounds = rounds_of(machine, offer, range(1, arguments.rounds + 1))
    rows = {}
    for settings in arguments.settings:
        name = "/".join(f"{value:g}" for value in settings)
        rows[name] = study(machine, settings, rounds)
    if arguments.json:
        plain = {
            name: {k: round(v, 3) if math.isfinite(v) else None for k, v in row.items()}
            for name, row in rows.items()
        }
        sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
        return
    table = Table()
    for heading in ("in flight/of a key/queue/s", *next(iter(rows.values()))):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.2f}" for value in row.values()))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=140).print(table)


if __name__ == "__main__":
    main()
