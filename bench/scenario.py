"""The scenario: who shares the machine, what they send, and how its operator has set the proxy.

Where the numbers come from, and what they leave out, is in bench/README.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.load import Ask, Mix, Spread, arrivals
from bench.scheduler import Machine, Scheduler, Sequence

GREEDY = "greedy"
MODEST = ("modest-1", "modest-2", "modest-3", "modest-4")
KEYS = (*MODEST, GREEDY)

# An agent's steps, or a chat: a few thousand tokens in, a tool call or a paragraph out.
STEPS = Mix(prompt=Spread(3_000, 8_000, 500, 60_000), output=Spread(60, 160, 10, 800))

# A batch job over documents.
DOCUMENTS = Mix(prompt=Spread(16_000, 40_000, 4_000, 110_000), output=Spread(200, 600, 50, 2_000))

PATIENCE_SECONDS = 30.0
"""What is finished within this of being sent counts as good."""

# What the operator of a machine of four sequences sets, for five people with agents.
SETTINGS: Mapping[str, str] = {
    "max_prompt_chars": "500000",
    "max_output_tokens": "4096",
    "max_inflight": "4",
    "key_max_inflight": "1",
    "queue_size": "6",
    "queue_timeout_seconds": "25",
}

# The same proxy with nothing in the way: what a proxy without admission control is.
OPEN: Mapping[str, str] = {
    **SETTINGS,
    "max_inflight": "65536",
    "key_max_inflight": "65536",
    "queue_size": "0",
    "kv_budget_tokens": "off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How much is sent, as multiples of what the engine can do of that kind.

    Attributes:
        total: By all keys together.
        modest: By each modest key.
    """

    seconds: float = 60.0
    total: float = 3.0
    modest: float = 0.1

    def asks(self, machine: Machine, seed: int) -> list[Ask]:
        """Everything that is sent in one round, by all keys."""
        steps = self.modest * capacity(machine, STEPS)
        documents = (self.total - self.modest * len(MODEST)) * capacity(machine, DOCUMENTS)
        asks = [ask for key in MODEST for ask in arrivals(key, steps, self.seconds, STEPS, seed)]
        return asks + arrivals(GREEDY, documents, self.seconds, DOCUMENTS, seed)


def of(asks: Iterable[Ask], *keys: str) -> list[Ask]:
    """Those of some keys."""
    return [ask for ask in asks if ask.key in keys]


def capacity(machine: Machine, mix: Mix, requests: int = 400) -> float:
    """Requests of this kind that the engine finishes in a second when it is never idle nor crowded."""
    scheduler = Scheduler(machine)
    todo = arrivals("capacity", 1.0, requests, mix, 0)
    tick, passed, finished, total = 0.05, 0.0, 0, len(todo)
    while finished < total:
        while todo and scheduler.running + scheduler.waiting < machine.max_sequences:
            ask = todo.pop()
            scheduler.submit(Sequence(ask.prompt_tokens, ask.output_tokens))
        finished += sum(sequence.finished for sequence in scheduler.step(tick))
        passed += tick
    return total / passed
