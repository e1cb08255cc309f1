"""Keys, and the contract that every authenticator has to keep."""

import base64
import hashlib
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from proxy.auth import Authenticator, keycaps
from proxy.auth.keys import (
    Change,
    KeyRecord,
    KeyStore,
    digest,
    environment_records,
    generate,
    is_public_id,
    public_id,
)
from proxy.errors import InvalidApiKey, MissingApiKey
from proxy.principal import Allowance

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ENV_KEYS = ["x" * 32, "sk-bw-aaaaaaaa-" + "e" * 43]


def own_key(public_id: str = "k3v9x2ab", secret: str = "s" * 43) -> str:
    """A key of our own form."""
    return f"sk-bw-{public_id}-{secret}"


def record(key: str, *, expires: datetime | None = None, disabled: bool = False) -> KeyRecord:
    """What the file has of a key of our own form."""
    return KeyRecord(key[6:14], digest(key.encode()), expires=expires, disabled=disabled)


def store(*file: KeyRecord, allow_anonymous: bool = False, env: bool = True) -> KeyStore:
    """A store with two keys of the environment, unless told otherwise, and these of the file."""
    environment = environment_records(ENV_KEYS if env else [])
    return KeyStore(environment, file, allow_anonymous=allow_anonymous, now=lambda: NOW)


@pytest.mark.parametrize(
    ("file", "usable"),
    [
        pytest.param([], 2, id="those of the environment"),
        pytest.param([{}], 3, id="and one of the file"),
        pytest.param([{"disabled": True}], 2, id="not one that is disabled"),
        pytest.param([{"expires": NOW}], 2, id="nor one that expires now"),
        pytest.param([{"expires": NOW + SECOND}], 3, id="but one that will in a second"),
        pytest.param([{"expires": NOW + SECOND, "disabled": True}], 2, id="unless it is disabled"),
        pytest.param(
            [{"expires": NOW + SECOND}, {}, {"expires": NOW - SECOND}, {"disabled": True}],
            4,
            id="several of each",
        ),
    ],
)
def test_how_many_keys_may_be_used(file: list[dict[str, Any]], usable: int) -> None:
    """As many as would be let in at this moment."""
    keys = [own_key(f"abcdefg{number}") for number in range(len(file))]
    records = [record(key, **terms) for key, terms in zip(keys, file, strict=True)]
    found = store(*records)
    assert found.usable == usable
    assert len(found) == 2 + len(file)


