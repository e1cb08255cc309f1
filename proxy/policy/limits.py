"""What the policy is told, and what it says: plain values, so that every decision stays a pure function.

Those that are made for each request are structs of msgspec, in C: frozen like a dataclass, whose
``__init__`` takes ten times as long.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

Engine = Literal["vllm", "sglang", "llamacpp", "transformers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The operator's caps; each is the setting ``PROXY_<NAME>``.

    Attributes:
        max_prompt_chars: Unicode code points of prompt in one request.
        max_schema_chars: Characters of compact JSON of tools and output schemas together.
        max_output_tokens: Tokens that one request may generate, over all its sequences.
        max_choices: Sequences of one request: prompts times ``n`` or ``best_of``.
        max_media_parts: Images and sounds in one request.
        output_overflow: Whether an output over the cap is lowered or refused.
        profile: ``strict`` refuses the second tier of fields too.
        engine: Which engine is behind; adds what only that one needs.
        allow_fields: Names taken out of the tables of refused fields.
        deny_fields: Names added to them.
        cache_salt: ``per-key`` gives each key a prefix cache of its own.
        default_output_tokens: What a request that names no bound gets, where that is less than the cap.
        prompt_setting: Where the prompt cap is set, and `output_setting` the output cap, for whoever
            reads that it was met.
    """

    max_prompt_chars: int = 10_000
    max_schema_chars: int = 64_000
    max_output_tokens: int = 4_096
    max_choices: int = 8
    max_media_parts: int = 8
    output_overflow: Literal["clamp", "reject"] = "clamp"
    profile: Literal["standard", "strict"] = "standard"
    engine: Engine = "vllm"
    allow_fields: frozenset[str] = frozenset()
    deny_fields: frozenset[str] = frozenset()
    cache_salt: Literal["off", "per-key"] = "off"
    default_output_tokens: int | None = None
    prompt_setting: str = "PROXY_MAX_PROMPT_CHARS"
    output_setting: str = "PROXY_MAX_OUTPUT_TOKENS"


class Terms(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whose request it is, as far as that changes what it may ask.

    Attributes:
        cache_salt: The key's own salt, put in where ``PROXY_CACHE_SALT=per-key``.
        max_prompt_chars: The key's own cap, in place of the operator's; None is none of its own.
        max_output_tokens: The same, of output.
        default_output_tokens: What is bounded to for want of a bound of the client's: of a key that has
            fewer tokens than the cap, or every such request would be refused.
        models: The only models that it may use; None is any.
        want_usage: Whether the engine has to say what the request used.
    """

    cache_salt: str = ""
    max_prompt_chars: int | None = None
    max_output_tokens: int | None = None
    default_output_tokens: int | None = None
    models: frozenset[str] | None = None
    want_usage: bool = False


class Cost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request may cost the engine, as far as its body tells.

    Attributes:
        prompt_chars: What counted against the prompt cap.
        schema_chars: What counted against the schema cap.
        text_bytes: Bytes of UTF-8 in all that counted: prompt, schemas, 32 for each item and 16
            for each input; what is compared with many texts counts with each.
        items: Messages, input items, parts and tool calls.
        inputs: Entries of `prompt`, `input` or what is compared.
        media_parts: Images and sounds.
        sequences: Generations asked for; 0 where nothing is generated.
        output_tokens: The most that each sequence may generate.
    """

    prompt_chars: int = 0
    schema_chars: int = 0
    text_bytes: int = 0
    items: int = 0
    inputs: int = 0
    media_parts: int = 0
    sequences: int = 0
    output_tokens: int = 0


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that may pass.

    Attributes:
        body: The bytes for the upstream: the client's own object unless something had to change.
        stream: Whether the body says ``"stream": true``.
        cost: What to reserve for it.
        clamped: What was lowered, as ``max_tokens 32000 -> 4096``; empty if nothing was.
        usage_asked: Whether the body asks for usage on our account, so that what the engine says of
            it is ours to take out.
    """

    body: bytes
    stream: bool
    cost: Cost
    clamped: str = ""
    usage_asked: bool = False
