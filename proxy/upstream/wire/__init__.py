"""HTTP/1.1 towards an engine, as bytes: what is sent, and what is understood of the answer.

Nothing here knows a socket, a clock or a task. An engine is trusted with prompts but not with our
framing: one response that is taken for complete and is not, or one byte too many on a connection that
is used again, gives one client what is another's. So whatever has two readings is refused.
"""

from proxy.upstream.wire.head import Head
from proxy.upstream.wire.limits import ResponseLimits, WireError
from proxy.upstream.wire.reader import ResponseReader
from proxy.upstream.wire.request import serialise

__all__ = ["Head", "ResponseLimits", "ResponseReader", "WireError", "serialise"]
