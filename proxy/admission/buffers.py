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

    def _enter(self, name: str) -> list[_Account]:
        """Everybody for whom this lease counts: the account and, of a stranger, all strangers."""
        names = (name, _ALL_STRANGERS) if is_stranger(name) else (name,)
        accounts = [self._accounts.setdefault(name, _Account()) for name in names]
        for account in accounts:
            account.leases += 1
        return accounts

    def _leave(self, name: str, accounts: list[_Account], size: int) -> None:
        self._leased_bytes -= size
        for account, known in zip(accounts, (name, _ALL_STRANGERS), strict=False):
            account.bytes -= size
            account.leases -= 1
            if not account.leases:
                del self._accounts[known]

    def _take(self, accounts: list[_Account], size: int) -> None:
        if self._leased_bytes + size > self._max_bytes:
            raise Overloaded(
                f"This server holds as many bytes of requests as it may: {self._max_bytes:,} "
                "(PROXY_MAX_BUFFERED_BYTES). Try again soon.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        is_strangers = len(accounts) > 1
        own = self._stranger_bytes if is_strangers else self._account_bytes
        bounds = (own, self._strangers_bytes)
        whose = ("Your requests hold", "Requests without a key hold")
        for account, bound, who in zip(accounts, bounds, whose, strict=False):
            if account.bytes + size > bound:
                raise RateLimitExceeded(
                    f"{who} as many bytes as they may together: {bound:,} of {self._max_bytes:,} "
                    "(PROXY_MAX_BUFFERED_BYTES). Try again when some have been answered.",
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                )
        self._leased_bytes += size
        for account in accounts:
            account.bytes += size


class Lease:
    """What one request holds. A context manager; it is nothing outside its block."""

    __slots__ = ("_account", "_accounts", "_budget", "_is_receiving", "_receiving", "_size")

    def __init__(self, budget: BufferBudget, account: str, receiving: int | None) -> None:
        self._budget = budget
        self._account = account
        self._receiving = receiving
        self._is_receiving = False
        self._accounts: list[_Account] = []
        self._size = 0

    def begin(self) -> None:
        """The body is on its way now, until ``end`` or the end of the block.

        Raises:
            RateLimitExceeded: As many of the account's are as may be.
        """
        own = self._accounts[0]
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
            self._accounts[0].receiving -= 1
            self._is_receiving = False

    def grow(self, size: int) -> None:
        """Takes that many bytes more.

        Raises:
            Overloaded: They are not to be had; the lease is as large as it was.
            RateLimitExceeded: The account may not have them.
        """
        self._budget._take(self._accounts, size)  # noqa: SLF001 - the two are one thing in two parts
        self._size += size

    def __enter__(self) -> Self:
        self._accounts = self._budget._enter(self._account)  # noqa: SLF001 - see grow
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
        size, self._size = self._size, 0
        self._budget._leave(self._account, self._accounts, size)  # noqa: SLF001 - see grow
