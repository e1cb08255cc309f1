"""The figures that engines state, read as what they are: claims of somebody who may be wrong.

A figure is a JSON integer, not negative, and no larger than any context; what is not makes all that
this answer states worth nothing. Limits are settled from it: one invented trillion would lock a key
out for a day.
"""

from collections.abc import Callable
from typing import Any

import msgspec

# Sixteen million tokens: more than any context holds.
MAX_BELIEVED = 1 << 24

# Of a usage object, with all its details.
_MAX_BYTES = 4096

_MAX_CHOICES = 64

_NULL = b"null"

_WHOLE = (1, 1)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a request used.

    Attributes:
        estimated: Whether at least one of the two is not the engine's own figure.
    """

    prompt_tokens: int
    completion_tokens: int
    estimated: bool


class Figures(msgspec.Struct, frozen=True, gc=False):
    """What an engine states of a whole answer; None is nothing, or nothing to be believed.

    Attributes:
        prompts: Of all choices together, where each states its prompt: several prompts, or one that
            is stated several times.
        exact: Whether `completion` is the engine's own.
        over: Whether the end was seen; else these are running figures, and more may have come since.
        open_since: For each choice that may go on, when its figure was stated; None is never.
    """

    prompt: int | None = None
    completion: int | None = None
    prompts: int = 0
    exact: bool = True
    over: bool = True
    open_since: tuple[float | None, ...] = ()


class _Counts(msgspec.Struct, gc=False):
    """The members of a usage object in the words of all dialects; of any type until looked at."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_input_tokens: Any = None


_decode = msgspec.json.Decoder(_Counts).decode


class Said:
    """All that the engine states about one answer, and what to make of it.

    vLLM and SGLang state a total at the end of a stream, or if asked a running figure with each
    event of each choice; llama.cpp one of each choice, that may be as good as a total (`total`) or
    come with the choice (`of_choice`); Anthropic's dialect the prompt first and the output last
    (`part`).

    Args:
        sequences: How many choices were asked for: nobody states more totals than that. With none
            there is no output, and engines do not say so.
        clock: Seconds, monotonic.

    Attributes:
        share: Of what part of the output the totals are: this many parts out of that many.
    """

    __slots__ = (
        "_by_choice",
        "_clock",
        "_completion",
        "_done",
        "_ended",
        "_generates",
        "_prompt",
        "_seen",
        "_totals",
        "_unbelievable",
        "sequences",
        "share",
    )

    def __init__(self, sequences: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.sequences = max(1, sequences)
        self._generates = sequences > 0
        self.share = _WHOLE
        self._totals: list[tuple[int, int]] = []
        self._by_choice: dict[int, tuple[bytes, float]] = {}
        self._seen: set[int] = set()
        self._ended: set[int] = set()
        self._done = False
        self._prompt: int | None = None
        self._completion: int | None = None
        self._unbelievable = False

    def total(self, usage: bytes) -> None:
        """This is stated of the whole answer, or of one whole choice."""
        prompt, completion = self._read(usage)
        if len(self._totals) >= self.sequences:
            self._unbelievable = True
        elif prompt is not None and (completion is not None or not self._generates):
            self._totals.append((prompt, completion or 0))

    def of_choice(self, index: object, usage: bytes) -> None:
        """This is stated of what this choice has used so far."""
        number = _number(index)
        if len(usage) > _MAX_BYTES or len(self._by_choice) >= _MAX_CHOICES:
            self._unbelievable = True
        else:
            self._by_choice[number] = usage, self._clock()

    def choice_came(self, index: object) -> None:
        """Something of this choice has come."""
        if len(self._seen) < _MAX_CHOICES:
            self._seen.add(_number(index))

    def choice_ended(self, index: object) -> None:
        """This choice is complete."""
        if len(self._ended) < _MAX_CHOICES:
            self._ended.add(_number(index))

    def done(self) -> None:
        """The engine says that nothing will follow."""
        self._done = True

    def part(self, usage: bytes, *, final: bool) -> None:
        """This replaces what was stated before, where it states it; only `final` output counts."""
        prompt, completion = self._read(usage)
        self._prompt = self._prompt if prompt is None else prompt
        if final and completion is not None:
            self._completion = completion

    def figures(self) -> "Figures":
        """What to make of it."""
        stated = self._totals or self._of_all_choices()
        if self._unbelievable:
            return Figures()
        if not stated:
            return Figures(self._prompt, self._completion)
        if len(stated) == 1 and self._totals and self.share == _WHOLE:
            # Of nearly all answers, and what the rest of this would make of it.
            prompt, completion = stated[0]
            return Figures(prompt, completion, prompt, exact=True, over=self._over())
        prompts = [prompt for prompt, _ in stated]
        part, whole = self.share
        completion = -(-sum(completion for _, completion in stated) * whole // part)
        over = self._over()
        return Figures(
            max(prompts),
            completion,
            sum(prompts),
            exact=part == whole,
            over=over,
            open_since=() if over or self._totals else self._open_since(),
        )

    def _over(self) -> bool:
        ended = len(self._ended)
        # llama.cpp's total is of the choice that has just ended, vLLM's of all, that all have ended.
        return self._done or ended >= self.sequences or (bool(self._totals) and not ended)

    def _open_since(self) -> tuple[float | None, ...]:
        stated = [at for index, (_, at) in self._by_choice.items() if index not in self._ended]
        # What came without a figure is charged as what was seen.
        never_came = self.sequences - len(self._seen | self._by_choice.keys())
        return (*stated, *[None] * max(0, never_came))

    def _of_all_choices(self) -> list[tuple[int, int]]:
        read = [self._read(usage) for usage, _ in self._by_choice.values()]
        return [
            (prompt, completion)
            for prompt, completion in read
            if prompt is not None and completion is not None
        ]

    def _read(self, usage: bytes) -> tuple[int | None, int | None]:
        if usage == _NULL:
            return None, None
        try:
            counts = _decode(usage)
            plain = _plain(counts)
            if plain is not None:
                return plain
            return _prompt(counts), _believed(counts.completion_tokens, counts.output_tokens)
        except (ValueError, RecursionError):
            self._unbelievable = True
            return None, None


def _number(index: object) -> int:
    return index if type(index) is int else 0


def _plain(counts: _Counts) -> tuple[int, int] | None:
    """What ``_read`` makes of figures in OpenAI's words alone; None of any others."""
    prompt, completion, total = counts.prompt_tokens, counts.completion_tokens, counts.total_tokens
    if (
        type(prompt) is int
        and type(completion) is int
        and type(total) is int
        and 0 <= prompt <= MAX_BELIEVED
        and 0 <= completion <= MAX_BELIEVED
        and 0 <= total <= MAX_BELIEVED
        and counts.cache_creation_input_tokens is None
        and counts.cache_read_input_tokens is None
    ):
        return prompt, completion
    return None


def _prompt(counts: _Counts) -> int | None:
    total = _believed(counts.total_tokens)
    prompt = _believed(counts.prompt_tokens, counts.input_tokens)
    # Anthropic's input_tokens are those that were in no cache.
    cached = _believed(counts.cache_creation_input_tokens) or 0
    cached += _believed(counts.cache_read_input_tokens) or 0
    # Rerankers may state a total alone.
    return total if prompt is None else prompt + cached


def _believed(*counts: object) -> int | None:
    """The first that is stated. Raises ValueError where one cannot be true."""
    for count in counts:
        if count is None:
            continue
        if type(count) is not int or not 0 <= count <= MAX_BELIEVED:
            raise ValueError("no number of tokens")
        return count
    return None
