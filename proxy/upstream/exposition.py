"""The text in which engines tell their figures, read for a few names only.

Both forms of it: Prometheus's own and OpenMetrics (timestamps, exemplars, ``# EOF``). A page may be
megabytes, comes every second and holds the loop while it is read: so it is only cut into lines, few
of which are looked at any further, and how many there may be is bounded.

Source: Prometheus, "Exposition formats", "Text-based format"; OpenMetrics 1.0, "Text Format".
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_MAX_LINES = 32_768
"""Of the page. 64 engines of vLLM behind one address have 22,000."""

_MAX_WANTED_LINES = 2_000
"""With one of the names. The same 64 have 500."""

_MAX_WANTED_BYTES = 256 * 1024
"""In these. The longest is vLLM's, of 1.3 KB an engine."""

# Possessive, so that a line is walked through once, whatever is in it.
_LABEL = re.compile(
    rb'[ \t]*+([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+,?+'
)
_NAME = re.compile(rb"[A-Za-z_:][A-Za-z0-9_:]*+(?=[{ \t])")
_END_OF_LABELS = re.compile(rb"[ \t]*+}")
_VALUE = re.compile(
    rb"[ \t]*+([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?)"
    rb"(?:[ \t\r]|$)"
)


class PageRefused(Exception):  # noqa: N818 - an expected answer is no error
    """A page that is not used; ``reason`` is one of a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Sample:
    """One line. The values of its labels are as they were written, escapes and all."""

    labels: dict[bytes, bytes]
    value: float


def samples(text: bytes, names: Iterable[bytes]) -> Mapping[bytes, list[Sample]]:
    """The samples of each name that has any; what is not a finite number is left out.

    Raises:
        PageRefused: There are more lines, or longer ones, than any engine has.
    """
    found: dict[bytes, list[Sample]] = {}
    for name, rest in _wanted(text, tuple(names)):
        if (sample := _read(rest)) is not None:
            found.setdefault(name, []).append(sample)
    return found


def _wanted(text: bytes, names: tuple[bytes, ...]) -> Iterable[tuple[bytes, bytes]]:
    """The lines of these names: the name, and what follows it."""
    lines = text.split(b"\n", _MAX_LINES)
    if len(lines) > _MAX_LINES:
        raise PageRefused("too_complex")
    likely = [line for line in lines if line.startswith(names)]
    if len(likely) > _MAX_WANTED_LINES or sum(map(len, likely)) > _MAX_WANTED_BYTES:
        raise PageRefused("too_complex")
    wanted = frozenset(names)
    for line in likely:
        # A longer name may begin like one of these.
        if (match := _NAME.match(line)) and match[0] in wanted:
            yield match[0], line[match.end() :]


def _read(line: bytes) -> Sample | None:
    """A sample from what follows its name; None where that is not one."""
    labels, at = dict[bytes, bytes](), 0
    if line[:1] == b"{":
        at = 1
        while match := _LABEL.match(line, at):
            labels[match[1]] = match[2]
            at = match.end()
        if (end := _END_OF_LABELS.match(line, at)) is None:
            return None
        at = end.end()
    number = _VALUE.match(line, at)
    if number is None:
        return None
    value = float(number[1])
    return Sample(labels, value) if math.isfinite(value) else None
