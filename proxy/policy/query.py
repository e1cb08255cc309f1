"""The query string: it goes along as received, unless it is long or carries a key.

A key in a query string ends up in histories, Referer headers and access logs, so it is refused even
when it would be valid; the message never repeats it.
"""

import re
from urllib.parse import unquote_to_bytes

from proxy.errors import KeyInQuery, TargetTooLong

MAX_QUERY_BYTES = 2_048

_KEY_NAMES = frozenset({b"key", b"api_key", b"api-key", b"apikey", b"access_token", b"token"})

# A key anywhere in a value, but not the end of a longer word ("task-7").
_KEY = re.compile(rb"(?<![A-Za-z0-9])sk-")


def check_query(query: bytes) -> None:
    """Lets a raw query string pass, or says why not.

    Raises:
        TargetTooLong: More than 2 KiB.
        KeyInQuery: A key, or a parameter whose name says that its value is one.
    """
    if not query:
        return
    if len(query) > MAX_QUERY_BYTES:
        raise TargetTooLong(
            f"The query string is {len(query):,} bytes long; the limit is {MAX_QUERY_BYTES:,}."
        )
    if carries_key(query):
        raise KeyInQuery(
            "Do not send an API key in the query string: use the header "
            "'Authorization: Bearer KEY'. If that was a real key, replace it."
        )


def carries_key(query: bytes) -> bool:
    """Whether a raw query string of 2 KiB at most has a key in it, or the name of one."""
    decoded = query
    # Encoded twice is encoded still for us, but perhaps not for a log reader.
    for _ in range(3):
        names = (pair.partition(b"=")[0] for pair in re.split(rb"[&;?]", decoded))
        if _KEY.search(decoded) or any(name.strip(b" +").lower() in _KEY_NAMES for name in names):
            return True
        previous, decoded = decoded, unquote_to_bytes(decoded)
        if decoded == previous:
            break
    return False
