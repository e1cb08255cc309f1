"""The walk over messages, input items, content parts and tool calls.

Text counts its Unicode code points; what a template may render as a structure counts as long as a
template would write it. Content parts are looked at on the way: media and embeddings are refused or
counted here.
"""

from collections.abc import Mapping
from typing import Any

from proxy.errors import InvalidValue
from proxy.policy import media, tables
from proxy.policy.fields import RefusedFields
from proxy.policy.lengths import arguments_size, escape_chars, printed_chars, rendered_total

# Members that SDKs send as null when they replay a message.
_OFTEN_NULL = frozenset({"tool_calls", "function_call", "audio", "annotations", "cache_control"})

# Members of messages and items that hold text or parts. vLLM takes a part for `reasoning` too.
_CONTENT = frozenset({"content", "output", "summary", "reasoning", "reasoning_content"})

# Roles whose text every template writes as it is. What a tool answered may become a JSON string.
_PLAIN_ROLES = ("user", "assistant", "system", "developer")
_PLAIN_MEMBERS = len(("role", "content"))


class Hopeless(Exception):  # noqa: N818 - never leaves the policy
    """What has been counted is over the cap for certain, and how far is not worth the walk.

    To look at 87,000 messages of a member each, one after the other, held the loop for 120 ms.
    """


