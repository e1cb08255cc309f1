"""Reads what callgrind has written: the cost of each function, without what it calls. Pure.

The format is in valgrind's manual, "Callgrind Format Specification". Of it here is what callgrind itself
writes with one event and one position a line.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_NAMED = re.compile(r"(ob|fn)=\((\d+)\)(?: (.*))?")
_TRIGGER = "desc: Trigger: Client Request: "


@dataclass(slots=True)
class Cut:
    """What was counted between two marks.

    Attributes:
        name: What the mark was called; empty for what was left at the end.
        functions: Instructions by object and function.
    """

    name: str = ""
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All of them."""
        return self.functions.total()

    @property
    def objects(self) -> Counter[str]:
        """By the library that they are of."""
        counts = Counter[str]()
        for (library, _), count in self.functions.items():
            counts[library] += count
        return counts


def parse(lines: Iterable[str]) -> Cut:
    """One file."""
    cut = Cut()
    # A name is written once; afterwards its number is enough. Callees' names count, too.
    names: dict[tuple[str, str], str] = {}
    library = function = ""
    is_call = False
    for line in lines:
        if line.startswith(_TRIGGER):
            cut.name = line.removeprefix(_TRIGGER).strip()
        elif line[:1].isdigit() or line[:1] in {"+", "-", "*"}:
            if not is_call:
                cut.functions[library, function] += int(line.split()[1])
            is_call = False
        elif line.startswith("calls="):
            # The line that follows has what the callee took, which is counted where it is.
            is_call = True
        elif found := _NAMED.match(line.removeprefix("c")):
            kind, number, name = found.groups()
            name = names.setdefault((kind, number), (name or "").strip())
            if kind == "ob" and line.startswith("ob"):
                library = name
            elif kind == "fn" and line.startswith("fn"):
                function = name
    return cut
