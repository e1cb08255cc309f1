"""What a request used: what the engine says of it, or where it says nothing, what could be seen.

Sans-IO. An answer passes by in chunks, cut anywhere; of a stream each event is read, of a whole body
its end is kept. Nothing in here may raise over what an engine sends, keep more of an answer than
64 KiB and one chunk, or change a byte of it besides the event that the proxy itself has asked for.
"""

from proxy.telemetry.usage.meter import UsageMeter
from proxy.telemetry.usage.said import Usage

__all__ = ["Usage", "UsageMeter"]
