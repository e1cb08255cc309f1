"""An ``httpx.Response`` out of what was read, without httpx's second look at it."""

from collections.abc import Iterable

import httpx

_NO_FIELDS = httpx.Headers()


def fields_of(pairs: Iterable[tuple[bytes, bytes]]) -> httpx.Headers:
    """What ``httpx.Headers`` makes of these pairs.

    That would look at each name and each value for whether they are text, and make each name lower: a
    third of what a response costs. ``tests/unit/test_answering.py`` holds the two to be the same.

    Args:
        pairs: Names in lower case and values, all of them bytes.
    """
    # Of nothing it would ask twice what else it is, by an ABC; of its own kind it knows.
    fields = httpx.Headers(_NO_FIELDS)
    fields._list = [(name, name, value) for name, value in pairs]  # noqa: SLF001 - a test holds it
    return fields


Fields = fields_of
"""Its other name."""


class Answer(httpx.Response):
    """One that closes in one step: nothing that it waits for can fail in httpx's words."""

    async def aclose(self) -> None:
        """Closes the body."""
        if not self.is_closed:
            self.is_closed = True
            await self.stream.aclose()  # type: ignore[union-attr] # a transport's is async
