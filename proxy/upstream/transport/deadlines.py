"""How long the phases of a request may take."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Self


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for each phase; infinity for as long as it takes.

    Attributes:
        connect: Until there is a connection.
        write: Between two moments at which the other side takes more of the request.
        first_byte: From the request to the end of the answer's head.
        idle: Between two pieces of the answer.
        total: From the call to the end of the answer.
    """

    connect: float = inf
    write: float = inf
    first_byte: float = inf
    idle: float = inf
    total: float = inf

    @classmethod
    def of(cls, extension: Mapping[str, float | None]) -> Self:
        """What the ``timeout`` extension of a request says: in our words, or httpx's ``read``."""
        get = extension.get
        read = _or(get("read"), inf)
        return cls(
            _or(get("connect"), inf),
            _or(get("write"), inf),
            _or(get("first_byte"), read),
            _or(get("idle"), read),
            _or(get("total"), inf),
        )


def _or(seconds: float | None, otherwise: float) -> float:
    return otherwise if seconds is None else seconds


class LastLimits:
    """``Limits.of``, worked out again only where the extension says something else than last time.

    One program asks with the same timeouts all the time.
    """

    __slots__ = ("_extension", "_limits")

    def __init__(self) -> None:
        self._extension: dict[str, float | None] = {}
        self._limits = Limits()

    def of(self, extension: Mapping[str, float | None]) -> Limits:
        """What the extension says. It may be changed afterwards: it is compared, and copied."""
        if extension != self._extension:
            self._extension, self._limits = dict(extension), Limits.of(extension)
        return self._limits
