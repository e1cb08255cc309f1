"""The most of each limit: what the settings, the key file and ``bulwark keys`` accept is one number."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest

from proxy.auth import keyfile
from proxy.auth.keyfields import LIMITS
from proxy.auth.keyfile import KeyFileError
from proxy.cli import terms
from proxy.config import ConfigError, load
from proxy.principal import MOST

_SETTINGS = {
    "requests_per_minute": ("KEY_REQUESTS_PER_MINUTE",),
    "tokens_per_minute": ("KEY_TOKENS_PER_MINUTE",),
    "tokens_per_day": ("KEY_TOKENS_PER_DAY",),
    "concurrency": ("KEY_CONCURRENCY",),
    "max_prompt_chars": ("MAX_PROMPT_CHARS", "MAX_PROMPT_CHARS_CEILING"),
    "max_output_tokens": ("MAX_OUTPUT_TOKENS", "MAX_OUTPUT_TOKENS_CEILING"),
}
_OPTIONS = {field: option for option, field in terms.OPTIONS.items()}


def _of_a_setting(name: str, value: int) -> str:
    try:
        load({"PROXY_ALLOW_ANONYMOUS": "true", f"PROXY_{name}": str(value)})
    except ConfigError as error:
        return str(error)
    return ""


def _of_the_file(limit: str, value: int) -> str:
    try:
        keyfile.parse(f'[[key]]\nid = "k3v9x2ab"\nsha256 = "{"a" * 64}"\n{limit} = {value}\n')
    except KeyFileError as error:
        return str(error)
    return ""


def _of_the_command(limit: str, value: int) -> str:
    try:
        terms.entry({_OPTIONS[limit]: str(value)}, datetime.now(UTC))
    except terms.TermsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("limit", LIMITS)
def test_one_bound_of_each_limit(limit: str) -> None:
    """It passes, one more does not, and whoever goes over it is told the number."""
    ways: list[Callable[[int], str]] = [partial(_of_a_setting, name) for name in _SETTINGS[limit]]
    ways += [partial(_of_the_file, limit), partial(_of_the_command, limit)]
    for told in ways:
        assert told(MOST[limit]) == ""
        assert f" to {MOST[limit]}" in told(MOST[limit] + 1)


def test_every_limit_has_a_bound() -> None:
    """And there is none of what is no limit."""
    assert tuple(MOST) == LIMITS == tuple(_SETTINGS)
