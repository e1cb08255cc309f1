"""How many bytes of request bodies may be held at once, over all requests and by one account.

Without the first bound, the number of connections times the cap on one body is what a few clients can
make this process hold. Without the second, one of them is enough to keep all others out: bodies that
stop short are held until their time is over, and those of requests that wait, as long as these do.
"""

from types import TracebackType
from typing import Self

from proxy.admission.strangers import is_stranger
from proxy.errors import Overloaded, RateLimitExceeded

RETRY_AFTER_SECONDS = 5

_ALL_STRANGERS = ""


class _Account:
    """What one account has here. It exists while it has anything."""

    __slots__ = ("bytes", "leases", "receiving")

    def __init__(self) -> None:
        self.bytes = 0
        self.leases = 0
        self.receiving = 0


class BufferBudget:
    """A number of bytes, leased by requests.

    Args:
        max_bytes: The bound over all leases.
        account_bytes: Over those of one account; None: all.
        strangers_bytes: Over those of all who have no key, whatever their addresses; None: all.
        stranger_bytes: Over those of one of these; None: as any account.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        account_bytes: int | None = None,
        strangers_bytes: int | None = None,
        stranger_bytes: int | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._leased_bytes = 0
        self._accounts: dict[str, _Account] = {}
        self.share_out(account_bytes, strangers_bytes, stranger_bytes)

    @property
    def leased_bytes(self) -> int:
        """How much is held now."""
        return self._leased_bytes

    @property
    def accounts(self) -> int:
        """How many accounts are known because they hold something."""
        return len(self._accounts)

    def share_out(
        self,
        account_bytes: int | None,
        strangers_bytes: int | None,
        stranger_bytes: int | None = None,
    ) -> None:
        """So much for each from now on; whoever has more keeps it."""
        self._account_bytes = self._max_bytes if account_bytes is None else account_bytes
        self._strangers_bytes = self._max_bytes if strangers_bytes is None else strangers_bytes
        self._stranger_bytes = self._account_bytes if stranger_bytes is None else stranger_bytes

    def lease(self, account: str, receiving: int | None = None) -> "Lease":
        """A lease of nothing yet. What it has grown to is given back when its block ends.

        Args:
            account: Whose it is.
            receiving: How many bodies of this account may be on their way at once; None: any number.
        """
        return Lease(self, account, receiving)

    def _enter(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account()
        account.leases += 1
        return account

    def _leave(self, name: str, account: _Account, size: int) -> None:
        account.bytes -= size
        account.leases -= 1
        if not account.leases:
            del self._accounts[name]

    def _take(self, own: _Account, strangers: _Account | None, size: int) -> None:
        if self._leased_bytes + size > self._max_bytes:
            raise Overloaded(
                f"This server holds as many bytes of requests as it may: {self._max_bytes:,} "
                "(PROXY_MAX_BUFFERED_BYTES). Try again soon.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        bound = self._account_bytes if strangers is None else self._stranger_bytes
        if own.bytes + size > bound:
            raise self._too_many("Your requests hold", bound)
        if strangers is not None:
            if strangers.bytes + size > self._strangers_bytes:
                raise self._too_many("Requests without a key hold", self._strangers_bytes)
            strangers.bytes += size
        own.bytes += size
        self._leased_bytes += size

    def _too_many(self, who: str, bound: int) -> RateLimitExceeded:
        return RateLimitExceeded(
            f"{who} as many bytes as they may together: {bound:,} of {self._max_bytes:,} "
            "(PROXY_MAX_BUFFERED_BYTES). Try again when some have been answered.",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )


class Lease:
    """What one request holds. A context manager; it is nothing outside its block."""

    __slots__ = (
        "_account",
        "_budget",
        "_is_receiving",
        "_own",
        "_receiving",
        "_size",
        "_strangers",
    )

    def __init__(self, budget: BufferBudget, account: str, receiving: int | None) -> None:
        self._budget = budget
        self._account = account
        self._receiving = receiving
        self._is_receiving = False
        self._own: _Account
        # Of a stranger, all of them: it counts for these, too.
        self._strangers: _Account | None = None
        self._size = 0

    def begin(self) -> None:
        """The body is on its way now, until ``end`` or the end of the block.

        Raises:
            RateLimitExceeded: As many of the account's are as may be.
        """
        own = self._own
        if self._receiving is not None and own.receiving >= self._receiving:
            requests = "request" if self._receiving == 1 else "requests"
            raise RateLimitExceeded(
                f"You may have {self._receiving:,} {requests} at once, and as many are being sent. "
                "Try again when one has ended.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        own.receiving += 1
        self._is_receiving = True

    def end(self) -> None:
        """The body is whole."""
        if self._is_receiving:
            self._own.receiving -= 1
            self._is_receiving = False

    def grow(self, size: int) -> None:
        """Takes that many bytes more.

        Raises:
            Overloaded: They are not to be had; the lease is as large as it was.
            RateLimitExceeded: The account may not have them.
        """
        self._budget._take(self._own, self._strangers, size)  # noqa: SLF001 - the two are one thing in two parts
        self._size += size

    def __enter__(self) -> Self:
        self._own = self._budget._enter(self._account)  # noqa: SLF001 - see grow
        if is_stranger(self._account):
            self._strangers = self._budget._enter(_ALL_STRANGERS)  # noqa: SLF001 - see grow
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_receiving:
            self.end()
        budget, size = self._budget, self._size
        self._size = 0
        budget._leased_bytes -= size  # noqa: SLF001 - see grow
        budget._leave(self._account, self._own, size)  # noqa: SLF001 - see grow
        if self._strangers is not None:
            budget._leave(_ALL_STRANGERS, self._strangers, size)  # noqa: SLF001 - see grow
