"""Random texts, numbers and JSON, and their spelling: what the bodies are made of."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

# Of each alphabet a few: what has one byte or four, is escaped in JSON or in Python, joins or hides.
ALPHABETS: tuple[str, ...] = (
    "abcdefghijklmnopqrstuvwxyz     ",
    "abc \n\t\"'\\/{}[]<>&:,",
    "\x00\x01\b\f\x1b\x1f\x7f a",
    "äöüß ñéçøåΩжש",
    "漢字仮名交じり文\u3000、。",
    "😀🦀\U0001d518\U0001d55f👩\u200d👩\u200d👧",
    "e\u0301o\u0308\u0323a\u20dd\ufe0f",
    "\u200b\ufeff\u00ad\u00a0\u2028\u202e\U000e0001\U000e0041\ue000\U0010ffff",
)
MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|endoftext|>")

_SPELLED = "@spelled "
_SPELLED_STRING = re.compile(r'"@spelled ([^"]*)"')


def spelled(number: str) -> str:
    """A stand-in for a number that is to be spelled exactly so."""
    return _SPELLED + number


class Draw(random.Random):
    """A seeded source of everything."""

    def chance(self, probability: float) -> bool:
        """Whether it happens."""
        return self.random() < probability

    def length(self, most: int = 2_000) -> int:
        """Mostly short, sometimes as long as it may be."""
        return min(
            most, int(self.expovariate(1 / 20)) if self.chance(0.9) else self.randint(0, most)
        )

    def text(self, length: int | None = None) -> str:
        """Text of one alphabet, or of several, now and then with a mark of the template."""
        length = self.length() if length is None else length
        letters = self.choice(ALPHABETS) if self.chance(0.8) else "".join(ALPHABETS)
        text = "".join(self.choices(letters, k=length))
        if length > 20 and self.chance(0.05):
            mark = self.choice(MARKS)
            text = mark + text[len(mark) :]
        return text

    def word(self) -> str:
        """A name."""
        return "".join(self.choices("abcdefghijklmnopqrstuvwxyz_", k=self.randint(1, 12)))

    def scalar(self) -> Any:
        """Anything that is no array and no object."""
        makers: tuple[Callable[[], Any], ...] = (
            lambda: self.text(self.length(60)),
            lambda: self.randint(-9, 99),
            lambda: self.choice((True, False, None)),
            lambda: spelled(
                self.choice(("1e15", "1E-7", "-0", "1.50", "123456789012345678", "2e2"))
            ),
        )
        return self.choice(makers)()

    def value(self, depth: int = 3) -> Any:
        """Any JSON value, at most so deep."""
        if depth <= 0 or self.chance(0.5):
            return self.scalar()
        if self.chance(0.5):
            return [self.value(depth - 1) for _ in range(self.randint(0, 4))]
        return self.object(depth)

    def object(self, depth: int = 3, members: int = 4) -> dict[str, Any]:
        """An object; its keys are words, or any text."""
        return {
            self.word() if self.chance(0.9) else self.text(self.length(30)): self.value(depth - 1)
            for _ in range(self.randint(0, members))
        }

    def nested(self, levels: int, leaf: Any) -> Any:
        """The leaf inside so many arrays and objects."""
        for _ in range(levels):
            leaf = [leaf] if self.chance(0.5) else {"k": leaf}
        return leaf

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """A few of them, each at most once."""
        return self.sample(options, self.randint(0, min(most, len(options))))

    def write(self, body: Any) -> bytes:
        """The body as JSON: escaped or not, with white space or without, and with spelled numbers."""
        separators = self.choice(((",", ":"), (", ", ": "), (" ,\n", "\t: ")))
        text = json.dumps(body, ensure_ascii=self.chance(0.4), separators=separators)
        text = _SPELLED_STRING.sub(r"\1", text)
        if self.chance(0.05):  # a key is the same key, however it is spelled
            text = text.replace('"max_', '"\\u006dax\\u005f').replace('"n"', '"\\u006e"')
        if self.chance(0.05):
            text = f"\n {text}\r\n\t"
        return text.encode()
