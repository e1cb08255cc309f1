"""How an engine shares one GPU between sequences: vLLM's rules, in coarse steps of a time given to it.

Nothing is reserved for what a request may still generate. A sequence is let in when its prompt fits
into what is free, takes blocks as it grows, and when none are left the youngest one loses all of its
own and starts over. That is why too many at once cost more than they bring.

Source: vLLM's V1 scheduler with its defaults (first come first served, chunked prefill in order of
age, ``scheduler_reserve_full_isl``), without a prefix cache.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the engine runs on. The defaults are the machine of bench/README.md.

    Attributes:
        pool_tokens: Tokens that the KV cache holds.
        block_tokens: Tokens of one of its blocks.
        max_sequences: How many run at once (``--max-num-seqs``).
        max_model_len: The longest prompt and answer together.
        prefill_per_second: Prompt tokens computed in a second, over all sequences.
        decode_per_second: Tokens that each sequence generates in a second.
        shared_prefill: Whether prompts are computed side by side, in equal parts, or one after the
            other by age, which is vLLM's default.
    """

    pool_tokens: int = 186_624
    block_tokens: int = 256
    max_sequences: int = 4
    max_model_len: int = 131_072
    prefill_per_second: float = 7_000.0
    decode_per_second: float = 55.0
    shared_prefill: bool = True


class Sequence:
    """One request inside the engine.

    Attributes:
        generated: How many tokens of its answer there are.
        preemptions: How often it had to start over.
    """

    def __init__(self, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.generated = 0
        self.preemptions = 0
        # Tokens in the cache; and what of a token the last steps have left over.
        self.computed = 0.0
        self.fraction = 0.0

    @property
    def length(self) -> int:
        """Prompt and answer as they are now."""
        return self.prompt_tokens + self.generated

    @property
    def prefilling(self) -> bool:
        """Whether it has still to compute what it already knows."""
        return self.computed < self.length

    @property
    def finished(self) -> bool:
        """Whether it has said all that it had to say."""
        return self.generated >= self.output_tokens


class Scheduler:
    """Sequences that run and sequences that wait.

    Attributes:
        preemptions: How often a sequence lost its blocks.
        prompt_tokens: Tokens computed that a client had sent, repeats not counted.
        recomputed_tokens: Tokens computed that had been computed before.
        generated_tokens: Tokens of all answers.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pool_blocks = machine.pool_tokens // machine.block_tokens
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self.prompt_tokens = 0
        self.recomputed_tokens = 0
        self.generated_tokens = 0

    @property
    def running(self) -> int:
        """How many sequences run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many have not begun, or have to begin again."""
        return len(self._waiting)

    @property
    def usage(self) -> float:
        """The part of the pool that is taken."""
        return self._taken() / self._pool_blocks

    def submit(self, sequence: Sequence) -> None:
        """A request has come."""
        self._waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Its client has left; nothing happens if it has already finished."""
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def step(self, seconds: float) -> list[Sequence]:
        """Lets that much time pass; gives the sequences that have got further with their answer."""
        before = self.preemptions
        prefill_left = self._machine.prefill_per_second * seconds
        prefilling = sum(sequence.prefilling for sequence in self._running)
        told = []
        for sequence in list(self._running):
            if sequence not in self._running:
                continue  # an older one has just taken its blocks
            if sequence.prefilling:
                parts = prefilling if self._machine.shared_prefill else 1
                prefill_left -= self._prefill(sequence, prefill_left / parts)
                prefilling -= 1
            elif self._decode(sequence, self._machine.decode_per_second * seconds):
                told.append(sequence)
        # As vLLM has it: whoever has just been thrown out must not come in again at once.
        if self.preemptions == before:
            self._let_in(prefill_left)
        self._running = [sequence for sequence in self._running if not sequence.finished]
        return told

    def _let_in(self, prefill_left: float) -> None:
        while self._waiting and len(self._running) < self._machine.max_sequences:
            sequence = self._waiting[0]
            # Those that are in the middle of their prompt will need the rest of its blocks.
            promised = sum(
                self._blocks(other.length) - self._blocks(other.computed)
                for other in self._running
                if other.prefilling
            )
            if self._blocks(sequence.length) > self._pool_blocks - self._taken() - promised:
                return
            self._running.append(self._waiting.popleft())
            prefill_left -= self._prefill(sequence, prefill_left)

    def _prefill(self, sequence: Sequence, budget: float) -> float:
        """Computes as much of the prompt as the budget allows; gives how much that was."""
        tokens = min(budget, sequence.length - sequence.computed)
        if tokens <= 0 or not self._grow(sequence, tokens):
            return 0.0
        if not sequence.prefilling:
            if sequence.preemptions:
                self.recomputed_tokens += sequence.length
            else:
                self.prompt_tokens += sequence.length
        return tokens

    def _decode(self, sequence: Sequence, tokens: float) -> bool:
        sequence.fraction += tokens
        whole = min(int(sequence.fraction), sequence.output_tokens - sequence.generated)
        if whole == 0 or not self._grow(sequence, whole):
            return False
        sequence.fraction -= whole
        sequence.generated += whole
        self.generated_tokens += whole
        return True

    def _grow(self, sequence: Sequence, tokens: float) -> bool:
        """Takes blocks for that many tokens more, if need be from the youngest, which may be itself."""
        needed = self._blocks(sequence.computed + tokens) - self._blocks(sequence.computed)
        while needed > self._pool_blocks - self._taken():
            if self._preempt_youngest() is sequence:
                return False
        sequence.computed += tokens
        return True

    def _preempt_youngest(self) -> Sequence:
        sequence = self._running.pop()
        sequence.computed = sequence.fraction = 0.0
        sequence.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(sequence)
        return sequence

    def _taken(self) -> int:
        return sum(self._blocks(sequence.computed) for sequence in self._running)

    def _blocks(self, tokens: float) -> int:
        return -int(-tokens // self._machine.block_tokens)
