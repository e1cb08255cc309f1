"""How many bytes of request bodies may be held at once, over all requests.

Without it, the number of connections times the cap on one body is what a few clients can make this
process hold.
"""

from types import TracebackType
from typing import Self

from proxy.errors import Overloaded

RETRY_AFTER_SECONDS = 5


class BufferBudget:
    """A number of bytes, leased by requests.

    Args:
        max_bytes: The bound over all leases.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._leased_bytes = 0

    @property
    def leased_bytes(self) -> int:
        """How much is held now."""
        return self._leased_bytes

    def lease(self) -> "Lease":
        """A lease of nothing yet. What it has grown to is given back when its block ends."""
        return Lease(self)

    def _take(self, size: int) -> None:
        if self._leased_bytes + size > self._max_bytes:
            raise Overloaded(
                f"This server holds as many bytes of requests as it may: {self._max_bytes:,} "
                "(PROXY_MAX_BUFFERED_BYTES). Try again soon.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._leased_bytes += size

    def _give_back(self, size: int) -> None:
        self._leased_bytes -= size


class Lease:
    """What one request holds. A context manager; growing it outside its block would leak."""

    def __init__(self, budget: BufferBudget) -> None:
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> None:
        """Takes that many bytes more.

        Raises:
            Overloaded: They are not to be had; the lease is as large as it was.
        """
        self._budget._take(size)  # noqa: SLF001 - the two are one thing in two parts
        self._size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        size, self._size = self._size, 0
        self._budget._give_back(size)  # noqa: SLF001 - see grow