class Conversation:
    """What has been counted so far.

    Args:
        fields: What content parts are held against.
        max_chars: The cap on characters.
        max_items: So many that their markup alone is over it.

    Raises:
        Hopeless: From whatever counts.

    Attributes:
        chars: Counted characters; what is rendered as a structure is among them after `settle`.
        items: Messages, input items, parts and tool calls.
        arguments: Members of the arguments of all tool calls.
        media_parts: Images and sounds.
        tools: Definitions of tools in the middle of it, by their paths: they are schemas.
    """

    __slots__ = (
        "_fields",
        "_max_chars",
        "_max_items",
        "_structures",
        "arguments",
        "chars",
        "items",
        "media_parts",
        "tools",
    )

    def __init__(self, fields: RefusedFields, max_chars: int, max_items: int) -> None:
        self._fields = fields
        self._max_chars = max_chars
        self._max_items = max_items
        self._structures: list[Any] = []
        self.chars = 0
        self.items = 0
        self.arguments = 0
        self.media_parts = 0
        self.tools: list[tuple[str, Any]] = []

    def structure(self, value: object) -> None:
        """Counts a value that a template may render as a structure."""
        self._structures.append(value)
        # Each of them makes a character at least.
        if len(self._structures) > self._max_chars:
            raise Hopeless

    def member(self, name: str, value: object) -> None:
        """Counts a member of a rendered structure: its key, its value and the punctuation."""
        self.structure({name: value})

    def settle(self) -> None:
        """Adds what the structures count, once the walk is over."""
        if not self._structures:
            return
        self.chars += rendered_total(self._structures, self._max_chars)
        self._structures.clear()

    def messages(self, name: str, value: object) -> None:
        """Counts a list of messages or input items.

        Raises:
            InvalidValue: Anything but a list of objects.
            FieldRefused: A part with embeddings.
            MediaRefused: A media part that is not a plain inline payload.
        """
        if value is None:
            return
        if type(value) is not list:
            raise InvalidValue(f"{name} must be a list of objects.", param=name)
        self._add_items(len(value))
        for index, message in enumerate(value):
            if type(message) is not dict:
                where = f"{name}[{index}]"
                raise InvalidValue(f"{where} must be an object.", param=where)
            # Most are a plain role and a string, which the rest of this would count the same way.
            if (
                len(message) == _PLAIN_MEMBERS
                and "content" in message
                and type(content := message["content"]) is str
                and "role" in message
                and message["role"] in _PLAIN_ROLES
            ):
                self.chars += len(content)
            else:
                self._message(message, name, index)

    def _message(self, message: dict[str, Any], name: str, index: int) -> None:
        for key, member in message.items():
            # The shallow case first: most messages are a role and a string.
            if key == "content" and type(member) is str:
                self.chars += len(member)
            elif key == "role" and type(member) is str and member in tables.ROLES:
                pass
            else:
                self._message_member(key, member, name, index)
        role, content = message.get("role"), message.get("content")
        if role not in _PLAIN_ROLES:
            self.chars += escape_chars(content)
        if role != "user" and type(content) is list:
            self.chars += sum(
                printed_chars(part["content"])
                for part in content
                if type(part) is dict and "content" in part
            )

    def content(self, where: str, value: object, *, nested: bool = False) -> None:
        """Counts content: a string, a part, or a list of parts, themselves strings or objects.

        Args:
            where: Its path, for errors.
            value: The content.
            nested: Whether it is the content of a part, whose parts have none themselves.
        """
        if type(value) is str:
            self.chars += len(value)
        elif type(value) is list:
            self._add_items(len(value))
            for index, part in enumerate(value):
                if type(part) is str:
                    self.chars += len(part)
                elif type(part) is dict:
                    self._part(f"{where}[{index}]", part, nested=nested)
                else:
                    self.structure(part)
        elif type(value) is dict:
            self._part(where, value, nested=nested)
        elif value is not None:
            self.structure(value)

    def _add_items(self, number: int) -> None:
        self.items += number
        if self.items > self._max_items:
            raise Hopeless

    def _message_member(self, key: str, value: object, name: str, index: int) -> None:
        if key in _CONTENT:
            self.content(f"{name}[{index}].{key}", value)
            self.chars += escape_chars(value) if key == "output" else 0
        elif key == "tool_calls" and type(value) is list:
            self._add_items(len(value))
            for call in value:
                self._call(call)
        elif key in {"function_call", "function"}:
            self._call(value)
        elif key == "arguments":
            self._add_items(1)  # an item that is a call: a message and the call in it
            self._arguments(value)
        elif key == "input":
            self._add_items(1)  # likewise a custom call, whose text becomes an argument
            self._structured_arguments({key: value})
        elif key == "tools" and type(value) is list:
            self.tools.append((f"{name}[{index}].tools", value))
        else:
            self._text_member(key, value)

    def _part(self, where: str, part: Mapping[str, Any], *, nested: bool) -> None:
        if media.is_media(part):
            self._media(where, part)
            return
        for key, value in part.items():
            if key == "content" and not nested:
                self.content(f"{where}.content", value, nested=True)
                self.chars += escape_chars(value)
            elif key == "input":
                self._structured_arguments(value)
            elif key == "tool" and type(value) is dict:
                self.tools.append((f"{where}.tool", [value]))
            else:
                self._text_member(key, value)
        if len(part) > len(("type", "text")):
            # vLLM hands such a part to the template whole, and what can be done with the rest of it
            # is to write it as JSON: 1,800 control characters became 6,600.
            self.chars += escape_chars(part)

    def _media(self, where: str, part: Mapping[str, Any]) -> None:
        self.media_parts += 1
        names = [name for name in (part.get("type"), *part) if type(name) is str]
        for name in names:
            self._fields.check_part(name, where)
        payload = [name for name in names if name.endswith("_embeds")]
        if not payload:  # embeddings that got here were allowed by name
            video = self._fields.allows("video_url")
            payload = [media.payload_key(part, where, video=video)]
        for key, value in part.items():
            if key not in payload:
                self._text_member(key, value)
            elif rest := media.without_payload(value):
                self.structure(rest)

    def _call(self, call: object) -> None:
        """A tool call, or the function inside one."""
        if type(call) is not dict:
            if call is not None:
                self.structure(call)
            return
        for key, value in call.items():
            if key == "arguments":
                self._arguments(value)
            elif key == "function" and type(value) is dict:
                self._call(value)
            else:
                self._text_member(key, value)

    def _arguments(self, value: object) -> None:
        if type(value) is str:
            # Over the cap already: the exact excess is not worth a second parse.
            over = self.chars + len(value) > self._max_chars
            chars, members = (len(value), 0) if over else arguments_size(value)
            self.chars += chars
            self.arguments += members
        elif value is not None:
            self._structured_arguments(value)

    def _structured_arguments(self, value: object) -> None:
        self.structure(value)
        self.arguments += len(value) if type(value) is dict else 0

    def _text_member(self, key: str, value: object) -> None:
        if key in tables.MESSAGE_TEXT and (value is None or type(value) is str):
            self.chars += len(value or "")
        elif key == "type" and type(value) is str:
            self.chars += 0 if value in tables.PART_TYPES else len(value)
        elif key == "role" and type(value) is str:
            self.chars += 0 if value in tables.ROLES else len(value)
        elif value is not None or key not in _OFTEN_NULL:
            self.member(key, value)
