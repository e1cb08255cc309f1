"""What a key was given that it does not get, said so that nobody wonders why it has no effect."""

from collections.abc import Iterator

from proxy.principal import Allowance

_CEILINGS = {
    "max_prompt_chars": "PROXY_MAX_PROMPT_CHARS",
    "max_output_tokens": "PROXY_MAX_OUTPUT_TOKENS",
}


def capped(key_id: str, own: Allowance, ceilings: Allowance) -> Iterator[str]:
    """A sentence for each field; names of models are not repeated, for they may be anything.

    Args:
        key_id: Whose.
        own: What it was given.
        ceilings: What no key may exceed; of models, all that there are.
    """
    for field, setting in _CEILINGS.items():
        given, ceiling = getattr(own, field), getattr(ceilings, field)
        if given is not None and ceiling is not None and given > ceiling:
            yield (
                f"{field} {given} of key {key_id} is over the ceiling of {ceiling}, which counts "
                f"({setting}_CEILING; while that is 0, {setting})"
            )
    for field in ("tokens_per_minute", "tokens_per_day"):
        limit, output = getattr(own, field), own.max_output_tokens
        if limit is not None and output is not None and output >= limit:
            yield (
                f"max_output_tokens {output} of key {key_id} leaves nothing of its {field} "
                f"({limit}) for a prompt"
            )
    if own.models is not None and ceilings.models is not None:
        unknown = len(own.models - ceilings.models)
        if unknown:
            yield (
                f"models of key {key_id} has {unknown} that PROXY_MODELS has not"
                + ("" if unknown < len(own.models) else ": it may use none")
            )
