"""What engines say while a request waits: before the first of anything else, nothing is generated."""

import re

# vLLM writes the first and the last of these at once, however long the request has to wait.
RESPONSE_WAITS = ("response.created", "response.queued", "response.in_progress")
PING = "ping"

_WAITS = re.compile(rb"event: ?(?:response\.(?:created|queued|in_progress)|ping)[\r\n]")


def waits(event: bytes) -> bool:
    """Whether an event that begins so tells that nothing is generated yet; it may be a long one."""
    return _WAITS.match(event) is not None
