"""What a request may ask: pure functions over its body.

There is no schema of the request. The product was born from one: a pydantic model that did not
declare ``tools`` dropped them in silence. So the few fields that are governed are looked at, and
everything else passes untouched, and counts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from proxy.endpoints import BodyKind
from proxy.policy.body import max_structure, parse
from proxy.policy.edit import Edit, apply
from proxy.policy.fields import RefusedFields
from proxy.policy.limits import Cost, Limits, Terms, Verdict
from proxy.policy.models import check_model
from proxy.policy.output import bound_output
from proxy.policy.prompt import PER_INPUT, TOTAL_FACTOR, PromptCount
from proxy.policy.sampling import check_sampling
from proxy.policy.schemas import Schemas
from proxy.policy.usage import ask_for_usage

__all__ = ["Cost", "Limits", "Policy", "Terms", "Verdict"]

_NONE_OF_ITS_OWN = (None, None, None)
_MAX_OWN_LIMITS = 1_024

_BYTES_PER_ITEM = 32
_READ_AGAIN = frozenset({BodyKind.RERANK, BodyKind.SCORE})
_COMPARED = (("query", "queries", "text_1", "data_1"), ("documents", "items", "text_2", "data_2"))
_BYTES_PER_INPUT = 16  # what begins and ends each is two or three tokens
_ESCAPE = 2  # \\u0041 counts one character, and makes at most three bytes


class Policy:
    """The operator's limits, ready to judge bodies."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of_keys: dict[tuple[int | None, int | None, int | None], Limits] = {}
        self._fields = RefusedFields(limits)
        # For all keys: their own limits are of prompts and output.
        self._schemas = Schemas(limits.max_schema_chars)

    def check(self, kind: BodyKind, body: bytes, terms: Terms) -> Verdict:
        """Judges one body.

        Args:
            kind: What the endpoint takes it for.
            body: The whole body, identity encoding.
            terms: Whose it is.

        Returns:
            The bytes to forward (this very object if nothing had to change) and their cost.

        Raises:
            Refusal: What is wrong, how much, and which setting.
        """
        own = (terms.max_prompt_chars, terms.max_output_tokens, terms.default_output_tokens)
        limits = self._limits if own == _NONE_OF_ITS_OWN else self._limits_of(own)
        prompt_cap = limits.max_prompt_chars * (TOTAL_FACTOR if kind in PER_INPUT else 1)
        members = parse(body, max_structure=max_structure(prompt_cap, limits.max_schema_chars))
        if terms.models is not None:
            check_model(members, terms.models)
        self._fields.check_top(kind, members)
        check_sampling(members)
        count = PromptCount(kind, limits, self._fields, self._schemas)
        count.walk(members)
        conversation, inputs = count.conversation, len(count.inputs)
        output = bound_output(kind, members, limits, prompts=inputs)
        edits = output.edits
        if limits.cache_salt == "per-key":
            salt = b'"%b"' % terms.cache_salt.encode()
            edits = (*edits, Edit(("cache_salt",), salt, absent="cache_salt" not in members))
        asked = ask_for_usage(kind, members) if terms.want_usage else ()
        text_bytes = _text_bytes(count, body)
        if kind in _READ_AGAIN:
            text_bytes += _read_again(members)
        return Verdict(
            body=apply(body, edits + asked) if edits or asked else body,
            stream=members.get("stream") is True,
            cost=Cost(
                prompt_chars=count.prompt_chars,
                schema_chars=count.schema_chars,
                text_bytes=text_bytes,
                items=conversation.items,
                inputs=inputs,
                media_parts=conversation.media_parts,
                sequences=output.sequences,
                output_tokens=output.tokens,
            ),
            clamped=output.clamped,
            usage_asked=bool(asked),
        )

    def _limits_of(self, own: tuple[int | None, int | None, int | None]) -> Limits:
        """The limits of a key with caps of its own, made once for all keys that have the same."""
        if (limits := self._of_keys.get(own)) is None:
            # As many as operators have thought of, or less.
            if len(self._of_keys) >= _MAX_OWN_LIMITS:
                self._of_keys.clear()
            limits = self._of_keys[own] = _with_caps(self._limits, *own)
        return limits


def _with_caps(
    limits: Limits, prompt: int | None, output: int | None, default: int | None
) -> Limits:
    if prompt is not None:
        setting = "max_prompt_chars of this key, up to PROXY_MAX_PROMPT_CHARS_CEILING"
        limits = replace(limits, max_prompt_chars=prompt, prompt_setting=setting)
    if output is not None:
        setting = "max_output_tokens of this key, up to PROXY_MAX_OUTPUT_TOKENS_CEILING"
        limits = replace(limits, max_output_tokens=output, output_setting=setting)
    if default is not None:
        limits = replace(limits, default_output_tokens=default)
    return limits


def _text_bytes(count: PromptCount, body: bytes) -> int:
    """At most so many bytes of UTF-8 did what counted have; every wide character might be in it."""
    text = count.prompt_chars + count.schema_chars + _BYTES_PER_ITEM * count.conversation.items
    text += _BYTES_PER_INPUT * len(count.inputs)
    if not body.isascii():
        text += len(body) - len(body.decode())
    # Most have no backslash, which is seen at once.
    return text + (_ESCAPE * body.count(b"\\u") if b"\\" in body else 0)


def _read_again(members: Mapping[str, Any]) -> int:
    """Bytes that are read besides: of a text that is compared with each of several."""
    # By all names that engines know: they overlook those of each other.
    left, right = ([_listed(members.get(name)) for name in side] for side in _COMPARED)
    return _single_bytes(left) * _besides(right) + _single_bytes(right) * _besides(left)


def _single_bytes(values: list[list[str]]) -> int:
    return sum(len(texts[0].encode()) for texts in values if len(texts) == 1)


def _besides(values: list[list[str]]) -> int:
    return max(0, max(map(len, values)) - 1)


def _listed(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []
