"""Admission under three times the load that the engine can bear: ``make bench-admission``.

Each round sends the same requests at the same moments to five set-ups at once, each with an engine of
its own; nearly all of the time everybody sleeps, so that they do not disturb each other. That this was
so is measured, too: how late the clients' own timers were.
"""

import argparse
import asyncio
import json
import math
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench import processes
from bench.load import Ask, Clients, Outcome, percentile
from bench.scenario import (
    DOCUMENTS,
    KEYS,
    MODEST,
    OPEN,
    PATIENCE_SECONDS,
    SETTINGS,
    STEPS,
    Offer,
    capacity,
    of,
)
from bench.scheduler import Machine
from bench.verdict import Figures, Target, figures, gave_way_seconds, targets

SECRETS = {key: f"sk-bench-{key}-".ljust(48, "x") for key in KEYS}

_BEAT_SECONDS = 0.01
_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """Who sends, and to what.

    Attributes:
        settings: The proxy's; None sends to the engine itself.
    """

    name: str
    keys: Sequence[str]
    settings: Mapping[str, str] | None


ONE = SetUp(name="one modest key alone", keys=MODEST[:1], settings=SETTINGS)
ALONE = SetUp(name="the modest keys alone", keys=MODEST, settings=SETTINGS)
DIRECT = SetUp(name="the modest keys alone, at the engine itself", keys=MODEST, settings=None)
SHARED = SetUp(name="all keys", keys=KEYS, settings=SETTINGS)
UNGUARDED = SetUp(name="all keys, no admission", keys=KEYS, settings=OPEN)
SET_UPS = (ONE, ALONE, DIRECT, SHARED, UNGUARDED)


