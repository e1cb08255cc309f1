"""``make bench``: see ``bench/README.md``."""

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.dataplane import judging, machine, programs, tables, traffic
from bench.dataplane.figures import Figures
from bench.dataplane.measuring import INTERVAL_MS, QUICK, Bench, Cores, Lengths
from bench.dataplane.subjects import SUBJECTS, Subject

_SPARE_DESCRIPTORS = 200
_QUICKLY = ("direct", "bulwark", "obvious", "nginx")
_COUNTS = ", ".join(str(count) for count in INTERVAL_MS)


def main() -> int:
    """Measures, shows, stores; gives the exit status."""
    arguments = _arguments()
    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    say = Console(stderr=True, highlight=False)
    lengths = QUICK if arguments.quick else Lengths()
    lengths = replace(
        lengths, streams=arguments.streams or lengths.streams, in_step=not arguments.spread
    )
    chosen = _chosen(arguments.only, quick=arguments.quick)
    for subject in chosen:
        if subject.missing:
            say.print(f"skipped: {subject.name}, {subject.program} is not installed")
    chosen = [subject for subject in chosen if not subject.missing]
    _raise_descriptors(lengths, say)
    facts = machine.facts(chosen)
    say.print(f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_before']}")
    try:
        seen = _measured(chosen, lengths, say)
    except programs.NoCompilerError as exc:
        say.print(str(exc))
        return 2
    verdicts = judging.judge(seen)
    tables.show(Console(), seen, verdicts)
    if arguments.json:
        stored = {
            "machine": facts,
            "quick": arguments.quick,
            "in_step": lengths.in_step,
            "subjects": {name: figures.plain() for name, figures in seen.items()},
            "targets": [
                {
                    "name": v.name,
                    "measured": v.measured,
                    "most": v.most,
                    "unit": v.unit,
                    "met": v.met,
                }
                for v in verdicts
            ],
        }
        arguments.json.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n")
    if not arguments.check:
        return 0
    reasons = judging.reasons_to_fail(verdicts)
    for reason in reasons:
        say.print(reason, soft_wrap=True)
    return int(bool(reasons))


def _measured(chosen: list[Subject], lengths: Lengths, say: Console) -> dict[str, Figures]:
    built = programs.build()
    cores = Cores.split(sorted(os.sched_getaffinity(0)))
    if not cores.subject:
        say.print("one core: the subjects share it with the load, so that only CPU times mean much")
    seen: dict[str, Figures] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bulwark-bench-") as folder,
        traffic.upstream(built, cores.load) as upstream,
    ):
        bodies = traffic.Bodies.written(Path(folder))
        for subject in chosen:
            bench = Bench(
                programs=built,
                bodies=bodies,
                upstream=upstream,
                cores=cores,
                lengths=lengths,
                say=lambda word, name=subject.name: say.print(f"{name}: {word} …"),  # type: ignore[misc]
            )
            seen[subject.name] = bench.measure(subject)
            for fault in seen[subject.name].faults:
                say.print(f"{subject.name}: {fault}", markup=False, soft_wrap=True)
    return seen


def _chosen(only: str | None, *, quick: bool) -> list[Subject]:
    if only is None:
        return [s for s in SUBJECTS if not quick or s.name in _QUICKLY]
    names = only.split(",")
    unknown = set(names) - {subject.name for subject in SUBJECTS}
    if unknown:
        known = ", ".join(subject.name for subject in SUBJECTS)
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {known}")
    return [subject for subject in SUBJECTS if subject.name in names]


def _raise_descriptors(lengths: Lengths, say: Console) -> None:
    """As many as are allowed, which all that is started inherits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A proxy has two connections for each stream.
    needed = 2 * max(lengths.streams) + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        say.print(f"ulimit -Hn is {hard}: {max(lengths.streams):,} streams need {needed:,}")


def streams_of(text: str) -> tuple[int, ...]:
    """How many streams at a time, one after the other.

    Raises:
        argparse.ArgumentTypeError: Of one there is nothing to say how fast its events come.
    """
    counts = {str(count): count for count in INTERVAL_MS}
    asked = text.split(",")
    if not counts.keys() >= set(asked):
        raise argparse.ArgumentTypeError(f"{text!r}: there are {_COUNTS}, with commas in between")
    return tuple(counts[one] for one in asked)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench")
    names = ", ".join(subject.name for subject in SUBJECTS)
    parser.add_argument("--only", metavar="NAMES", help=f"comma separated, of {names}")
    parser.add_argument(
        "--quick", action="store_true", help=f"a minute: {', '.join(_QUICKLY)}; 64 streams only"
    )
    parser.add_argument(
        "--streams",
        type=streams_of,
        metavar="COUNTS",
        help=f"how many at a time, comma separated, of {_COUNTS}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to store everything")
    parser.add_argument(
        "--spread", action="store_true", help="each stream at a phase of its own, not in step"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit status 1 unless all targets were measured, and are met",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
