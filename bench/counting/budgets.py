"""What of a count is the product's, and whether it is more than it may be. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from bench.counting.callgrind import Cut
from bench.counting.counted import EVENTS, REQUESTS

TOLERANCE = 0.05
"""Two runs differ by less than 0.005, and one more look at a body of 3 KB by json.loads is 0.1."""
TOLERANCE_ELSEWHERE = 0.15
"""Under another release of Python than the one that it was counted under."""
_LEAST_CALLS = 0.9
"""A call more in one request is a change; less is a call that comes once in a while."""
_LEAST_SHARE = 0.01
_TOLD = 8
_PARTS = (
    ("request", "product", "request", REQUESTS),
    ("event", "product", "event", EVENTS),
    ("event, no write-through", "plain", "event", EVENTS),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request, or of one event.

    Attributes:
        ratio: How many times a bare uvicorn's request it is, in instructions.
        instructions: In this build of Python; the client's and the upstream's own are taken off.
        calls: Of functions, Python's and C's.
        libraries: Instructions by the library that they are of.
        functions: Of C, those that take most.
        modules: Calls by the module that is called.
    """

    ratio: float
    instructions: float
    calls: float
    libraries: Mapping[str, float]
    functions: Mapping[str, float]
    modules: Mapping[str, float]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def costs(cuts: Mapping[str, Cut], calls: Mapping[str, Counter[str]]) -> dict[str, Cost]:
    """The product's, by what they are of."""
    functions = {name: _named(cut) for name, cut in cuts.items()}
    libraries = {name: _short(cut.objects) for name, cut in cuts.items()}
    bare = sum(_difference(functions, "bare", "request", REQUESTS).values())
    bare -= sum(_difference(functions, "direct", "request", REQUESTS).values())
    made = {}
    for title, who, what, count in _PARTS:
        by_function = _own(functions, who, what, count)
        instructions = sum(by_function.values())
        by_module = _own(calls, who, what, count)
        made[title] = Cost(
            ratio=round(instructions / bare, 4),
            instructions=round(instructions),
            calls=round(sum(by_module.values()), 2),
            libraries=_most(_own(libraries, who, what, count), instructions * _LEAST_SHARE),
            functions=_most(by_function, instructions * _LEAST_SHARE),
            modules=_most(by_module, 0.01),
        )
    return made


def judge(
    counted: Mapping[str, Cost], kept: Mapping[str, Cost], tolerance: float = TOLERANCE
) -> tuple[list[str], list[str]]:
    """What is wrong, and what is worth a word; each a line."""
    complaints, remarks = [], []
    for what, budget in kept.items():
        now = counted[what]
        grown = now.ratio / budget.ratio - 1
        line = f"{what}: {now.ratio:.3f} times a bare request, {budget.ratio:.3f} is kept: {grown:+.1%}"
        if grown > tolerance:
            complaints.append(f"{line}, more than {tolerance:.0%}; what has grown:")
            complaints.extend(_grown(now, budget))
        elif grown < -tolerance:
            remarks.append(f"{line}, less than is kept: keep it with ARGS=--update")
        else:
            remarks.append(f"{line}, within {tolerance:.0%}")
    return complaints, remarks


def _grown(now: Cost, budget: Cost) -> Iterator[str]:
    pairs = (
        ("calls of", now.modules, budget.modules, _LEAST_CALLS),
        ("instructions in", now.functions, budget.functions, budget.instructions * _LEAST_SHARE),
    )
    for unit, after, before, least in pairs:
        more = Counter({name: count - before.get(name, 0) for name, count in after.items()})
        for name, count in more.most_common(_TOLD):
            if count >= least:
                yield f"  {count:+,.1f} {unit} {name}, {after[name]:,.1f} now"


def _own(parts: Mapping[str, Counter[str]], who: str, what: str, count: int) -> Counter[str]:
    """What of the whole is neither the client's nor the upstream's."""
    own = _difference(parts, who, what, count)
    own.subtract(_difference(parts, "direct", what, count))
    return own


def _difference(parts: Mapping[str, Counter[str]], who: str, what: str, count: int) -> Counter[str]:
    """Of one, where one part had so many of them and the other twice as many."""
    twice = Counter(parts[f"{who}-{what}-2"])
    twice.subtract(parts[f"{who}-{what}-1"])
    # Values of a Counter may be fractions; its annotation does not say so.
    return Counter({name: value / count for name, value in twice.items()})


def _named(cut: Cut) -> Counter[str]:
    counts = Counter[str]()
    for (library, function), value in cut.functions.items():
        counts[f"{_library(library)}: {function}"] += value
    return counts


def _short(objects: Counter[str]) -> Counter[str]:
    counts = Counter[str]()
    for path, value in objects.items():
        counts[_library(path)] += value
    return counts


def _library(path: str) -> str:
    """Its name without the version of the platform: ``jiter.cpython-311-x86_64-linux-gnu.so``."""
    return PurePath(path).name.partition(".")[0] or "?"


def _most(counts: Counter[str], least: float) -> dict[str, float]:
    """Those that count, the largest first."""
    return {name: round(value, 2) for name, value in counts.most_common() if value >= least}
