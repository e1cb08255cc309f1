"""An ``httpx.Response`` out of what was read, without httpx's second look at it."""

from collections.abc import Iterable

import httpx


class Fields(httpx.Headers):
    """As ``httpx.Headers`` of the same pairs, to which it says nothing new.

    It would look at each name and each value for whether they are text, and make each name lower: a
    third of what a response costs. ``tests/unit/test_answering.py`` holds the two to be the same.

    Args:
        pairs: Names in lower case and values, all of them bytes.
    """

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._list = [(name, name, value) for name, value in pairs]


class Answer(httpx.Response):
    """One that closes in one step: nothing that it waits for can fail in httpx's words."""

    async def aclose(self) -> None:
        """Closes the body."""
        if not self.is_closed:
            self.is_closed = True
            await self.stream.aclose()  # type: ignore[union-attr] # a transport's is async
