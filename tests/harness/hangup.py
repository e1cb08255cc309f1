"""What must follow when a client leaves: the one measure that every client is held to."""

import time

from tests.harness.figures import Figures
from tests.harness.running import Running


async def stops_the_model(running: Running, figures: Figures, client: str) -> None:
    """Within a second of now the one upstream connection is closed, and the line says why."""
    left = time.monotonic()
    await running.upstream.connection_closed(0, within=1.0)
    figures.add("A hang-up reaches the engine", client, ms=1000 * (time.monotonic() - left))
    await running.idle()
    assert running.log.requests()[-1]["outcome"] == "client_disconnected"
