"""Takes the event of usage out of a stream whose client did not ask for it.

Only that event goes, and what it took along: vLLM and llama.cpp put members on it that, where nobody
asks for usage, are the last of the event in which a choice ends. So that event waits for the one
behind it, which those engines send in the same breath (measured: see the live test).
"""

import msgspec

from proxy.telemetry.usage.frames import payload
from proxy.telemetry.usage.hearing import Mark

_TAKEN_ALONG = ("system_fingerprint", "timings")

# A look at a member of an enumeration is a call.
_PLAIN = Mark.PLAIN

MAX_HELD_BYTES = 16 * 1024

_raw_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Taking:
    """One stream's: holds the end of a choice for as long as nothing has come behind it."""

    __slots__ = ("_dropped", "_held")

    def __init__(self) -> None:
        self._held = b""
        self._dropped = False

    def pass_on(self, event: bytes, mark: Mark) -> bytes:
        """What to pass on now that this event is there."""
        held = self._held
        if mark is _PLAIN and not held:  # nearly every event
            self._dropped = False
            return event
        self._held = b""
        self._dropped = mark is Mark.USAGE
        if self._dropped:
            return restored(held, event) if held else b""
        if mark is Mark.END and len(event) <= MAX_HELD_BYTES:
            self._held = event
            return held
        return held + event if held else event

    def line_feed(self) -> bytes:
        """One more byte of what was passed on last: shares its fate."""
        if self._held:
            self._held += b"\n"
            return b""
        return b"" if self._dropped else b"\n"

    def release(self) -> bytes:
        """What is held: nothing will come behind it."""
        held, self._held = self._held, b""
        return held


def restored(event: bytes, usage: bytes) -> bytes:
    """The event with the members that the event of usage took along; where it cannot be, as it is."""
    try:
        members, taken = _raw_members(payload(event)), _raw_members(payload(usage))
    except (ValueError, RecursionError):
        return event
    text = b"".join(
        b',"%b":%b' % (name.encode(), bytes(taken[name]))
        for name in _TAKEN_ALONG
        if name in taken and name not in members and bytes(taken[name]) != b"null"
    )
    end = event.rindex(b"}")
    return event[:end] + text + event[end:]
