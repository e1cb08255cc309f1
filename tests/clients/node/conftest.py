"""What the tests of the JavaScript clients have in common: a program to a module."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness import javascript
from tests.harness.javascript import Program

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
async def scenes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Program]:
    """The program that a module names as its ``PROGRAM``, running."""
    source = HERE / request.module.PROGRAM
    async with javascript.program(source, tmp_path_factory.mktemp("program")) as program:
        yield program
