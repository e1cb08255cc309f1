"""The kinds of values that settings have, and the sentences that refuse them.

No sentence repeats a value: somebody will paste a key into the wrong variable.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from proxy.endpoints import ENDPOINTS
from proxy.headers import may_be_relayed
from proxy.policy.fields import is_known
from proxy.upstream import target

MIN_KEY_CHARS = 32

# RFC 9110 §5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")
# RFC 6454 §6.2: what a browser sends has no path, not even a slash.
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
# What a client may write as `model`, and a comma separates them here.
_MODEL_NAME = re.compile(r"[^\s,](?:[^,]{0,254}[^\s,])?")
MAX_PORT = 65_535
# redis-py reads more forms, and parameters, one of which switches the verification of TLS off.
_REDIS_URL = re.compile(
    r"rediss?://(?:[^\s/?#]*@)?(?:\[(?P<address>[^\s/?#@\[\]]+)\]|(?P<host>[^\s/?#@\[\]:]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?:/[0-9]{1,5})?"
    r"|unix://[^\s/?#]*/[^\s?#]+"
)
_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Unusable:
    """Stands for a value that could not even be handed over, with the reason."""

    reason: str


def _comma_separated(value: object) -> object:
    if isinstance(value, str):
        return tuple(item for part in value.split(",") if (item := part.strip()))
    return value


def _keys_separated(value: object) -> object:
    # A file of keys may have one on each line, too.
    return _comma_separated(",".join(value.splitlines())) if isinstance(value, str) else value


def _each(is_right: Callable[[str], bool], expected: str) -> AfterValidator:
    """Refuses a list by the position of its first wrong item."""

    def check(items: tuple[str, ...]) -> tuple[str, ...]:
        for position, item in enumerate(items, start=1):
            if not is_right(item):
                raise ValueError(f"item {position} of {len(items)} is not {expected}")
        return items

    return AfterValidator(check)


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _host(text: str) -> str:
    if not _is_host(text):
        raise ValueError("must be an IP address or a host name, without port or brackets")
    return text


def _lower(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item.lower() for item in items)


def _is_relayable(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None and may_be_relayed(name.lower().encode())


def _is_header_value(text: str) -> bool:
    # In a header field a line break starts another field, and a space another credential.
    return text.isascii() and text.isprintable() and " " not in text


def _is_model(name: str) -> bool:
    return _MODEL_NAME.fullmatch(name) is not None and name.isprintable()


def _is_peer(text: str) -> bool:
    """An address or a network."""
    try:
        return bool(ipaddress.ip_network(text))
    except ValueError:
        return False


# Fields that mean something else here: whoever believed an address in them would believe a client.
_NO_ADDRESS = frozenset(
    {"authorization", "x-api-key", "cookie", "host", "forwarded", "content-type"}
)


def _address_header(name: str) -> str:
    if not _TOKEN.fullmatch(name) or name.lower() in _NO_ADDRESS:
        raise ValueError(
            "must be the name of a header that holds an address, such as CF-Connecting-IP, "
            "X-Real-IP or X-Forwarded-For"
        )
    return name.lower()


def _is_redis_url(url: str) -> bool:
    found = _REDIS_URL.fullmatch(url)
    if found is None:
        return False
    host, address, port = found["host"], found["address"], found["port"]
    return (
        (host is None or _is_host(host))
        and (address is None or _is_ipv6(address))
        and (port is None or 0 < int(port) <= MAX_PORT)
    )


def _redis_url(url: SecretStr) -> SecretStr:
    if not _is_redis_url(url.get_secret_value()):
        raise ValueError(
            "must be redis://[user:password@]host[:port][/db], rediss://… for TLS, or unix:///path"
        )
    return url


MIN_KV_TOKENS = 1_024
MAX_KV_TOKENS = 2**40


def _kv_budget(value: object) -> object:
    """A word or a number, which out of the environment is text too."""
    if value in ("auto", "off"):
        return value
    text = str(value)
    if text.isascii() and text.isdigit() and MIN_KV_TOKENS <= int(text) <= MAX_KV_TOKENS:
        return int(text)
    raise ValueError(f"must be auto, off, or {MIN_KV_TOKENS} to {MAX_KV_TOKENS} tokens")


def _upstream(url: str) -> str:
    target.parse(url)
    return url


def _upstream_key(key: SecretStr) -> SecretStr:
    if not key.get_secret_value():
        raise ValueError("is empty; leave it out if the upstream wants no key")
    if not _is_header_value(key.get_secret_value()):
        raise ValueError("has a space, a line break or another character that no header may carry")
    return key


def _client_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    for position, key in enumerate(keys, start=1):
        if not _is_header_value(key.get_secret_value()):
            raise ValueError(f"key {position} has a character that no header may carry")
        if len(key.get_secret_value()) < MIN_KEY_CHARS:
            raise ValueError(
                f"key {position} is {len(key.get_secret_value())} characters long; "
                f"at least {MIN_KEY_CHARS} random ones are needed"
            )
        if key in keys[: position - 1]:
            raise ValueError(f"key {position} is the same as key {keys.index(key) + 1}")
    return keys


def _file(path: Path) -> Path:
    if path == Path():
        raise ValueError("is empty; leave it out if there is no such file")
    return path


Host = Annotated[str, AfterValidator(_host)]
Port = Annotated[int, Field(ge=0, le=MAX_PORT)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
FilePath = Annotated[Path, AfterValidator(_file)]
UpstreamUrl = Annotated[str, AfterValidator(_upstream)]
UpstreamKey = Annotated[SecretStr, AfterValidator(_upstream_key)]
ClientKeys = Annotated[
    tuple[SecretStr, ...], BeforeValidator(_keys_separated), AfterValidator(_client_keys)
]

ModelNames = Annotated[
    tuple[str, ...],
    BeforeValidator(_comma_separated),
    _each(_is_model, "the name of a model, of at most 256 printable characters"),
]
Peers = Annotated[
    tuple[str, ...],
    BeforeValidator(_comma_separated),
    _each(_is_peer, "an IP address, or a network such as 172.16.0.0/12 without host bits"),
]
AddressHeader = Annotated[str, AfterValidator(_address_header)]
RedisUrl = Annotated[SecretStr, AfterValidator(_redis_url)]
KvBudget = Annotated[Literal["auto", "off"] | int, BeforeValidator(_kv_budget)]

_List = Annotated[tuple[str, ...], BeforeValidator(_comma_separated)]
HostNames = Annotated[
    _List, _each(_is_host, "a host name or an IP address"), AfterValidator(_lower)
]
EndpointNames = Annotated[
    _List,
    _each(
        lambda name: any(name == row.name for row in ENDPOINTS),
        "an endpoint; they are " + ", ".join(row.name for row in ENDPOINTS),
    ),
]
FieldNames = Annotated[
    _List,
    _each(lambda name: _FIELD_NAME.fullmatch(name) is not None, "the name of a request field"),
]
RefusedFieldNames = Annotated[
    _List,
    # A misspelt one would leave the field refused, and nobody would know why.
    _each(is_known, "the name of a field that is refused (see proxy/policy/fields.py)"),
]
HeaderNames = Annotated[
    _List,
    _each(_is_relayable, "the name of a response header that may be relayed"),
    AfterValidator(_lower),
]
Origins = Annotated[
    _List,
    _each(
        lambda origin: _ORIGIN.fullmatch(origin) is not None,
        "an origin such as https://chat.example.org, in lower case and without a path",
    ),
]