class Lateness:
    """How late a timer of this process was, at the worst: how busy the machine is."""

    def __init__(self) -> None:
        self.worst_seconds = 0.0

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watches for the block."""
        beat = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beat.cancel()

    async def _beat(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due = now() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self.worst_seconds = max(self.worst_seconds, now() - due)


@dataclass(frozen=True, slots=True)
class Bench:
    """One configuration of everything.

    Attributes:
        preemptions: How often the engine of each set-up has thrown out what it had begun.
    """

    machine: Machine
    offer: Offer
    retries: int
    lateness: Lateness
    preemptions: Counter[str]

    async def round(self, seed: int, progress: Progress) -> dict[str, list[Outcome]]:
        """The outcomes of one round, by the name of the set-up."""
        asks = self.offer.asks(self.machine, seed)
        # Starting a process is work: nobody sends before all are there.
        there = asyncio.Barrier(len(SET_UPS))
        runs = [self._run(set_up, of(asks, *set_up.keys), there, progress) for set_up in SET_UPS]
        outcomes = await asyncio.gather(*runs)
        return {set_up.name: these for set_up, these in zip(SET_UPS, outcomes, strict=True)}

    async def _run(
        self, set_up: SetUp, asks: Sequence[Ask], there: asyncio.Barrier, progress: Progress
    ) -> list[Outcome]:
        async with AsyncExitStack() as stack:
            engine = url = await stack.enter_async_context(processes.engine(self.machine))
            if set_up.settings is not None:
                secrets = list(SECRETS.values())
                proxy = processes.proxy(url, secrets, set_up.settings)
                url = await stack.enter_async_context(proxy)
            clients = Clients(
                url=url,
                secrets=SECRETS,
                # What has not finished by then is not good any more, whenever it was sent.
                until_seconds=self.offer.seconds + PATIENCE_SECONDS,
                retries=self.retries,
            )
            bar = progress.add_task(set_up.name, total=len(asks))
            await there.wait()
            async with self.lateness.watch():
                outcomes = await clients.run(asks, on_end=lambda _: progress.advance(bar))
            self.preemptions[set_up.name] += await processes.preemptions(engine)
            return outcomes


def main() -> None:
    """Runs the rounds and prints what came of them."""
    arguments = _arguments()
    machine = Machine(shared_prefill=not arguments.prompts_by_age)
    offer = Offer(seconds=arguments.seconds, total=arguments.times, modest=arguments.modest)
    lateness = Lateness()
    bench = Bench(machine, offer, arguments.retries, lateness, Counter())
    outcomes: dict[str, list[Outcome]] = {set_up.name: [] for set_up in SET_UPS}
    gave_way: list[float] = []

    async def rounds() -> None:
        for number in range(1, arguments.rounds + 1):
            with _progress(number, arguments.rounds) as progress:
                new = await bench.round(arguments.seed + number - 1, progress)
            gave_way.extend(gave_way_seconds(new[SHARED.name]))
            for name, these in new.items():
                outcomes[name] += these

    asyncio.run(rounds())
    met = targets(
        alone=outcomes[ALONE.name],
        shared=outcomes[SHARED.name],
        unguarded=outcomes[UNGUARDED.name],
        modest=MODEST,
        patience_seconds=PATIENCE_SECONDS,
    )
    rows = dict(_rows(outcomes))
    facts = {
        "steps_per_minute": round(capacity(machine, STEPS) * 60, 1),
        "documents_per_minute": round(capacity(machine, DOCUMENTS) * 60, 1),
        "rounds": arguments.rounds,
        "first_seed": arguments.seed,
        "retries": arguments.retries,
        "gave_way_p99_ms": round(percentile(gave_way, 99) * 1000, 1) if gave_way else None,
        "preemptions": bench.preemptions.total(),
        "timers_late_ms": round(lateness.worst_seconds * 1000, 1),
    }
    if arguments.json:
        _print_json(machine, offer, facts, rows, met)
    else:
        _print(facts, rows, met)
    raise SystemExit(0 if all(target.met for target in met) else 1)


def _rows(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[tuple[str, dict[str, Figures]]]:
    for set_up in SET_UPS:
        these = outcomes[set_up.name]
        groups = {
            key: figures((o for o in these if o.ask.key == key), PATIENCE_SECONDS)
            for key in set_up.keys
        }
        if len(groups) > 1:
            modest = (o for o in these if o.ask.key in MODEST)
            groups["modest, together"] = figures(modest, PATIENCE_SECONDS)
        yield set_up.name, groups


def _print(
    facts: Mapping[str, object],
    rows: Mapping[str, Mapping[str, Figures]],
    met: Sequence[Target],
) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for name, groups in rows.items():
        table = Table(title=name, title_justify="left", title_style="bold")
        table.add_column("")
        for heading in ("sent", "finished", "in 30 s", "cut off"):
            table.add_column(heading, justify="right")
        table.add_column("first byte, s:\np50 / p95 / p99", justify="right")
        table.add_column("the last\nrefusal, s", justify="right")
        table.add_column("refused, and broken")
        for key, seen in groups.items():
            counts = (seen.offered, seen.finished, seen.good, seen.cut)
            ended = {**seen.refused, **seen.errors}
            table.add_row(
                key,
                *map(str, counts),
                " / ".join(map(_seconds, seen.first_byte)),
                f"{seen.longest_refusal:.2f}" if seen.refused else "",
                ", ".join(f"{count} {why}" for why, count in sorted(ended.items())),
            )
        console.print(table)
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))
    table = Table(title="targets", title_justify="left", title_style="bold")
    for heading in ("", "measured", "target", ""):
        table.add_column(heading)
    for target in met:
        word = "[green]met[/]" if target.met else "[red]missed[/]"
        table.add_row(target.name, target.measured, target.bound, word)
    console.print(table)


def _seconds(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "never"


def _print_json(
    machine: Machine,
    offer: Offer,
    facts: Mapping[str, object],
    rows: Mapping[str, Mapping[str, Figures]],
    met: Sequence[Target],
) -> None:
    report = {
        "machine": asdict(machine),
        "offer": asdict(offer),
        "settings": dict(SETTINGS),
        **facts,
        "set_ups": {
            name: {key: _plain(asdict(seen)) for key, seen in groups.items()}
            for name, groups in rows.items()
        },
        "targets": [asdict(target) for target in met],
    }
    sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _plain(value: object) -> object:
    """JSON has no infinity: what was never answered is null."""
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@contextmanager
def _progress(number: int, rounds: int) -> Iterator[Progress]:
    console = Console(stderr=True)
    console.print(f"round {number} of {rounds} …")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield progress


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-admission")
    parser.add_argument("--rounds", type=int, default=3, help="each with a seed of its own")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long is sent")
    parser.add_argument("--times", type=float, default=3.0, help="the engine's capacity, in all")
    parser.add_argument("--modest", type=float, default=0.1, help="of it, by each modest key")
    parser.add_argument("--retries", type=int, default=0, help="after what Retry-After says")
    parser.add_argument(
        "--prompts-by-age",
        action="store_true",
        help="an engine without --long-prefill-token-threshold",
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
