"""What all dialects have in common."""

from abc import ABC, abstractmethod
from enum import Enum, auto

import msgspec

from proxy.telemetry.usage.said import Said

UNSAID = msgspec.Raw()
"""Stands for usage that an event does not state."""


class Mark(Enum):
    """What an event is to whoever passes it on."""

    PLAIN = auto()
    END = auto()
    """A choice is complete."""
    USAGE = auto()
    """Nothing but what the answer has used."""


class Hearing(ABC):
    """Hears the events of one stream.

    Args:
        said: What is told of the figures that an event states.

    Attributes:
        characters: Of generated text so far.
        events: That brought some; an engine that sends each token at once sends one for each.
        depth: At which an event's usage is a member.
        begun: Whether anything has come that tells of generation: before that, the request waits.
    """

    __slots__ = ("_said", "begun", "characters", "events")

    depth = 1

    def __init__(self, said: Said) -> None:
        self._said = said
        self.characters = 0
        self.events = 0
        self.begun = False

    @abstractmethod
    def hear(self, payload: bytes) -> Mark:
        """The data of the next event. Raises ValueError or RecursionError where it cannot be read."""
