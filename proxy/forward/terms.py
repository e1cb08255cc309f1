"""On which terms each principal asks, as the policy takes them."""

from proxy.metering import is_counted
from proxy.policy import Terms
from proxy.principal import ANONYMOUS, Principal

_MOST_TERMS = 1024


class TermsOfPrincipals:
    """Makes them once for as long as a principal's key is not read again.

    Args:
        recorded: Whether somebody keeps what each key has used, its limits or none.
    """

    def __init__(self, *, recorded: bool = False) -> None:
        self._recorded = recorded
        self._known: dict[str, tuple[Principal, Terms]] = {}

    def of(self, principal: Principal) -> Terms:
        """Those of this principal."""
        known = self._known.get(principal.key_id)
        if known is not None and known[0] is principal:
            return known[1]
        if len(self._known) >= _MOST_TERMS:
            self._known.clear()
        terms = self._made(principal)
        self._known[principal.key_id] = principal, terms
        return terms

    def _made(self, principal: Principal) -> Terms:
        given = principal.allowance
        # Of whoever has no key nothing is kept.
        recorded = self._recorded and principal.key_id != ANONYMOUS
        return Terms(
            cache_salt=principal.cache_salt,
            max_prompt_chars=given.max_prompt_chars,
            max_output_tokens=given.max_output_tokens,
            default_output_tokens=given.spare_output_tokens,
            models=given.models,
            want_usage=recorded or is_counted(given),
        )
