"""What a request may use, as the gate is asked for it, and what counts what it has used.

Between the policy, which says what a body costs, and admission and telemetry, which know of no body.
"""

from proxy.admission.gate import Demand
from proxy.endpoints import BodyKind
from proxy.policy import Cost, Verdict
from proxy.principal import Allowance
from proxy.telemetry.usage import UsageMeter

# A byte is one token at the very most, and twice that where a template escapes it. A template may
# bring pages of its own, and a video be as long as a context.
_MOST_TOKENS_PER_BYTE = 4
_MOST_TOKENS_PER_MEDIA = 65_536
_TEMPLATE_TOKENS = 4_096
# What an engine puts around each, which may be empty.
_MOST_TOKENS_PER_INPUT = 64


def is_counted(allowance: Allowance) -> bool:
    """Whether the limits of a key need to know what it uses."""
    return allowance.tokens_per_minute is not None or allowance.tokens_per_day is not None


def demand_of(kind: BodyKind, cost: Cost) -> Demand:
    """What a request may need of the engine."""
    if kind is BodyKind.COUNT_TOKENS:
        # Nothing is generated, nor read by a model.
        return Demand(text_bytes=0, media_parts=0, output_tokens=0)
    return Demand(
        text_bytes=cost.text_bytes,
        media_parts=cost.media_parts,
        output_tokens=cost.output_tokens * cost.sequences,
    )


def meter_of(kind: BodyKind, verdict: Verdict, *, streamed: bool) -> UsageMeter:
    """What counts the answer to a request that may pass."""
    cost = verdict.cost
    return UsageMeter(
        kind,
        streamed=streamed,
        take_out=verdict.usage_asked,
        sequences=cost.sequences,
        output_tokens=cost.output_tokens,
        most_prompt_tokens=_most_prompt_tokens(cost),
    )


def _most_prompt_tokens(cost: Cost) -> int:
    """More than a prompt can have come to; what states more is a broken engine, not a long prompt."""
    return (
        _TEMPLATE_TOKENS
        + cost.text_bytes * _MOST_TOKENS_PER_BYTE
        + cost.media_parts * _MOST_TOKENS_PER_MEDIA
        + cost.inputs * _MOST_TOKENS_PER_INPUT
    )
