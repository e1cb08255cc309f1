"""Keys: how they are made, kept and compared.

A key is 256 random bits, so its plain SHA-256 says nothing about it and a slow hash would buy
nothing. The store keeps digests only, compares them in constant time, and does the same work for
an id that it has as for one that it has not. A key's public id is the only part of it that may
appear in a log, and only once the whole key was found to be right.
"""

import base64
import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from proxy.auth import keycaps
from proxy.auth.credentials import HOW
from proxy.auth.keylives import KeyLives
from proxy.errors import InvalidApiKey, MissingApiKey
from proxy.principal import ANONYMOUS, Allowance, Principal

_PREFIX = "sk-bw-"
_ID_CHARS = 8
_ID = re.compile(r"[a-z0-9]{8}")
_KEY = re.compile(rb"sk-bw-([a-z0-9]{8})-[A-Za-z0-9_-]{43}")

_NOTHING_OF_ITS_OWN = Allowance()


def generate(taken: Container[str] = ()) -> str:
    """A fresh key: ``sk-bw-``, a public id of 8 characters, ``-``, a secret of 256 random bits.

    Args:
        taken: Ids that it must not have. Of 10,000 random ones two are alike once in 20,000 files.
    """
    while (public_id := base64.b32encode(secrets.token_bytes(5)).decode().lower()) in taken:
        pass
    return f"{_PREFIX}{public_id}-{secrets.token_urlsafe(32)}"


def public_id(key: str) -> str:
    """The id of a key that ``generate`` made."""
    return key[len(_PREFIX) :][:_ID_CHARS]


def is_public_id(text: str) -> bool:
    """Whether a text has the form of a key's public id."""
    return _ID.fullmatch(text) is not None


