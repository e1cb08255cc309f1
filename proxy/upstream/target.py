"""Where the upstream is: ``PROXY_UPSTREAM_URL``, parsed once and strictly.

Only the place. A path in it would be joined with the endpoint's own by one rule or another, and a
password in it would end up in logs, so neither is accepted.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Literal
from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")

# unix(7): sun_path is 108 bytes, one of them the NUL at its end.
_MAX_SOCKET_PATH_BYTES = 107

_EXPECTED = "expected http://HOST:PORT, https://HOST:PORT or unix:///PATH/OF/THE.SOCKET"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the upstream is.

    Attributes:
        host: A name or an address, without the brackets of IPv6.
        uds: The path of its Unix socket; None over TCP.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    uds: str | None = None

    @property
    def authority(self) -> bytes:
        """What goes into ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = self.port == _DEFAULT_PORTS[self.scheme]
        return (host if default else f"{host}:{self.port}").encode()

    @property
    def url(self) -> str:
        """The origin as a URL."""
        return f"{self.scheme}://{self.authority.decode()}"

    @property
    def origin(self) -> str:
        """Where it is, as an operator writes it. There is no password in it: none is accepted."""
        return self.url if self.uds is None else f"unix://{self.uds}"


def parse(text: str) -> Target:
    """The target that an operator's URL names.

    Raises:
        ValueError: With a text that says what is wrong and never repeats the URL: it may hold a
            password.
    """
    # urlsplit drops tabs and line ends without a word; what it would not see is refused here.
    if not text.isascii() or any(character <= " " or character == "\x7f" for character in text):
        raise ValueError(f"contains spaces, control or non-ASCII characters; {_EXPECTED}")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(f"is not a URL; {_EXPECTED}") from None
    if "?" in text or "#" in text:
        raise ValueError(f"must not have a query or a fragment; {_EXPECTED}")
    match parts.scheme:
        case "http" | "https" as scheme:
            return _parse_tcp(scheme, parts)
        case "unix":
            return _parse_unix(parts)
    raise ValueError(f"has a scheme that is not served; {_EXPECTED}")


def _parse_tcp(scheme: Literal["http", "https"], parts: SplitResult) -> Target:
    if "@" in parts.netloc:
        raise ValueError("must not have a user or password; use PROXY_UPSTREAM_API_KEY")
    if parts.path not in ("", "/"):
        raise ValueError(
            "must not have a path: the endpoints' own paths (/v1/…) are asked for; "
            "leave away the /v1 at its end"
        )
    try:
        port = parts.port if parts.port is not None else _DEFAULT_PORTS[scheme]
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("has a port that is not a number from 1 to 65535")
    return Target(scheme, _host(parts), port)


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if parts.netloc.startswith("["):
        try:
            address = IPv6Address(host)
        except ValueError:
            raise ValueError("has a host in brackets that is not an IPv6 address") from None
        if address.scope_id is not None:
            # A zone is a matter of this machine, and has no place in a Host field (RFC 6874).
            raise ValueError("must not have an IPv6 zone")
        return str(address)
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"has no valid host; {_EXPECTED}")
    return host


def _parse_unix(parts: SplitResult) -> Target:
    if parts.netloc:
        raise ValueError("needs three slashes and an absolute path: unix:///PATH/OF/THE.SOCKET")
    if parts.path.endswith("/") or not parts.path.startswith("/"):
        raise ValueError("must name the socket's file: unix:///PATH/OF/THE.SOCKET")
    if len(parts.path) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"has a path of over {_MAX_SOCKET_PATH_BYTES} bytes, which no socket has")
    return Target("http", "localhost", 80, uds=parts.path)
