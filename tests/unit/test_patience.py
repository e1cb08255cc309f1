"""Who is late: whoever is waited for, or the process that waits."""

import asyncio

import anyio
import pytest

from proxy.patience import READING_SECONDS, fail_after
from tests.harness.heldup import hold_up

SECONDS = 0.05
HELD_UP_SECONDS = 0.12


async def forever() -> None:
    """Waits for something that does not come."""
    await asyncio.get_running_loop().create_future()


async def test_nothing_comes() -> None:
    """It fails when its time is over, and not before."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError), fail_after(SECONDS):
        await forever()
    assert loop.time() - began > SECONDS / 2


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_no_time_at_all(seconds: float) -> None:
    """Time that is over before it began is over."""
    with pytest.raises(TimeoutError), fail_after(seconds):
        await forever()


@pytest.mark.parametrize("seconds", [SECONDS, None])
async def test_what_comes_in_time_is_left_alone(seconds: float | None) -> None:
    """Nothing of it ends what follows."""
    with fail_after(seconds):
        await asyncio.sleep(0)
    await asyncio.sleep(SECONDS * 1.5)


async def test_another_error_passes_through() -> None:
    """What the block raises is its own."""
    with pytest.raises(KeyError), fail_after(SECONDS):
        raise KeyError


async def test_what_comes_while_we_are_held_up() -> None:
    """It was in time, and takes its turns to be told."""
    loop = asyncio.get_running_loop()
    came = loop.create_future()

    def tell(turns: int) -> None:
        if turns:
            loop.call_soon(tell, turns - 1)
        else:
            came.set_result("it")

    with fail_after(SECONDS):
        await hold_up(HELD_UP_SECONDS, lambda: loop.call_soon(tell, 5))
        assert await came == "it"
    await asyncio.sleep(READING_SECONDS * 1.2)


async def test_nothing_comes_while_we_are_held_up() -> None:
    """Who was silent meanwhile, and still is, has the time that reading takes and no more."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError), fail_after(SECONDS):
        await asyncio.gather(hold_up(HELD_UP_SECONDS), forever())
    assert loop.time() - began > HELD_UP_SECONDS + READING_SECONDS / 2


async def test_somebody_else_ends_it() -> None:
    """That is no time-out."""
    with anyio.CancelScope() as scope:
        with fail_after(SECONDS):
            scope.cancel()
            await forever()
    assert scope.cancelled_caught
