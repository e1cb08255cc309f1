"""Finds the one credential of a request, or says why there is not exactly one.

Two credentials are worse than none: we would check the one and somebody else might believe the
other. So anything that could be read in two ways is refused, and nothing is rescued silently.
"""

import hmac
import re

from proxy.errors import Dialect, MissingApiKey, RawHeaders

HOW = "Send it as 'Authorization: Bearer <key>'; Anthropic's routes take 'x-api-key: <key>' too."
"""The sentence that every 401 ends with."""

# RFC 9110 §11.4: the scheme in any case, one or more spaces. The key is visible ASCII without a
# comma: a comma is how a hop in front of us would have joined two fields into one.
_KEY = rb"([\x21-\x2b\x2d-\x7e]+)"
_BEARER = re.compile(rb"bearer[ \t]+" + _KEY, re.IGNORECASE)
_BARE = re.compile(_KEY)


def credential(headers: RawHeaders, dialect: Dialect) -> bytes | None:
    """The credential that a request carries; None if it carries none.

    ``x-api-key`` is one only where Anthropic's clients send it. A key in the query string never is.

    Raises:
        MissingApiKey: It is malformed, given twice, or given in two forms that disagree.
    """
    bearer = _field(headers, b"authorization", _BEARER)
    if dialect is not Dialect.ANTHROPIC:
        return bearer
    api_key = _field(headers, b"x-api-key", _BARE)
    if bearer is None or api_key is None:
        return bearer or api_key
    if not hmac.compare_digest(bearer, api_key):
        raise MissingApiKey(f"Authorization and x-api-key carry two different API keys. {HOW}")
    return bearer


def _field(headers: RawHeaders, name: bytes, form: re.Pattern[bytes]) -> bytes | None:
    """The key in the one field of this name; None without the field."""
    values = [value for field, value in headers if field == name]
    if not values:
        return None
    if len(values) > 1:
        raise MissingApiKey(f"There is more than one {name.decode()} field. {HOW}")
    match = form.fullmatch(values[0].strip(b" \t"))
    if match is None:
        raise MissingApiKey(f"The {name.decode()} field does not hold an API key. {HOW}")
    return match[1]
