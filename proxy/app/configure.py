"""From an environment to settings and keys, or to everything that is wrong with them."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from proxy.app.clocks import utc_now
from proxy.auth import keyfile
from proxy.auth.keys import KeyRecord, KeyStore, environment_records
from proxy.config import ConfigError, Settings, load
from proxy.principal import Allowance


def configure(
    environ: Mapping[str, str], now: Callable[[], datetime] = utc_now
) -> tuple[Settings, KeyStore]:
    """The settings of an environment, and the keys that they name.

    Raises:
        ConfigError: With everything that is wrong, the key file's errors among it.
    """
    try:
        settings = load(environ)
    except ConfigError as exc:
        problems = exc.problems
    else:
        return settings, key_store(settings, now)
    # Read all the same, so that one start tells everything.
    if path := environ.get("PROXY_KEYS_FILE"):
        try:
            _read_key_file(Path(path))
        except ConfigError as exc:
            problems = problems + exc.problems
    raise ConfigError(problems)


def key_store(settings: Settings, now: Callable[[], datetime] = utc_now) -> KeyStore:
    """The keys of the environment and of the key file.

    Raises:
        ConfigError: The file is not used, or there is no key at all and nobody said that none is
            needed.
    """
    store = KeyStore(
        environment_records(key.get_secret_value() for key in settings.api_keys),
        _read_key_file(settings.keys_file) if settings.keys_file is not None else (),
        allow_anonymous=settings.allow_anonymous,
        defaults=_defaults(settings),
        ceilings=_ceilings(settings),
        now=now,
    )
    if not len(store) and not settings.allow_anonymous:
        raise ConfigError(["PROXY_KEYS_FILE: holds no key, and PROXY_API_KEYS none either"])
    return store


def _defaults(settings: Settings) -> Allowance:
    """What a key may do that was given nothing of its own; the caps of a request are the policy's."""
    return Allowance(
        requests_per_minute=settings.key_requests_per_minute or None,
        tokens_per_minute=settings.key_tokens_per_minute or None,
        tokens_per_day=settings.key_tokens_per_day or None,
        concurrency=settings.key_concurrency or None,
    )


def _ceilings(settings: Settings) -> Allowance:
    """How far a key's own terms go."""
    return Allowance(
        max_prompt_chars=settings.max_prompt_chars_ceiling or settings.max_prompt_chars,
        max_output_tokens=settings.max_output_tokens_ceiling or settings.max_output_tokens,
        models=frozenset(settings.models) if settings.models else None,
    )


def _read_key_file(path: Path) -> list[KeyRecord]:
    try:
        return keyfile.read(path)
    except keyfile.KeyFileError as exc:
        problems = [f"PROXY_KEYS_FILE: {error}" for error in exc.errors]
        if isinstance(exc.__cause__, FileNotFoundError):
            problems[-1] += "; bulwark keys create --name NAME --file FILE makes one"
        raise ConfigError(problems) from exc
