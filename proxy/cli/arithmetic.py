"""How many requests an engine holds, and which settings do not agree with that. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from proxy.admission.estimates import Estimates
from proxy.admission.kv import TokenBudget
from proxy.config import Settings
from proxy.upstream.survey import Facts

SEEN = "at the median seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of request, and how many of it there is room for.

    Attributes:
        prompt_tokens: None where only the sum is known.
        certain_tokens: What it needs even if its estimate is too high: more is refused at once.
        sum: How its tokens come about.
        fit: How many the whole pool holds; None where it is not known.
        admitted: How many are let in at once, by the budget and by PROXY_MAX_INFLIGHT.
    """

    kind: str
    prompt_tokens: int | None
    output_tokens: int | None
    tokens: int
    certain_tokens: int
    sum: str
    fit: int | None
    admitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The answer.

    Attributes:
        budget_tokens: What may be reserved at once; None where nothing limits it.
        findings: What does not agree, a sentence each.
        set: What to set instead, by name.
    """

    facts: Facts
    budget_tokens: int | None
    rows: tuple[Row, ...]
    findings: tuple[str, ...]
    set: dict[str, str]


def work_out(facts: Facts, settings: Settings) -> Capacity:
    """What this engine holds at these settings."""
    budget = _budget(facts, settings.kv_budget_tokens)
    rows = tuple(_row(kind, facts, settings, budget) for kind in _kinds(facts, settings))
    advice = _Advice(facts, settings, budget, rows)
    findings = tuple(advice.findings())
    return Capacity(facts=facts, budget_tokens=budget, rows=rows, findings=findings, set=advice.set)


def _budget(facts: Facts, given: int | str) -> int | None:
    """As admission has it with this PROXY_KV_BUDGET_TOKENS."""
    if given == "off":
        return None
    budget = TokenBudget(given if isinstance(given, int) else None)
    if facts.pool_tokens is not None:
        budget.set_pool(facts.pool_tokens)
    return budget.limit


_BYTES_OF_CHINESE = 3
"""Of UTF-8 in a character; as of most that are neither Latin, Greek, Cyrillic nor emoji."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of request; the members as in ``Row``."""

    name: str
    prompt: int | None
    output: int | None
    tokens: int
    certain: int
    sum: str


