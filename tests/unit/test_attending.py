"""What runs beside the requests: it begins, it fails by itself, and it has ended when that is said."""

import asyncio
import io
import json
from datetime import UTC, datetime

from proxy.app.attending import Attending
from proxy.telemetry.log import Log


async def test_the_end_waits_for_what_they_do_last() -> None:
    """What they have open may be closed after that, and not before."""
    said: list[str] = []
    begun = asyncio.Event()

    async def attend() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            said.append("its last word")

    stream = io.BytesIO()
    beside = Attending([attend], Log(stream, form="json", level="info", now=_now))
    beside.begin()
    await begun.wait()
    await beside.end()
    assert (said, stream.getvalue()) == (["its last word"], b"")


async def test_a_bug_in_one_of_them() -> None:
    """Is told without what it says, and ends no other."""
    ran = asyncio.Event()

    async def fails() -> None:
        raise KeyError("canary")

    async def goes_on() -> None:
        await asyncio.sleep(0)
        ran.set()

    stream = io.BytesIO()
    beside = Attending([fails, goes_on], Log(stream, form="json", level="info", now=_now))
    beside.begin()
    await ran.wait()
    await beside.end()
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["fault"]) == ("failed", "error", "KeyError")
    assert line["part"].endswith("fails")
    assert b"canary" not in stream.getvalue()


async def test_the_end_of_what_has_not_begun() -> None:
    """A server that could not start has none of them."""
    await Attending([], Log(io.BytesIO(), form="json", level="info", now=_now)).end()


def _now() -> datetime:
    return datetime(2026, 6, 1, tzinfo=UTC)
