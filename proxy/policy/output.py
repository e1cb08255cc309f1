"""The bound on what a request may generate, through every name and multiplier that engines know.

The cap is on the request: with four sequences, each gets a quarter. Absent means "until the context
is full" to most engines, so the bound is inserted; a smaller value of the client's is never raised.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.endpoints import BodyKind
from proxy.errors import InvalidValue, OutputTooLarge, TooManyChoices
from proxy.policy.edit import Edit
from proxy.policy.limits import Limits

# The fields that bound an endpoint's output, the one that wins upstream first. Missing ones are
# inserted under the last name, which every engine reads.
OWN_FIELDS: Mapping[BodyKind, tuple[str, ...]] = {
    BodyKind.CHAT: ("max_completion_tokens", "max_tokens"),
    BodyKind.COMPLETIONS: ("max_tokens",),
    BodyKind.RESPONSES: ("max_output_tokens",),
    BodyKind.MESSAGES: ("max_tokens",),
}

# Bounded on every endpoint that generates, whoever reads them.
ALIASES = (
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "max_new_tokens",  # transformers, SGLang
    "n_predict",  # llama.cpp, where -1 is unlimited
)

# Choices of one prompt. llama.cpp reads `n_cmpl`, and `n` only where that is missing.
_CHOICES = ("n", "best_of", "n_cmpl")

_ALTERNATIVES = frozenset({"top_logprobs", "n_probs", "logprobs"})

# Numbers that our bound may make invalid.
_DEPENDENTS = frozenset({"min_tokens", "thinking_token_budget", "thinking"})

# Whatever is governed, but for an endpoint's own fields.
_UNUSUAL = {
    kind: frozenset({*ALIASES, *_CHOICES, *_ALTERNATIVES, *_DEPENDENTS}) - set(own)
    for kind, own in OWN_FIELDS.items()
}

# The completions API's own default.
COMPLETIONS_DEFAULT = 16

# Engines that may read max_tokens only: a bound under another name is given under this one too.
_READ_MAX_TOKENS_ONLY = frozenset({"transformers", "llamacpp"})

# Each generated token brings its alternatives along: this many entries make about 4 MB of JSON.
MAX_LOGPROB_ENTRIES = 32_768

_MAX_INTEGER = 2**63 - 1


class OutputBound(msgspec.Struct, frozen=True, gc=False):
    """What the output may be, and what has to change in the body for that.

    Attributes:
        sequences: Generations asked for.
        tokens: The most that each may generate.
        edits: Changes of the body.
        clamped: What was lowered and by how much, for the response's header; empty if nothing was.
    """

    sequences: int = 0
    tokens: int = 0
    edits: tuple[Edit, ...] = ()
    clamped: str = ""


def bound_output(
    kind: BodyKind, body: Mapping[str, Any], limits: Limits, *, prompts: int
) -> OutputBound:
    """The bound of each sequence, and the edits that put it into force.

    Args:
        kind: Whose fields to govern; where nothing is generated, nothing is looked at.
        body: The parsed body.
        limits: The operator's caps.
        prompts: Prompts in the body's list of them.

    Raises:
        InvalidValue: A governed number that is not a JSON integer, or out of range.
        TooManyChoices: More sequences than allowed.
        OutputTooLarge: Over the cap, and ``PROXY_OUTPUT_OVERFLOW=reject``.
    """
    own = OWN_FIELDS.get(kind)
    if own is None:
        return OutputBound()
    prompts = max(1, prompts)
    if _UNUSUAL[kind].isdisjoint(body):
        usual = _usual(kind, own, body, limits, prompts)
        if usual is not None:
            return usual
    return _Bounding(kind, body, limits).decide(prompts)


def _usual(
    kind: BodyKind, own: tuple[str, ...], body: Mapping[str, Any], limits: Limits, sequences: int
) -> OutputBound | None:
    """What ``_Bounding`` says of a body with one bound that may stay, or none; None of another.

    Most bodies have nothing else that is governed, and a tenth of the time is enough for them.
    """
    bound = min(limits.max_output_tokens // sequences, MAX_LOGPROB_ENTRIES)
    if bound < 1 or sequences > limits.max_choices:
        return None
    first, last = own[0], own[-1]
    if first in body:
        if first is not last and (last in body or limits.engine in _READ_MAX_TOKENS_ONLY):
            return None
        value = body[first]
    elif last in body:
        value = body[last]
    else:
        tokens = min(bound, _default(kind, limits, bound, sequences))
        edit = Edit((last,), b"%d" % tokens, absent=True)
        return OutputBound(sequences, tokens, (edit,))
    if type(value) is not int or not 1 <= value <= bound:
        return None
    return OutputBound(sequences, value)


def _default(kind: BodyKind, limits: Limits, bound: int, sequences: int) -> int:
    """What each sequence gets for want of a bound of the client's."""
    if kind is BodyKind.COMPLETIONS:
        return COMPLETIONS_DEFAULT
    spare = limits.default_output_tokens
    return bound if spare is None else max(1, spare // sequences)


class _Bounding:
    """The governed numbers of one body, and the changes to them."""

    def __init__(self, kind: BodyKind, body: Mapping[str, Any], limits: Limits) -> None:
        self._kind = kind
        self._body = body
        self._limits = limits
        self._changes: dict[str, int] = {}
        self._lowered: list[str] = []
        self._asked = 1

    def decide(self, prompts: int) -> OutputBound:
        """See `bound_output`."""
        sequences = self._asked = self._sequences(prompts)
        bound = self._bound(sequences)
        body = self._body
        values = {
            name: value
            for name in ALIASES
            if name in body and (value := self._number(name)) is not None
        }
        ours: set[str] = set()
        for name, value in values.items():
            if value > bound:
                if self._limits.output_overflow == "reject":
                    raise _too_large(name, value, bound, self._limits, sequences)
                self._lower(name, value, bound)
                values[name] = bound
                ours.add(name)
        effective = self._effective(values, bound, ours)
        self._lower_dependents(bound, by_us=effective in ours)
        tokens = max(values.values())
        if not self._changes:
            return OutputBound(sequences, tokens)
        edits = tuple(
            Edit(tuple(name.split(".")), str(value).encode(), absent=self._is_absent(name))
            for name, value in self._changes.items()
        )
        return OutputBound(sequences, tokens, edits, ", ".join(self._lowered))

    def _effective(self, values: dict[str, int], bound: int, ours: set[str]) -> str:
        """The field that the upstream obeys; inserted if there is none."""
        own = OWN_FIELDS[self._kind]
        last = own[-1]
        effective = next((name for name in own if name in values), None)
        if effective is None:
            default = _default(self._kind, self._limits, bound, self._asked)
            # An alias that the client did send stays the smallest bound.
            values[last] = self._changes[last] = min(bound, default, *values.values())
            if values[last] == bound:
                ours.add(last)
            return last
        if self._limits.engine in _READ_MAX_TOKENS_ONLY and last not in values:
            self._changes[last] = values[effective]
        return effective

    def _is_absent(self, name: str) -> bool:
        return "." not in name and name not in self._body

    def _sequences(self, prompts: int) -> int:
        choices = max(
            [self._number(name) or 1 for name in _CHOICES if name in self._body], default=1
        )
        sequences = prompts * choices
        if sequences > self._limits.max_choices:
            raise TooManyChoices(
                f"The request asks for {sequences:,} sequences ({prompts:,} prompts x "
                f"{choices:,} choices); the limit is {self._limits.max_choices} "
                "(PROXY_MAX_CHOICES).",
                param="n" if choices > 1 else "prompt",
            )
        return sequences

    def _bound(self, sequences: int) -> int:
        by_cap = self._limits.max_output_tokens // sequences
        if by_cap < 1:
            raise TooManyChoices(
                f"{sequences} sequences do not fit into {self._limits.max_output_tokens} tokens of "
                f"output ({self._limits.output_setting}).",
                param="n",
            )
        alternatives = self._alternatives()
        if alternatives >= MAX_LOGPROB_ENTRIES:
            raise InvalidValue(
                f"The request asks for {alternatives:,} log probabilities a token; the limit is "
                f"{MAX_LOGPROB_ENTRIES - 1:,}.",
                param="top_logprobs",
            )
        return min(by_cap, MAX_LOGPROB_ENTRIES // (1 + alternatives))

    def _alternatives(self) -> int:
        """The log probabilities asked for with each token."""
        if _ALTERNATIVES.isdisjoint(self._body):
            return 0
        names = ["top_logprobs", "n_probs"]
        # On completions this is a number, elsewhere a switch; false is off everywhere.
        logprobs = self._body.get("logprobs")
        if type(logprobs) is not bool or (logprobs and self._kind is BodyKind.COMPLETIONS):
            names.append("logprobs")
        return max(self._number(name, minimum=0) or 0 for name in names)

    def _lower_dependents(self, bound: int, *, by_us: bool) -> None:
        """Lowers what our bound made invalid. Thinking clients send 31,999 of 32,000."""
        if _DEPENDENTS.isdisjoint(self._body):
            return
        for name, minimum, most in (
            ("min_tokens", 0, bound),
            ("thinking_token_budget", None, bound - 1),
            ("thinking.budget_tokens", None, bound - 1),
        ):
            value = self._number(name, minimum=minimum)
            if by_us and value is not None and value > most:
                self._lower(name, value, most)

    def _lower(self, name: str, value: int, bound: int) -> None:
        self._changes[name] = bound
        self._lowered.append(f"{name} {value} -> {bound}")

    def _number(self, path: str, *, minimum: int | None = 1) -> int | None:
        """A governed number, or None where it is absent or null.

        vLLM reads ``"99999"``, ``4096.0`` and ``true`` as integers; a comparison that skips what is
        no int lets them past. An integral float is rewritten as the integer, the rest is refused.
        """
        members, name = self._body, path
        if "." in path:
            parent, _, name = path.partition(".")
            members = inner if type(inner := members.get(parent)) is dict else {}
        value = members.get(name)
        if value is None:
            return None
        number = value
        if type(value) is float and value.is_integer() and abs(value) <= _MAX_INTEGER:
            number = self._changes[path] = int(value)
        if type(number) is not int or abs(number) > _MAX_INTEGER:
            raise InvalidValue(f"{path} must be a JSON integer of at most 64 bits.", param=path)
        if minimum is not None and number < minimum:
            raise InvalidValue(f"{path} is {number}; it must be at least {minimum}.", param=path)
        return number


def _too_large(name: str, value: int, bound: int, limits: Limits, sequences: int) -> OutputTooLarge:
    share = f" over {sequences} sequences" if sequences > 1 else ""
    return OutputTooLarge(
        f"{name} is {value:,}; the limit is {bound:,}, from {limits.max_output_tokens:,} tokens a "
        f"request{share} ({limits.output_setting}).",
        param=name,
    )
