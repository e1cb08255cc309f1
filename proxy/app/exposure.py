"""What the settings open to everybody, said so that nobody does it unawares."""

import ipaddress
from collections.abc import Iterator

from proxy.config import Settings
from proxy.telemetry.log import Log


def exposed(settings: Settings) -> Iterator[str]:
    """A sentence for each door that stands open."""
    if settings.allow_anonymous and not _is_loopback(settings.host):
        yield (
            f"PROXY_ALLOW_ANONYMOUS lets in whoever can connect to PROXY_HOST ({settings.host}), "
            "without a key"
        )
    if _is_wildcard(settings.admin_host):
        yield (
            f"PROXY_ADMIN_HOST ({settings.admin_host}) is every address of this machine, and the "
            "admin listener asks nobody for a key"
        )


def remark(settings: Settings, log: Log) -> None:
    """Tells it, once the server listens."""
    for problem in exposed(settings):
        log.server("exposed", level="warning", problem=problem)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
