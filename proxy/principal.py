"""Who asks, and what they were given."""

from dataclasses import dataclass, fields

ANONYMOUS = "anonymous"
"""The key id of whoever sent no key."""

MOST = {
    "requests_per_minute": 1_000_000,
    # More than an engine can do in a day, and few enough for every counter to be exact.
    "tokens_per_minute": 10**10,
    "tokens_per_day": 10**10,
    "concurrency": 65_536,
    "max_prompt_chars": 16 * 1024 * 1024,
    "max_output_tokens": 1024 * 1024,
}
"""The most that any key can be given of each, by its own terms or by a default of everybody's.

One table for the settings, the key file and ``bulwark keys``: what one accepts, all do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a key was given. None is nothing of its own: the operator's default, or no limit.

    Attributes:
        requests_per_minute: Requests that may begin in one minute.
        tokens_per_minute: Prompt and output together.
        tokens_per_day: Prompt and output together, in 24 hours as ``admission.rates.window`` counts them.
        concurrency: Requests at one moment; one more is refused, not queued.
        max_prompt_chars: In place of ``PROXY_MAX_PROMPT_CHARS``.
        max_output_tokens: In place of ``PROXY_MAX_OUTPUT_TOKENS``.
        models: The only models that it may use.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None
    max_prompt_chars: int | None = None
    max_output_tokens: int | None = None
    models: frozenset[str] | None = None

    def within(self, defaults: "Allowance", ceilings: "Allowance") -> "Allowance":
        """What is in force for a key with this allowance.

        Args:
            defaults: What it has where it has nothing of its own.
            ceilings: What none of it may exceed, its own or a default. Of models: those that there
                are, to anybody.
        """
        values: dict[str, int | None] = {}
        for field in fields(self):
            if field.name == "models":
                continue
            own = getattr(self, field.name)
            value = own if own is not None else getattr(defaults, field.name)
            ceiling = getattr(ceilings, field.name)
            if value is not None and ceiling is not None:
                value = min(value, ceiling)
            values[field.name] = value
        models = self.models if self.models is not None else defaults.models
        if models is not None and ceilings.models is not None:
            models &= ceilings.models
        elif models is None:
            models = ceilings.models
        return Allowance(models=models, **values)

    @property
    def spare_output_tokens(self) -> int | None:
        """The output to reserve at most for a request that names no bound; None is any.

        Half of the least limit of tokens, so that a prompt fits, too: where the operator's default is
        more than the limit, such a request could never pass. Of a key that was given
        ``max_output_tokens`` none, for somebody has thought about it.
        """
        minute, day = self.tokens_per_minute, self.tokens_per_day
        least = day if minute is None or (day is not None and day < minute) else minute
        if least is None or self.max_output_tokens is not None:
            return None
        return max(1, least // 2)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, once authenticated.

    Attributes:
        key_id: The public id of the key (``env-1``, ``k3v9x2ab``, ``anonymous``); fit for logs.
        cache_salt: A secret of this key's own, for ``PROXY_CACHE_SALT=per-key``; never logged.
        allowance: What is in force for it.
    """

    key_id: str
    cache_salt: str
    allowance: Allowance = Allowance()