def _kinds(facts: Facts, settings: Settings) -> Iterator[_Kind]:
    chars, output = settings.max_prompt_chars, settings.max_output_tokens
    estimates = Estimates(media_tokens=settings.media_tokens)
    for name, text in (
        ("at the caps", chars),
        ("at the caps, with all the tools", chars + settings.max_schema_chars),
        # Until a key's first answers tell how many tokens its bytes are, these count as so many.
        ("at the caps, in Chinese", chars * _BYTES_OF_CHINESE),
    ):
        prompt, certain = estimates.prompt_tokens("", text, 0), estimates.least_tokens(text)
        how = f"{text:,} bytes / 3 + {output:,}"
        yield _Kind(name, prompt, output, prompt + output, certain + output, how)
    prompt_seen, output_seen = facts.median_prompt_tokens, facts.median_output_tokens
    if prompt_seen is not None and output_seen is not None:
        both = max(1, prompt_seen + output_seen)
        how = f"{prompt_seen:,} + {output_seen:,}, as counted by the engine"
        yield _Kind(SEEN, prompt_seen, output_seen, both, both, how)
    if (context := facts.context_tokens) is not None:
        # All of it prompt, of which half is certain: by the most bytes that a token may have.
        how = "the model's own limit"
        yield _Kind("at its full context", None, None, context, context // 2, how)


def _row(kind: _Kind, facts: Facts, settings: Settings, budget: int | None) -> Row:
    admitted = settings.max_inflight
    if budget is not None:
        # One that may need more than there is has it all, and runs alone.
        at_once = 1 if kind.certain <= budget < kind.tokens else budget // kind.tokens
        admitted = min(admitted, at_once)
    return Row(
        kind=kind.name,
        prompt_tokens=kind.prompt,
        output_tokens=kind.output,
        tokens=kind.tokens,
        certain_tokens=kind.certain,
        sum=kind.sum,
        fit=None if facts.pool_tokens is None else facts.pool_tokens // kind.tokens,
        admitted=admitted,
    )


@dataclass(frozen=True, slots=True)
class _Advice:
    facts: Facts
    settings: Settings
    budget: int | None
    rows: tuple[Row, ...]

    @property
    def set(self) -> dict[str, str]:
        """What to set, by name: only what is another value now, and nothing more once it is set."""
        changes, budget = {}, self.budget
        if self._budget_is_wrong():
            changes["PROXY_KV_BUDGET_TOKENS"] = "auto"
            budget = _budget(self.facts, "auto")
        if (best := self._best(self._holds(budget))) != self.settings.max_inflight:
            changes["PROXY_MAX_INFLIGHT"] = str(best)
        return changes

    def findings(self) -> Iterator[str]:
        """What does not agree."""
        yield from self._about_seats()
        yield from self._about_the_pool()
        if self._budget_is_wrong():
            given = self.settings.kv_budget_tokens
            yield (
                "PROXY_KV_BUDGET_TOKENS=off lets in more than the KV cache holds."
                if given == "off"
                else f"PROXY_KV_BUDGET_TOKENS={given} is more than the KV cache holds."
            )

    def _about_seats(self) -> Iterator[str]:
        seats, inflight = self.facts.seats, self.settings.max_inflight
        if seats is None:
            reading = self.facts.reading
            if reading is not None and reading.running and reading.waiting:
                yield (
                    f"It runs {reading.running} requests now and lets {reading.waiting} wait: that "
                    "may be all that its --max-num-seqs allows."
                )
            return
        if seats < inflight:
            yield (
                f"PROXY_MAX_INFLIGHT={inflight} is more than the {seats} that it runs at once: the "
                "others wait in the engine, in order of arrival, instead of here, by turns."
            )
        elif seats > inflight:
            yield f"PROXY_MAX_INFLIGHT={inflight} leaves places empty: it runs {seats} at once."
        holds = self._holds(self.budget)
        if holds is not None and holds < seats:
            yield (
                f"It would run {seats} at once, and its KV cache holds {holds}: it preempts and "
                f"computes again. Start it with --max-num-seqs {max(1, holds)}."
            )

    def _about_the_pool(self) -> Iterator[str]:
        holds, inflight = self._holds(self.budget), self.settings.max_inflight
        if holds is not None and holds < inflight:
            waits = "" if self.budget is None else "; the others wait for tokens, not for a place"
            yield f"Its KV cache holds {holds} requests {self._typical().kind}, not {inflight}{waits}."
        for row in self.rows:
            yield from self._about(row)

    def _about(self, row: Row) -> Iterator[str]:
        budget, context = self.budget, self.facts.context_tokens
        if budget is not None and row.certain_tokens > budget:
            yield (
                f"A request {row.kind} is refused: it needs {row.certain_tokens:,} tokens at least, "
                f"and {budget:,} are all that there are."
            )
        elif budget is not None and row.tokens > budget:
            yield (
                f"A request {row.kind} may need {row.tokens:,} tokens of the {budget:,} that there "
                "are: it waits until it can run alone."
            )
        elif context is not None and row.tokens > context:
            yield (
                f"A request {row.kind} may need {row.tokens:,} tokens, more than the model's "
                f"context of {context:,}."
            )

    def _best(self, holds: int | None) -> int:
        """What PROXY_MAX_INFLIGHT should be where there is room for so many."""
        inflight = self.settings.max_inflight
        if self.facts.seats is not None:
            return self.facts.seats if holds is None else max(1, min(self.facts.seats, holds))
        # It may have few seats, and not say so: nothing that is known makes more of them better.
        return inflight if holds is None else max(1, min(inflight, holds))

    def _holds(self, budget: int | None) -> int | None:
        """How many of the usual requests there is room for."""
        if self.facts.pool_tokens is None:
            return None
        limit = self.facts.pool_tokens if budget is None else budget
        return min(limit, self.facts.pool_tokens) // self._typical().tokens

    def _typical(self) -> Row:
        """What was seen, or for want of that the caps."""
        seen = [row for row in self.rows if row.kind == SEEN]
        return (seen or list(self.rows))[0]

    def _budget_is_wrong(self) -> bool:
        given, pool = self.settings.kv_budget_tokens, self.facts.pool_tokens
        if pool is None:
            return False
        return given == "off" or (isinstance(given, int) and given > pool)
