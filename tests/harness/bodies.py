"""Bodies that the case bank sends, in the spelling that its cases give."""

import json


def chat(**fields: object) -> bytes:
    """The smallest chat, without a bound on its output, and with these fields behind it."""
    messages = [{"role": "user", "content": "hi"}]
    return compact({"model": "m", "messages": messages, **fields})


def compact(body: object) -> bytes:
    """As clients write JSON: no spaces, no escapes that are not needed."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
