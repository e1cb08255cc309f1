"""What has come and was not read: a process that is late must not take it for nothing.

One that was stopped, or had no processor, has its timers called before it reads. A head that came in
time would be refused, and a request on a connection that was kept answered by a reset.
"""

import asyncio
import select

TURNS_TO_READ = 3
"""In how many turns of the loop what lies there is read: in the first it may only be about to look."""


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether something has come, or the end, that the loop has not read."""
    if transport.is_closing():
        return False
    # Not select.select, which ends at descriptor 1023.
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
