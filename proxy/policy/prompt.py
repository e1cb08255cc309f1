"""How large a prompt a body makes: never less than what an upstream can render from it.

One walk over the top level sends each field to what counts it. The few things that do not count
stand in `proxy.policy.tables`, by exact value or exact place; everything else does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from proxy.endpoints import BodyKind
from proxy.errors import (
    ContextLengthExceeded,
    MediaRefused,
    ParametersTooLarge,
    ToolsTooLarge,
    TooManyInputs,
)
from proxy.policy import compiling, tables
from proxy.policy.compiling import Compiling
from proxy.policy.conversation import Conversation, Hopeless
from proxy.policy.fields import RefusedFields
from proxy.policy.inputs import entries, input_chars, text_chars
from proxy.policy.lengths import compact_chars, shape
from proxy.policy.limits import Limits
from proxy.policy.schemas import Schemas

# Templates wrap every message in markup: a real vLLM rendered 69,000 empty ones as 1.9 million
# characters. Qwen3-Coder's wraps every argument of a tool call: 980 of them, in 9,500 characters, made
# 30,000. The first of each are what any conversation has.
_FREE_ITEMS = 64
_CHARS_PER_ITEM = 32

# Where the markup alone is so many times the cap, nobody needs the exact excess.
_HOPELESS = 10

MAX_INPUTS = 2_048

# Kinds whose inputs are worked on one by one: the cap holds for each, and ten times it in total.
PER_INPUT = frozenset({BodyKind.EMBEDDINGS, BodyKind.RERANK, BodyKind.SCORE})
TOTAL_FACTOR = 10


class PromptCount:
    """The walk over one body.

    Attributes:
        conversation: What counts besides `inputs`: messages, instructions, unknown fields.
        inputs: Characters of each entry of `prompt`, `input` or what is compared.
        prompt_chars: Everything that counts against the prompt cap, once walked.
        schemas: What measures schemas.
        schema_chars: Characters of compact JSON of tools and schemas.
        compiling: What an engine may have to compile of these.
        sampling_chars: The same of parameters that never reach a prompt.
    """

    __slots__ = (
        "compiling",
        "conversation",
        "inputs",
        "kind",
        "limits",
        "prompt_chars",
        "sampling_chars",
        "schema_chars",
        "schemas",
    )

    def __init__(
        self, kind: BodyKind, limits: Limits, fields: RefusedFields, schemas: Schemas
    ) -> None:
        self.kind = kind
        self.schemas = schemas
        self.limits = limits
        max_items = _FREE_ITEMS + _HOPELESS * limits.max_prompt_chars // _CHARS_PER_ITEM
        self.conversation = Conversation(fields, limits.max_prompt_chars, max_items)
        self.inputs: list[int] = []
        self.prompt_chars = 0
        self.schema_chars = 0
        self.sampling_chars = 0
        self.compiling = Compiling()

    def walk(self, body: Mapping[str, Any]) -> None:
        """Counts everything in a body, then holds it against the caps.

        Raises:
            Refusal: Over a cap, or of a form that is not accepted; names both.
        """
        # What was counted until then is over the cap, and told as the measured size.
        try:  # noqa: SIM105 - a context manager for each request is slower
            self._count(body)
        except Hopeless:
            pass
        conversation = self.conversation
        conversation.settle()
        for name, value in conversation.tools:
            _schema(self, name, value)
        for markup in (conversation.items, conversation.arguments):
            if markup > _FREE_ITEMS:
                conversation.chars += _CHARS_PER_ITEM * (markup - _FREE_ITEMS)
        self.prompt_chars = conversation.chars + sum(self.inputs)
        self._hold_against_caps()

    def _count(self, body: Mapping[str, Any]) -> None:
        handlers = _HANDLERS[self.kind]
        for name, value in body.items():
            if name in _SAMPLING:
                kind = type(value)
                if kind is str or kind is list or kind is dict:
                    self.sampling_chars += compact_chars(value)
            elif handler := handlers.get(name):
                handler(self, name, value)
            else:
                self.conversation.member(name, value)
                if name in compiling.FIELDS:
                    member = {name: value}
                    self.compiling.count(name, member, shape(member, compiling.TELLTALES))

    def _hold_against_caps(self) -> None:
        limits = self.limits
        if self.conversation.media_parts > limits.max_media_parts:
            raise MediaRefused(
                f"The request has {self.conversation.media_parts} media parts; the limit is "
                f"{limits.max_media_parts} (PROXY_MAX_MEDIA_PARTS)."
            )
        self._hold_against_prompt_cap(limits.max_prompt_chars)
        if self.schema_chars > limits.max_schema_chars:
            raise ToolsTooLarge(
                f"Tools and output schemas count {self.schema_chars:,} characters (of compact "
                f"JSON, or a quarter of what templates make of it if more); the limit is "
                f"{limits.max_schema_chars:,} (PROXY_MAX_SCHEMA_CHARS)."
            )
        if self.sampling_chars > tables.MAX_SAMPLING_CHARS:
            raise ParametersTooLarge(
                f"Sampling parameters (stop, logit_bias, metadata, …) have "
                f"{self.sampling_chars:,} characters of compact JSON together; the limit is "
                f"{tables.MAX_SAMPLING_CHARS:,}."
            )

    def _hold_against_prompt_cap(self, cap: int) -> None:
        total, setting = self.prompt_chars, self.limits.prompt_setting
        if self.kind not in PER_INPUT:
            if total > cap:
                raise _too_long(self.kind, total, cap, "", setting)
            return
        largest = self.conversation.chars + max(self.inputs, default=0)
        if largest > cap:
            raise _too_long(self.kind, largest, cap, " for one input", setting)
        if total > cap * TOTAL_FACTOR:
            of_what = f" for all inputs, {TOTAL_FACTOR} times that of one,"
            raise _too_long(self.kind, total, cap * TOTAL_FACTOR, of_what, setting)


_Handler = Callable[[PromptCount, str, Any], None]


def _messages(count: PromptCount, name: str, value: object) -> None:
    count.conversation.messages(name, value)


def _content(count: PromptCount, name: str, value: object) -> None:
    count.conversation.content(name, value)


def _inputs(count: PromptCount, name: str, value: object) -> None:
    """`prompt` and `input`: text, texts, ids, lists of ids or, for `input`, items."""
    if name == "input" and type(value) is list and {type(entry) for entry in value} == {dict}:
        count.conversation.messages(name, value)
        return
    # First: to look into 86,000 lists of ids held the loop for 80 ms.
    if count.kind in PER_INPUT:
        _limit_inputs(name, entries(value), MAX_INPUTS, "fixed")
    elif count.kind is BodyKind.COMPLETIONS:
        _limit_inputs(name, entries(value), count.limits.max_choices, "PROXY_MAX_CHOICES")
    count.inputs += input_chars(name, value)


def _texts(count: PromptCount, name: str, value: object) -> None:
    """One side of a comparison."""
    count.inputs += text_chars(name, value)
    _limit_inputs(name, len(count.inputs), MAX_INPUTS, "fixed")


def _formatted(count: PromptCount, name: str, value: object) -> None:
    """`text` of Responses, `output_config` of Messages: the format is a schema, the rest is not."""
    if type(value) is not dict:
        count.conversation.member(name, value)
        return
    for key, member in value.items():
        if key == "format":
            _schema(count, f"{name}.format", member)
        else:
            count.conversation.member(key, member)


def _schema(count: PromptCount, name: str, value: object) -> None:
    if value is None:
        return
    seen, chars, over = count.schemas.measure(value)
    if seen.levels > tables.MAX_SCHEMA_DEPTH:
        raise ToolsTooLarge(
            f"{name} is nested more than {tables.MAX_SCHEMA_DEPTH} levels deep.", param=name
        )
    if not over:
        count.compiling.count(name, value, seen)
    count.schema_chars += chars


def _routing(count: PromptCount, name: str, value: object) -> None:
    if type(value) is str:
        count.conversation.chars += len(value) if len(value) > tables.MAX_ROUTING_CHARS else 0
    elif value is not None:
        count.conversation.member(name, value)


_CHAT: Mapping[str, _Handler] = {"messages": _messages}
_ANTHROPIC: Mapping[str, _Handler] = {
    **_CHAT,
    "system": _content,
    "output_config": _formatted,
}
_COMPARISON: Mapping[str, _Handler] = dict.fromkeys(
    ("query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2"), _texts
)
_OF_ALL: Mapping[str, _Handler] = {
    **dict.fromkeys(tables.SCHEMAS, _schema),
    **dict.fromkeys(tables.ROUTING, _routing),
}
_OF_KIND: Mapping[BodyKind, Mapping[str, _Handler]] = {
    BodyKind.CHAT: _CHAT,
    BodyKind.COMPLETIONS: {"prompt": _inputs, "suffix": _content},
    BodyKind.RESPONSES: {"input": _inputs, "instructions": _content, "text": _formatted},
    BodyKind.MESSAGES: _ANTHROPIC,
    BodyKind.COUNT_TOKENS: _ANTHROPIC,
    BodyKind.EMBEDDINGS: {**_CHAT, "input": _inputs},
    BodyKind.RERANK: _COMPARISON,
    BodyKind.SCORE: _COMPARISON,
}
_HANDLERS = {kind: {**_OF_ALL, **handlers} for kind, handlers in _OF_KIND.items()}
# No handler has such a name.
_SAMPLING = tables.SAMPLING


def _limit_inputs(name: str, entries: int, limit: int, setting: str) -> None:
    if entries > limit:
        raise TooManyInputs(
            f"{name} has {entries:,} entries; the limit is {limit:,} ({setting}).", param=name
        )


def _too_long(
    kind: BodyKind, chars: int, limit: int, of_what: str, setting: str
) -> ContextLengthExceeded:
    if kind in {BodyKind.MESSAGES, BodyKind.COUNT_TOKENS}:
        # Anthropic's clients look for these words before they compact a conversation.
        return ContextLengthExceeded(
            f"prompt is too long: {chars:,} characters > {limit:,} maximum ({setting})"
        )
    return ContextLengthExceeded(
        f"The prompt counts {chars:,} characters; the limit{of_what} is {limit:,} ({setting}). "
        "Shorten it, or compact the conversation."
    )
