"""Accounts of those without a key. Each is an address, of which somebody may have as many as he likes."""

from proxy.principal import ANONYMOUS

_BEGINNING = f"{ANONYMOUS} "


def is_stranger(account: str) -> bool:
    """Whether it is an address. Where many are no more than one, they count together."""
    return account.startswith(_BEGINNING)
