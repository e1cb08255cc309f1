"""Which web pages may read what is answered here (the Fetch standard, "CORS protocol").

A browser hides every answer from a page of another origin, refusals too, unless the answer names that
origin. It says nothing about who may ask: whoever has no browser sends what he likes. So this decides
for each answer, whoever writes it, and lets nobody in.
"""

from collections.abc import Iterable

from proxy.errors import RawHeaders

_METHODS = b"GET, POST"
_REMEMBERED_SECONDS = b"600"

# What a script may see of an answer's head, besides what the standard lets it.
_EXPOSED = (
    "X-Request-Id",
    "Request-Id",
    "X-Bulwark-Clamped",
    "Retry-After",
    "X-Should-Retry",
    *(
        f"X-Ratelimit-{what}-{of}"
        for of in ("Requests", "Tokens")
        for what in ("Limit", "Remaining", "Reset")
    ),
)

# A cache must not give one page's answer to another; in the answers that name no page, too.
_VARY = (b"vary", b"Origin")


class Cors:
    """The pages that may read.

    Args:
        origins: Theirs, as browsers write them; none writes no field at all.
        relayed: More names of fields that scripts may see.
    """

    def __init__(self, origins: Iterable[str] = (), *, relayed: Iterable[str] = ()) -> None:
        exposed = (b"access-control-expose-headers", ", ".join((*_EXPOSED, *relayed)).encode())
        self._by_origin: dict[bytes, RawHeaders] = {
            origin: ((b"access-control-allow-origin", origin), exposed, _VARY)
            for origin in (each.encode() for each in origins)
        }
        self._others: RawHeaders = (_VARY,) if self._by_origin else ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._by_origin)

    def fields(self, request: RawHeaders) -> RawHeaders:
        """What every answer to a request has, be it a refusal.

        Args:
            request: Its fields, or those of them that have come; names in any case.
        """
        return self._by_origin.get(_only(request, b"origin"), self._others)

    def preflight(self, request: RawHeaders) -> RawHeaders | None:
        """What the answer to an OPTIONS has besides; None where it is no preflight of such a page.

        Args:
            request: Its fields.
        """
        if _only(request, b"origin") not in self._by_origin:
            return None
        if not _only(request, b"access-control-request-method"):
            return None
        fields = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", _REMEMBERED_SECONDS),
        ]
        # Any of them: which cross is the allow-list's to say, and a `*` would not mean Authorization.
        if asked := _only(request, b"access-control-request-headers"):
            fields.append((b"access-control-allow-headers", asked))
        return fields


def _only(request: RawHeaders, name: bytes) -> bytes:
    """The value of a field that occurs once; nothing where it does not."""
    values = [value for each, value in request if each.lower() == name]
    return values[0].strip(b" \t") if len(values) == 1 else b""
