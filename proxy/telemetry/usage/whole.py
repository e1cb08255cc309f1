"""A body that is one JSON document: kept whole where it is short, and its ends where it is not."""

from typing import Any

import msgspec

from proxy.telemetry.usage.ends import first_object, last_objects
from proxy.telemetry.usage.said import Said

MAX_KEPT_BYTES = 60 * 1024
# Of a longer one, whatever stands behind its usage.
TAIL_BYTES = 32 * 1024
HEAD_BYTES = 4 * 1024

_TEXTS = frozenset({"content", "text", "refusal", "thinking", "arguments"})

_UNSAID = msgspec.Raw()

# In place of what a body has brought.
_UNREADABLE = object()


class _Body(msgspec.Struct, gc=False):
    """The members of all dialects that matter.

    llama.cpp states its timings, and the usage of the first of several choices alone.
    """

    choices: Any = None
    output: Any = None
    content: Any = None
    usage: msgspec.Raw = _UNSAID
    timings: Any = None


_decode = msgspec.json.Decoder(_Body).decode


class WholeBody:
    """One body as it comes.

    Attributes:
        complete: Whether its last byte has come.
    """

    __slots__ = ("_dropped", "_head", "_kept", "_output", "complete")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._head = b""
        self._dropped = 0
        self._output: Any = None
        self.complete = False

    def note(self, chunk: bytes) -> bytes:
        """This came next; gives it back."""
        head = self._head
        if not head:
            self._head = chunk[:HEAD_BYTES]
        elif (missing := HEAD_BYTES - len(head)) > 0:
            self._head = head + chunk[:missing]
        kept = self._kept
        kept += chunk[-MAX_KEPT_BYTES:]
        if len(chunk) > MAX_KEPT_BYTES:
            self._dropped += len(chunk) - MAX_KEPT_BYTES
        if len(kept) > MAX_KEPT_BYTES:
            self._dropped += len(kept) - TAIL_BYTES
            del kept[:-TAIL_BYTES]
        return chunk

    @property
    def size(self) -> int:
        """The bytes of it that have come."""
        return self._dropped + len(self._kept)

    def tell(self, said: Said) -> None:
        """Hands over what the body states."""
        if self._dropped:
            self._tell_ends(said)
            return
        try:
            body = _decode(self._kept)
            if body.usage is not _UNSAID:
                said.total(bytes(body.usage))
        except (ValueError, RecursionError):
            self._output = _UNREADABLE
            return
        self._output = body.choices or body.output or body.content
        if body.timings is not None:
            sizes = self._sizes()
            if len(sizes) > 1:
                said.share = (sizes[0], sum(sizes)) if sizes[0] else (1, len(sizes))

    def characters(self) -> int | None:
        """Those generated; None: not known. To be asked after ``tell``, and only where it matters."""
        if self._dropped:
            return None
        if self._output is _UNREADABLE:
            return len(self._kept) if self.complete else None
        return sum(self._sizes())

    def _sizes(self) -> list[int]:
        output = self._output
        return [generated(item) for item in output] if type(output) is list else [0]

    def _tell_ends(self, said: Said) -> None:
        # The end of a part would be taken for the end of the whole.
        # So much and no more, or it would depend on how the body was cut.
        members = last_objects(bytes(self._kept[-TAIL_BYTES:]), 1) if self.complete else {}
        # llama.cpp states that of embeddings in front of them.
        usage = members.get(b"usage") or first_object(self._head, b"usage")
        if usage is not None:
            said.total(usage)
        if b"timings" in members:
            said.share = (1, said.sequences)


def generated(value: object) -> int:
    """Characters of all texts in a choice, an item or a block."""
    size, left = 0, [value]
    while left:
        value = left.pop()
        if type(value) is list:
            left += value
        elif type(value) is dict:
            for name, member in value.items():
                if type(member) is not str:
                    left.append(member)
                elif name in _TEXTS:
                    size += len(member)
            # One text under its old and its new name.
            thoughts = (value.get("reasoning"), value.get("reasoning_content"))
            size += max(len(text) if type(text) is str else 0 for text in thoughts)
            if type(value.get("input")) is dict:
                size += len(msgspec.json.encode(value["input"]))
    return size
