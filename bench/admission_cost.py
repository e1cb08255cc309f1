"""What admission costs in CPU: ``python -m bench.admission_cost``. No sockets, no engine, no refusals.

10,000 keys out of a file, each with a limit of every kind, all of which have been used before, in
random order: the caches are as cold as they get. The parts are those that requests pass, put together
as ``proxy.app`` does. Each figure is the best of several passes over all keys, because whatever else
the machine does can only add to it.
"""

import argparse
import json
import random
import sys
from collections.abc import Awaitable, Callable
from time import monotonic, process_time

import uvloop
from rich.console import Console
from rich.table import Table

from proxy.admission import rates
from proxy.admission.estimates import Estimates
from proxy.admission.gate import Demand, Gate
from proxy.admission.kv import TokenBudget
from proxy.admission.slots import Slots
from proxy.auth.credentials import credential
from proxy.auth.keys import KeyRecord, KeyStore, digest, generate
from proxy.errors import Dialect
from proxy.principal import Allowance

TARGET_US = 20.0
_ADMISSION = "admission"
"""What the target is of: the stages of the design that are called so. Who asks is decided before."""

_KEYS = 10_000
_PASSES = 7
_DEMAND = Demand(text_bytes=12_000, media_parts=0, output_tokens=4_096)
_PROMPT_TOKENS = 3_000
_USED_TOKENS = 3_200
_ALLOWANCE = Allowance(
    requests_per_minute=10**6, tokens_per_minute=10**9, tokens_per_day=10**9, concurrency=100
)

Headers = list[tuple[bytes, bytes]]
Step = Callable[[Headers, str], Awaitable[object]]


class Parts:
    """What a request passes, with the state of 10,000 keys."""

    def __init__(self, keys: list[str]) -> None:
        records = [
            KeyRecord(key_id=_account(key), sha256=digest(key.encode()), allowance=_ALLOWANCE)
            for key in keys
        ]
        self._store = KeyStore(file=records)
        self._rates = rates.build(clock=monotonic)
        self._budget = TokenBudget()
        self._budget.set_pool(186_624)
        self._budget.note_load(0, 0.3, monotonic())
        self._slots = Slots(
            max_inflight=32,
            key_max_inflight=24,
            queue_size=64,
            queue_timeout_seconds=30.0,
            clock=monotonic,
            budget=self._budget,
        )
        self._estimates = Estimates(media_tokens=2_000)
        self._gate = Gate(
            rates=self._rates, slots=self._slots, estimates=self._estimates, budget=self._budget
        )

    async def nothing(self, _headers: Headers, _account: str) -> None:
        """What measuring costs."""

    async def authenticate(self, headers: Headers, _account: str) -> None:
        """Whose key it is."""
        self._store.authenticate(credential(headers, Dialect.OPENAI))

    async def requests(self, _headers: Headers, account: str) -> None:
        """One more request in this minute."""
        await self._rates.admit(account, _ALLOWANCE)

    async def tokens(self, _headers: Headers, account: str) -> None:
        """Tokens a minute and a day, and concurrency: reserved, and settled."""
        grant = await self._rates.reserve(account, _ALLOWANCE, 7_096)
        self._rates.settle(grant, _USED_TOKENS)

    async def estimate(self, _headers: Headers, account: str) -> None:
        """What the prompt is taken for, and what was learnt of it."""
        self._estimates.prompt_tokens(account, _DEMAND.text_bytes, 0)
        self._estimates.learn(account, _DEMAND.text_bytes, 0, _PROMPT_TOKENS)

    async def slot(self, _headers: Headers, account: str) -> None:
        """A place and room in the cache: held, and given back."""
        async with self._slots.hold(account, 7_096):
            pass

    async def known(self, _headers: Headers, account: str) -> None:
        """All of it but authentication, in the order in which requests pass it."""
        await self._admission(account, _ALLOWANCE)

    async def everything(self, headers: Headers, _account: str) -> None:
        """All of it."""
        principal = self._store.authenticate(credential(headers, Dialect.OPENAI))
        await self._admission(principal.key_id, principal.allowance)

    async def _admission(self, account: str, allowance: Allowance) -> None:
        await self._rates.admit(account, allowance)
        async with self._gate.admit(account, allowance, _DEMAND) as admitted:
            admitted.used_tokens = _USED_TOKENS
            self._gate.learn(account, _DEMAND, _PROMPT_TOKENS)


async def measure() -> dict[str, float]:
    """Microseconds of CPU that each part takes, without what measuring takes; the whole is last."""
    keys = [generate() for _ in range(_KEYS)]
    parts = Parts(keys)
    asks = [(_headers(key), _account(key)) for key in keys]
    random.Random(1).shuffle(asks)  # noqa: S311 - an order, not a secret
    steps: dict[str, Step] = {
        "nothing": parts.nothing,
        "authentication": parts.authenticate,
        "requests a minute": parts.requests,
        "tokens a minute, a day, and concurrency": parts.tokens,
        "estimates": parts.estimate,
        "slot and KV budget": parts.slot,
        _ADMISSION: parts.known,
        "with authentication": parts.everything,
    }
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(_PASSES):
        for name, step in steps.items():
            best[name] = min(best[name], await _cpu_us(step, asks))
    nothing = best.pop("nothing")
    return {name: us - nothing for name, us in best.items()}


async def _cpu_us(step: Step, asks: list[tuple[Headers, str]]) -> float:
    start = process_time()
    for headers, account in asks:
        await step(headers, account)
    return (process_time() - start) / len(asks) * 1e6


def _headers(key: str) -> Headers:
    return [
        (b"host", b"llm.example.org"),
        (b"user-agent", b"OpenAI/Python 3.57.0"),
        (b"accept", b"application/json"),
        (b"content-type", b"application/json"),
        (b"authorization", f"Bearer {key}".encode()),
        (b"content-length", b"12345"),
    ]


def _account(key: str) -> str:
    """The public id: ``sk-bw-<id>-…``."""
    return key.split("-")[2]


def main() -> None:
    """Prints the table; fails if admission costs more than its target."""
    parser = argparse.ArgumentParser(prog="python -m bench.admission_cost")
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    figures = uvloop.run(measure())
    total = figures[_ADMISSION]
    if as_json:
        rounded = {name: round(us, 2) for name, us in figures.items()}
        report = {"keys": _KEYS, "cpu_us": rounded, "target_us": TARGET_US}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        table = Table(title=f"CPU of admission, {_KEYS:,} keys", title_justify="left")
        table.add_column("")
        table.add_column("µs a request", justify="right")
        for name, us in figures.items():
            table.add_row(name, f"{us:.2f}")
        console = Console()
        console.print(table)
        word = "[green]met[/]" if total <= TARGET_US else "[red]missed[/]"
        console.print(f"target for {_ADMISSION} ≤ {TARGET_US:g} µs: {word}")
    raise SystemExit(0 if total <= TARGET_US else 1)


if __name__ == "__main__":
    main()