def test_a_generated_key_has_the_documented_form() -> None:
    """sk-bw-, an id of 8, a dash, 43 characters of secret; no two alike."""
    keys = {generate() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert key[:6] == "sk-bw-"
        assert is_public_id(key[6:14])
        assert key[14] == "-"
        assert len(key) == 58
        assert KeyStore([], [record(key)]).authenticate(key.encode()).key_id == key[6:14]


def test_a_generated_key_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance may give it one that is taken; then it gets another."""
    drawn = [b"aaaaa", b"bbbbb", b"ccccc", b"s" * 32]
    first, second, third = (base64.b32encode(each).decode().lower() for each in drawn[:3])
    monkeypatch.setattr(secrets, "token_bytes", lambda size: drawn.pop(0))
    assert public_id(generate({first, second})) == third


def test_the_digest_is_the_sha256_of_the_whole_key() -> None:
    """Anybody can make one with sha256sum."""
    assert digest(b"abc") == hashlib.sha256(b"abc").digest()


@pytest.mark.parametrize(
    ("key", "key_id"),
    [
        pytest.param(ENV_KEYS[0], "env-1", id="the first key of the environment"),
        pytest.param(ENV_KEYS[1], "env-2", id="one of our own form in the environment is no id"),
        pytest.param(own_key(), "k3v9x2ab", id="a key of the file, by its public id"),
    ],
)
def test_a_known_key_has_an_owner(key: str, key_id: str) -> None:
    """A valid key is authenticated under its public name."""
    authenticator: Authenticator = store(record(own_key()))
    assert authenticator.authenticate(key.encode()).key_id == key_id


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("y" * 32, id="unknown"),
        pytest.param("x" * 31, id="a prefix of a key"),
        pytest.param("x" * 33, id="a key and one more character"),
        pytest.param("X" * 32, id="a key in another case"),
        pytest.param(own_key(secret="t" * 43), id="a known id with another secret"),
        pytest.param(own_key(public_id="zzzzzzzz"), id="an unknown id"),
        pytest.param(own_key() + "\n", id="a key with a line break"),
        pytest.param("sk-bw-k3v9x2ab-", id="an id alone"),
        pytest.param("k3v9x2ab", id="a public id for a key"),
        pytest.param("env-1", id="the name of a key for a key"),
        pytest.param(digest(own_key().encode()).hex(), id="the digest for the key"),
    ],
)
def test_any_other_key_is_invalid(key: str) -> None:
    """Everything that is not exactly a key of the store is refused alike."""
    with pytest.raises(InvalidApiKey):
        store(record(own_key())).authenticate(key.encode())


@pytest.mark.parametrize(
    ("limits", "valid"),
    [
        pytest.param({"expires": NOW + SECOND}, True, id="one that expires in a second"),
        pytest.param({"expires": NOW}, False, id="one that expires now"),
        pytest.param({"expires": NOW - SECOND}, False, id="an expired one"),
        pytest.param({"disabled": True}, False, id="a disabled one"),
        pytest.param({"disabled": False}, True, id="an enabled one"),
    ],
)
def test_expired_and_disabled_keys(limits: dict[str, object], valid: bool) -> None:
    """They are refused, and in the same words as an unknown key."""
    limited = store(record(own_key(), **limits))  # type: ignore[arg-type]
    if valid:
        assert limited.authenticate(own_key().encode()).key_id == "k3v9x2ab"
        return
    with pytest.raises(InvalidApiKey) as refused:
        limited.authenticate(own_key().encode())
    with pytest.raises(InvalidApiKey) as unknown:
        limited.authenticate(b"?")
    assert refused.value.message == unknown.value.message


def test_no_credential_is_missing_not_invalid() -> None:
    """Without a key the refusal says how to send one."""
    with pytest.raises(MissingApiKey, match="Authorization: Bearer <key>"):
        store().authenticate(None)


def test_an_empty_store_lets_nobody_in() -> None:
    """No keys is not the same as no need for keys."""
    empty = store(env=False)
    assert len(empty) == 0
    with pytest.raises(MissingApiKey):
        empty.authenticate(None)
    with pytest.raises(InvalidApiKey):
        empty.authenticate(b"\0" * 32)


def test_anonymous_access_has_to_be_allowed() -> None:
    """Then nobody needs a key; and where there are none, any key that a client sends will do."""
    anonymous = store(env=False, allow_anonymous=True)
    assert anonymous.authenticate(None).key_id == "anonymous"
    assert anonymous.authenticate(b"sk-dummy").key_id == "anonymous"


def test_anonymous_access_does_not_rescue_a_wrong_key() -> None:
    """Where there are keys, a mistyped one is refused rather than served under another name."""
    both = store(allow_anonymous=True)
    assert both.authenticate(None).key_id == "anonymous"
    assert both.authenticate(ENV_KEYS[0].encode()).key_id == "env-1"
    with pytest.raises(InvalidApiKey):
        both.authenticate(b"sk-dummy")


def test_each_key_has_a_salt_of_its_own() -> None:
    """Salts differ between keys, last over restarts, and say nothing of key or digest."""
    keys = [*ENV_KEYS, own_key()]
    salts = [store(record(own_key())).authenticate(key.encode()).cache_salt for key in keys]
    again = [store(record(own_key())).authenticate(key.encode()).cache_salt for key in keys]
    assert salts == again
    assert len(set(salts)) == len(keys)
    assert not {digest(key.encode()).hex() for key in keys} & set(salts)


def test_records_do_not_show_their_digest() -> None:
    """A record in a log or a traceback gives away no digest."""
    assert digest(own_key().encode()).hex()[:8] not in repr(record(own_key()))
    assert repr(digest(own_key().encode())) not in repr(record(own_key()))


def test_other_keys_of_the_file_come_in_place_of_those_there_were() -> None:
    """The environment's stay; and whoever was let in keeps what he was given."""
    alice, bob = own_key("aliceali"), own_key("bobbobbo")
    changing = store(record(alice))
    before = changing.authenticate(alice.encode())
    assert changing.replace([record(bob)]) == Change(added=1, removed=1)
    assert changing.authenticate(bob.encode()).key_id == "bobbobbo"
    assert changing.authenticate(ENV_KEYS[0].encode()).key_id == "env-1"
    with pytest.raises(InvalidApiKey):
        changing.authenticate(alice.encode())
    assert before.key_id == "aliceali"
    assert (len(changing), changing.from_file) == (3, 1)


def test_the_same_keys_again_change_nothing() -> None:
    """Other terms of the same key do."""
    key = own_key()
    changing = store(record(key))
    assert not changing.replace([record(key)])
    assert changing.replace([record(key, disabled=True)])
    assert changing.replace([])
    assert not changing.replace([])


DEFAULTS = Allowance(requests_per_minute=60, concurrency=4)
CEILINGS = Allowance(max_output_tokens=8192, models=frozenset({"small", "large"}))


@pytest.mark.parametrize(
    ("own", "in_force"),
    [
        pytest.param(Allowance(), {"requests_per_minute": 60}, id="nothing of its own"),
        pytest.param(
            Allowance(requests_per_minute=600), {"requests_per_minute": 600}, id="more of its own"
        ),
        pytest.param(
            Allowance(max_output_tokens=8192), {"max_output_tokens": 8192}, id="up to the ceiling"
        ),
        pytest.param(
            Allowance(max_output_tokens=8193), {"max_output_tokens": 8192}, id="over the ceiling"
        ),
        pytest.param(
            Allowance(models=frozenset({"small", "other"})),
            {"models": frozenset({"small"})},
            id="a model that nobody has",
        ),
        pytest.param(Allowance(), {"models": CEILINGS.models}, id="the models of everybody"),
    ],
)
def test_what_is_in_force_for_a_key(own: Allowance, in_force: dict[str, object]) -> None:
    """Its own, else the default, up to the ceiling; for keys that were there and for new ones."""
    given = KeyRecord("k3v9x2ab", digest(own_key().encode()), allowance=own)
    for keys in (
        KeyStore([], [given], defaults=DEFAULTS, ceilings=CEILINGS),
        KeyStore([], [], defaults=DEFAULTS, ceilings=CEILINGS),
    ):
        keys.replace([given])
        found = keys.authenticate(own_key().encode()).allowance
        assert {name: getattr(found, name) for name in in_force} == in_force
        assert found.concurrency == 4


@pytest.mark.parametrize(
    ("own", "output"),
    [
        pytest.param(Allowance(), None, id="no limit of tokens"),
        pytest.param(Allowance(tokens_per_minute=8191), 4095, id="half of a limit"),
        pytest.param(Allowance(tokens_per_day=1000), 500, id="of a day"),
        pytest.param(Allowance(tokens_per_minute=9000, tokens_per_day=7), 3, id="of the least"),
        pytest.param(Allowance(tokens_per_minute=1), 1, id="one token is not halved"),
        pytest.param(
            Allowance(tokens_per_minute=1000, max_output_tokens=900),
            None,
            id="what was said stands",
        ),
    ],
)
def test_the_output_that_a_limit_of_tokens_leaves_room_for(
    own: Allowance, output: int | None
) -> None:
    """Whether the limit is its own or everybody's."""
    assert own.spare_output_tokens == output
    everybodys = replace(own, max_output_tokens=None)
    mine = Allowance(max_output_tokens=own.max_output_tokens)
    assert mine.within(everybodys, Allowance()).spare_output_tokens == output


@pytest.mark.parametrize(
    ("own", "told"),
    [
        pytest.param(Allowance(), [], id="nothing of its own"),
        pytest.param(Allowance(max_prompt_chars=100, max_output_tokens=8192), [], id="up to it"),
        pytest.param(
            Allowance(max_prompt_chars=101),
            [
                "max_prompt_chars 101 of key k is over the ceiling of 100, which counts (PROXY_MAX_PROMPT_CHARS_CEILING; while that is 0, PROXY_MAX_PROMPT_CHARS)"
            ],
            id="a longer prompt",
        ),
        pytest.param(
            Allowance(max_output_tokens=8193),
            [
                "max_output_tokens 8193 of key k is over the ceiling of 8192, which counts (PROXY_MAX_OUTPUT_TOKENS_CEILING; while that is 0, PROXY_MAX_OUTPUT_TOKENS)"
            ],
            id="a longer output",
        ),
        pytest.param(Allowance(models=frozenset({"small"})), [], id="a model that there is"),
        pytest.param(
            Allowance(models=frozenset({"small", "canary"})),
            ["models of key k has 1 that PROXY_MODELS has not"],
            id="a model that nobody has",
        ),
        pytest.param(
            Allowance(models=frozenset({"canary"})),
            ["models of key k has 1 that PROXY_MODELS has not: it may use none"],
            id="no other",
        ),
        pytest.param(
            Allowance(tokens_per_day=1000, max_output_tokens=999), [], id="room for a prompt"
        ),
        pytest.param(
            Allowance(tokens_per_day=1000, max_output_tokens=1000),
            [
                "max_output_tokens 1000 of key k leaves nothing of its tokens_per_day (1000) for a prompt"
            ],
            id="none",
        ),
    ],
)
def test_what_a_key_is_given_and_does_not_get(own: Allowance, told: list[str]) -> None:
    """A sentence for each field, with the setting that counts; none without ceilings."""
    ceilings = Allowance(
        max_prompt_chars=100, max_output_tokens=8192, models=frozenset({"small", "large"})
    )
    assert list(keycaps.capped("k", own, ceilings)) == told
    if own.tokens_per_day is None:
        assert list(keycaps.capped("k", own, Allowance())) == []


def test_keys_without_a_file_have_the_default() -> None:
    """Those of the environment, and whoever sends none."""
    keys = KeyStore(
        environment_records(ENV_KEYS),
        allow_anonymous=True,
        defaults=DEFAULTS,
        ceilings=CEILINGS,
    )
    for credential in (ENV_KEYS[0].encode(), None):
        assert keys.authenticate(credential).allowance == DEFAULTS.within(DEFAULTS, CEILINGS)
