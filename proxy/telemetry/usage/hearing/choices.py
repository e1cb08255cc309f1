"""Chat completions and completions."""

from typing import Any

import msgspec

from proxy.telemetry.usage.hearing.dialect import UNSAID, Hearing, Mark
from proxy.telemetry.usage.hearing.texts import length
from proxy.telemetry.usage.said import Said

_NULL = b"null"

# A look at a member of an enumeration is a call.
_PLAIN = Mark.PLAIN


class _Function(msgspec.Struct, gc=False):
    arguments: Any = None


class _Call(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = UNSAID


_chunk = msgspec.json.Decoder(_Chunk).decode


# How often in a row an event may be taken as a pattern that the next one does not follow.
_MOST_IN_VAIN = 4

_MAX_PATTERN_BYTES = 4 * 1024


class Choices(Hearing):
    """Chat completions and completions.

    Nearly all events of a stream differ in their text alone. So the last one that was read is kept as
    a pattern: what has the same bytes before its text and behind it, and plain text between, says the
    same of all else, and is not parsed.
    """

    __slots__ = (
        "_head",
        "_in_vain",
        "_tail",
        "_taken_at",
        "_text_at",
        "_text_end",
        "_unasked",
    )

    def __init__(self, said: Said) -> None:
        super().__init__(said)
        self._unasked = False
        # No payload begins so, for it begins with a brace.
        self._head = self._tail = b"\n"
        self._text_at = 0
        self._text_end = 0
        self._in_vain = 0
        self._taken_at = 0

    def hear(self, payload: bytes) -> Mark:
        """See ``Hearing``."""
        if payload.startswith(self._head) and payload.endswith(self._tail):
            try:
                text = payload[self._text_at : self._text_end].decode()
            except UnicodeDecodeError:
                text = ""
            # Neither the end of the string, nor an escape, nor anything that JSON forbids in one.
            if text and text.isprintable() and '"' not in text and "\\" not in text:
                self.characters += len(text)
                self.events += 1
                return _PLAIN
        return self._read(payload)

    def _read(self, payload: bytes) -> Mark:
        chunk = _chunk(payload)
        usage = chunk.usage
        said = b"" if usage is UNSAID else bytes(usage)
        if said == _NULL:
            said = b""
        choices = chunk.choices
        if not choices:
            if not said:
                return _PLAIN
            self._said.total(said)
            return _PLAIN if choices is None or self._unasked else Mark.USAGE
        mark = _PLAIN
        self.begun = True
        for choice in choices:
            self._said.choice_came(choice.index)
            delta = choice.delta
            if delta is None:
                text = choice.text
                size = len(text) if type(text) is str else length(text)
            else:
                size = _length_of(delta)
            self.characters += size
            # The first of a choice brings a role alone, and no token.
            if size or delta is None or delta.role is None:
                self.events += 1
            if choice.finish_reason:  # some write "" until there is one
                mark = Mark.END
                self._said.choice_ended(choice.index)
        if said:
            # Nobody on our account has asked for this one: an engine that states usage unasked
            # would have stated all of it to this client without us.
            self._unasked = True
            self._said.of_choice(choices[0].index, said)
        elif mark is _PLAIN and len(choices) == 1 and self._in_vain < _MOST_IN_VAIN:
            self._take_pattern(payload, choices[0])
        return mark

    def _take_pattern(self, payload: bytes, choice: "_Choice") -> None:
        """Keeps an event that says nothing but one text, if there is no doubt where that stands."""
        name, text = _only_text(choice)
        # Without an escape each quotation mark begins or ends a string; and this one is the only
        # member, and the only text, of its name.
        if (
            not text
            or len(payload) > _MAX_PATTERN_BYTES
            or b"\\" in payload
            or payload.count(name) != 1
        ):
            return
        start = payload.find(b'"', payload.find(name) + len(name)) + 1
        end = payload.find(b'"', start)
        head, tail = payload[:start], payload[end:]
        if head == self._head and tail == self._tail:
            return
        self._in_vain = 0 if self.events > self._taken_at + 1 else self._in_vain + 1
        self._taken_at = self.events
        self._head, self._tail = head, tail
        self._text_at, self._text_end = start, -len(tail)


def _only_text(choice: _Choice) -> tuple[bytes, str]:
    """The one text of a choice and the name of its member, quoted; no text if there are more."""
    delta = choice.delta
    if delta is None:
        return b'"text"', choice.text if type(choice.text) is str else ""
    name, text = b'"content"', delta.content
    if not text:
        name, text = b'"reasoning"', delta.reasoning
        if text is None:
            name, text = b'"reasoning_content"', delta.reasoning_content
        elif delta.reasoning_content is not None:
            return name, ""  # the same under both, which count once
    only = type(text) is str and len(text) == _length_of(delta)
    return name, text if only else ""


def _length_of(delta: _Delta) -> int:
    content = delta.content
    size = len(content) if type(content) is str else length(content)
    if delta.reasoning is not None or delta.reasoning_content is not None:
        # One text under its old and its new name.
        size += max(length(delta.reasoning), length(delta.reasoning_content))
    if delta.tool_calls is not None:
        functions = [call.function for call in delta.tool_calls]
        size += sum(length(function.arguments) for function in functions if function is not None)
    if delta.function_call is not None:
        size += length(delta.function_call.arguments)
    return size if delta.refusal is None else size + length(delta.refusal)
