"""An environment of settings, and what is wrong with it."""

from proxy.config import ConfigError, load

ANONYMOUS = {"PROXY_ALLOW_ANONYMOUS": "true"}
KEY = "k" * 32
CANARY = "canary0123456789canary0123456789"


def problems(environ: dict[str, str]) -> list[str]:
    """What is wrong with an environment; nothing if it loads."""
    try:
        load(environ)
    except ConfigError as error:
        return error.problems
    return []