def digest(key: bytes) -> bytes:
    """What is kept of a key: the SHA-256 of the whole of it."""
    return hashlib.sha256(key).digest()


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key of the store, without the key.

    Attributes:
        key_id: Its name in logs and metrics: the public id, or ``env-1`` for the environment's.
        sha256: The digest of the whole key.
        name: What the operator calls its owner.
        expires: The moment from which it is refused.
        replaced_by: The id of the key that came in its place, if it is being rotated out.
        allowance: What it was given itself; what is in force is in its principal.
    """

    key_id: str
    sha256: bytes = field(repr=False)
    name: str = ""
    expires: datetime | None = None
    disabled: bool = False
    replaced_by: str | None = None
    allowance: Allowance = _NOTHING_OF_ITS_OWN

    def principal(self, allowance: Allowance = _NOTHING_OF_ITS_OWN) -> Principal:
        """The owner. The salt is the key's own, and tells neither the key nor its digest.

        Args:
            allowance: What is in force for it.
        """
        salt = hmac.digest(self.sha256, b"bulwark cache salt", "sha256").hex()
        return Principal(key_id=self.key_id, cache_salt=salt, allowance=allowance)

    def is_valid(self, now: datetime) -> bool:
        """Whether it may be used at this moment."""
        return not self.disabled and (self.expires is None or now < self.expires)


def environment_records(keys: Iterable[str]) -> list[KeyRecord]:
    """The keys of ``PROXY_API_KEYS``, named by position: no part of such a key is an id."""
    return [
        KeyRecord(key_id=f"env-{number}", sha256=digest(key.encode()))
        for number, key in enumerate(keys, start=1)
    ]


@dataclass(frozen=True, slots=True)
class Change:
    """How many keys of a file are other ones than before; false if none are."""

    added: int = 0
    removed: int = 0
    changed: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class _Entry:
    record: KeyRecord
    principal: Principal


# What is compared with where there is no key: no input that anybody could find has this digest, and
# if one had, it would still be of no use.
_NO_KEY = KeyRecord(key_id="", sha256=bytes(32), disabled=True)
_NOBODY = _Entry(_NO_KEY, _NO_KEY.principal())


class KeyStore:
    """The authenticator over the keys of the environment and those of the file now in force.

    Args:
        environment: Keys of any form; each request's credential is compared with all of them.
        file: Keys of our own form, found by their public id.
        allow_anonymous: Serve those who send no key; and, if the store has none at all, those who
            send one, because most clients cannot do without.
        defaults: What a key may do that was given nothing of its own.
        ceilings: What no key may exceed.
        now: The wall clock, in UTC.
    """

    def __init__(
        self,
        environment: Sequence[KeyRecord] = (),
        file: Sequence[KeyRecord] = (),
        *,
        allow_anonymous: bool = False,
        defaults: Allowance = _NOTHING_OF_ITS_OWN,
        ceilings: Allowance = _NOTHING_OF_ITS_OWN,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._defaults = defaults
        self._ceilings = ceilings
        self._now = now
        self._environment = self._entries(environment)
        self._file: dict[str, _Entry] = {}
        self._lives = KeyLives()
        self._anonymous: Principal | None = None
        if allow_anonymous:
            (nobody,) = self._entries([KeyRecord(ANONYMOUS, secrets.token_bytes(32))])
            self._anonymous = nobody.principal
        self.replace(file)

    def __len__(self) -> int:
        return len(self._environment) + len(self._file)

    @property
    def from_file(self) -> int:
        """How many of its keys are from the file."""
        return len(self._file)

    @property
    def usable(self) -> int:
        """How many of its keys may be used now; the environment's always may."""
        return len(self._environment) + self._lives.count(self._now())

    @property
    def limited_by_day(self) -> bool:
        """Whether any of its keys may use only so many tokens a day."""
        return any(
            entry.principal.allowance.tokens_per_day is not None
            for entry in (*self._environment, *self._file.values())
        )

    def capped(self) -> Iterator[str]:
        """What keys of the file were given and do not get, a sentence each; no name, no value of text."""
        for entry in self._file.values():
            yield from keycaps.capped(entry.record.key_id, entry.record.allowance, self._ceilings)

    def replace(self, file: Sequence[KeyRecord]) -> Change:
        """Puts these keys of the file in force, in place of all that were; may run in any thread."""
        old = {key_id: entry.record for key_id, entry in self._file.items()}
        new = {record.key_id: record for record in file}
        change = Change(
            added=len(new.keys() - old.keys()),
            removed=len(old.keys() - new.keys()),
            changed=sum(new[key_id] != old[key_id] for key_id in new.keys() & old.keys()),
        )
        if change:
            # Complete before it is seen: a request finds the old set or the new one.
            self._file = {entry.record.key_id: entry for entry in self._entries(file)}
            self._lives = KeyLives(record.expires for record in file if not record.disabled)
        return change

    def authenticate(self, credential: bytes | None) -> Principal:
        """The owner of this credential. See ``Authenticator``."""
        if self._anonymous is not None and (credential is None or not len(self)):
            return self._anonymous
        if credential is None:
            raise MissingApiKey(f"An API key is needed. {HOW}")
        now = self._now()
        entry = self._find(credential)
        if not entry.record.is_valid(now):
            raise InvalidApiKey
        return entry.principal

    def _entries(self, records: Iterable[KeyRecord]) -> list[_Entry]:
        # Of 10,000 keys most have the same terms.
        in_force = functools.cache(lambda own: own.within(self._defaults, self._ceilings))
        return [_Entry(record, record.principal(in_force(record.allowance))) for record in records]

    def _find(self, credential: bytes) -> _Entry:
        """The entry with this key, or that of nobody. All is compared, whichever one matches."""
        sha256 = digest(credential)
        found = self._named(credential)
        if not hmac.compare_digest(found.record.sha256, sha256):
            found = _NOBODY
        for entry in self._environment:
            if hmac.compare_digest(entry.record.sha256, sha256):
                found = entry
        return found

    def _named(self, credential: bytes) -> _Entry:
        """The entry of the public id in a credential, whose secret is still to be compared."""
        match = _KEY.fullmatch(credential)
        return self._file.get(match[1].decode(), _NOBODY) if match else _NOBODY
