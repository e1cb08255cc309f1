"""The books of rates in Redis or Valkey, which several proxies share."""

from collections.abc import Callable, Iterable
from hashlib import sha1
from importlib.resources import files

from proxy.admission.rates.causes import NOT_REDIS
from proxy.admission.rates.ledger import (
    CONCURRENCY_WAIT,
    LEASE_SECONDS,
    AnsweredError,
    Ask,
    Charge,
    Decision,
    LinkError,
)
from proxy.admission.rates.link import Link
from proxy.admission.rates.opening import connector
from proxy.admission.rates.window import TICKS_PER_SECOND, Meter, Reading, ticks

_GRANTED = -1


class SharedBooks:
    """The same books as ``MemoryBooks``, in Redis.

    Each account's keys carry its name in braces, so that a cluster keeps them in one place, where
    one script may touch them all.

    Args:
        link: The way to Redis.
        clock: Seconds, in place of the server's own time: tests only.
    """

    def __init__(self, link: Link, *, clock: Callable[[], float] | None = None) -> None:
        self._link = link
        self._clock = clock
        self._script = files("proxy.admission.rates").joinpath("rates.lua").read_bytes()
        # By this name Redis knows the script. It protects nothing.
        self._name = sha1(self._script, usedforsecurity=False).hexdigest()

    async def take(self, account: str, ask: Ask, lease: str) -> Decision:
        """As ``MemoryBooks.take``; `lease` names the request where concurrency is limited.

        Raises:
            LinkError: Redis does not say. It may have charged all the same.
        """
        keys = _counters(account, ask.meters)
        told: list[object] = [ask.amount, len(ask.meters)]
        for meter, limit in zip(ask.meters, ask.limits, strict=True):
            told += (meter.length, limit)
        if ask.concurrency is not None:
            keys.append(_leases(account))
            told += (ask.concurrency, LEASE_SECONDS * TICKS_PER_SECOND, lease)
        answer = await self._call("take", keys, told)
        return read_decision(answer, ask)

    async def settle(self, charge: Charge, used: int) -> None:
        """As ``MemoryBooks.settle``.

        Raises:
            LinkError: Redis does not say. It may have settled all the same.
        """
        keys = _counters(charge.account, charge.meters)
        told: list[object] = [used - charge.amount, len(charge.meters)]
        for meter, window in zip(charge.meters, charge.windows, strict=True):
            told += (meter.length, window)
        if charge.lease:
            keys.append(_leases(charge.account))
            told.append(charge.lease)
        await self._call("settle", keys, told)

    async def renew(self, account: str, leases: Iterable[str]) -> None:
        """Has these leases of an account last from now, whether Redis knows them or not.

        Raises:
            LinkError: Redis does not say.
        """
        await self._call("renew", [_leases(account)], [LEASE_SECONDS * TICKS_PER_SECOND, *leases])

    async def probe(self, seconds: float | None = None) -> None:
        """Returns if Redis would do what it is asked.

        Args:
            seconds: How long it may take, in place of the link's budget.

        Raises:
            LinkError: It would not.
        """
        await self._call("probe", ["bulwark:probe"], [], seconds)

    async def aclose(self) -> None:
        """Ends the connection."""
        await self._link.aclose()

    async def _call(
        self, verb: str, keys: list[str], told: list[object], seconds: float | None = None
    ) -> bytes:
        now = "" if self._clock is None else str(ticks(self._clock()))
        rest = (str(len(keys)), *keys, verb, now, *map(str, told))
        due = self._link.due(seconds)
        try:
            return await self._link.ask("EVALSHA", self._name, *rest, due=due)
        except AnsweredError as exc:
            if exc.code != "NOSCRIPT":
                raise
        return await self._link.ask("EVAL", self._script, *rest, due=due)


def connect(url: str) -> SharedBooks:
    """The books at this URL; nobody connects before they are asked.

    Raises:
        ValueError: It is no URL of Redis.
    """
    return SharedBooks(Link(connector(url)))


def _counters(account: str, meters: tuple[Meter, ...]) -> list[str]:
    return [f"bulwark:{{{account}}}:{meter.name}" for meter in meters]


def _leases(account: str) -> str:
    return f"bulwark:{{{account}}}:leases"


def read_decision(answer: bytes, ask: Ask) -> Decision:
    """What the script says to this.

    Raises:
        LinkError: It would never say that.
    """
    count = len(ask.meters)
    try:
        refused_by, wait, *rest = map(int, answer.split())
        told = list(zip(rest[0::3], rest[1::3], rest[2::3], strict=True))
    except ValueError:
        refused_by, wait, told = 0, 0, []
    granted = refused_by == _GRANTED
    longest = max((2 * meter.length for meter in ask.meters), default=CONCURRENCY_WAIT)
    if (
        len(told) != count
        or not _GRANTED <= refused_by < count + (ask.concurrency is not None)
        or not (wait == 0 if granted else 0 < wait <= longest)
    ):
        raise LinkError(NOT_REDIS)
    readings = []
    for meter, limit, (window, remaining, reset) in zip(ask.meters, ask.limits, told, strict=True):
        if window < 0 or not 0 <= remaining <= limit or not 0 <= reset <= 2 * meter.length:
            raise LinkError(NOT_REDIS)
        readings.append(Reading(window, remaining, reset))
    return Decision(None if granted else refused_by, wait, readings)
