"""A test that hangs fails where it does, with its line, and the others run.

A conftest that wants that imports the hook::

    from tests.harness.hanging import pytest_runtest_call  # noqa: F401

``@pytest.mark.within(seconds)`` gives a test, or a folder's, another bound. What blocks the loop
itself, or hangs in a fixture, is left to pytest's ``faulthandler_timeout``, which ends the run.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

SECONDS = 60.0
"""How long a test may take that is not marked; none takes half of it."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Puts the bound around the test, before the plugin that runs coroutines sees it."""
    test = getattr(item, "obj", None)
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(test):
        mark = item.get_closest_marker("within")
        item.obj = bounded(test, mark.args[0] if mark is not None else SECONDS)


def bounded(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    """The test again; it is cancelled where it is when the time is up.

    Raises:
        TimeoutError: It was. Its cause shows the line.
    """

    @functools.wraps(test)
    async def within(*args: Any, **kwargs: Any) -> None:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await test(*args, **kwargs)
        except TimeoutError as exc:
            if limit.expired():
                exc.add_note(f"The test hung: it had not ended after {seconds:g} s.")
            raise

    return within
