"""Promise 1: nobody unknown gets in. Through the whole chain, from bytes to bytes."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from proxy.app import Clocks, configure
from proxy.auth.keys import generate
from proxy.config import ConfigError
from tests.contract.tables.auth import (
    ANTHROPIC,
    GOOD_BEARERS,
    HOSTS,
    NO_CREDENTIAL,
    OTHER,
    PATHS,
    WRONG_KEYS,
)
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Launch

MESSAGES = "/v1/messages"
MESSAGE = CHAT_BODY


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_key_every_path_is_401(proxy: Launch, path: str) -> None:
    """Known and unknown paths alike, with every method: no map for scanners."""
    front = await proxy()
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        response = await front.ask(method, path)
        assert (response.status, response.header(b"www-authenticate")) == (401, b"Bearer")
        assert (await front.log.of(response))["outcome"] == "missing_api_key"
    assert front.upstream.requests == []


@pytest.mark.parametrize(
    "fields",
    NO_CREDENTIAL,
)
async def test_no_usable_credential_is_401(proxy: Launch, fields: list[tuple[str, str]]) -> None:
    """With a challenge, the reason, and nothing forwarded."""
    front = await proxy()
    response = await front.ask("POST", CHAT, [*fields, *JSON.items()], CHAT_BODY)
    await front.assert_refused(response, 401, "missing_api_key")
    assert response.header(b"www-authenticate") == b"Bearer"
    assert "Authorization: Bearer <key>" in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        pytest.param(f"?api_key={KEY}", True, id="a right one"),
        pytest.param("?x=sk-wrong", True, id="a wrong one"),
        pytest.param("?token=x", True, id="what is called one"),
        pytest.param("?api%255Fkey=x", True, id="encoded twice"),
        pytest.param("?x=task-7", False, id="a word that ends like one"),
        pytest.param("?x=" + "y" * 2_045 + "&key=x", False, id="behind what is read"),
        pytest.param("", False, id="no query"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/nope"])
async def test_a_key_in_the_query_is_none(
    proxy: Launch, path: str, query: str, *, told: bool
) -> None:
    """401 whether it is right or not; but whoever has sent one is told to replace it."""
    front = await proxy()
    response = await front.ask("POST", path + query, JSON, CHAT_BODY)
    assert response.status == 401
    assert (await front.log.of(response))["outcome"] == "missing_api_key"
    assert ("replace it" in response.json()["error"]["message"]) == told
    assert "Authorization: Bearer <key>" in response.json()["error"]["message"]
    assert KEY not in front.log.text
    assert front.upstream.requests == []


@pytest.mark.parametrize(
    "key",
    WRONG_KEYS,
)
async def test_a_wrong_key_is_403(proxy: Launch, key: str) -> None:
    """Without a challenge, and without the key in the log."""
    front = await proxy()
    response = await front.chat(Authorization=f"Bearer {key}")
    await front.assert_refused(response, 403, "invalid_api_key")
    assert response.header(b"www-authenticate") is None
    assert (await front.log.of(response))["key_id"] is None
    assert len(key) < 2 or key not in front.log.text


@pytest.mark.parametrize(
    "value",
    GOOD_BEARERS,
)
async def test_the_key_gets_in(proxy: Launch, value: str) -> None:
    """The scheme in any case, spaces tolerated; the log has its name and no part of it."""
    front = await proxy()
    response = await front.chat(Authorization=value)
    assert response.status == 200
    assert (await front.log.of(response))["key_id"] == "env-1"
    assert KEY not in front.log.text
    assert KEY.encode() not in bytes(front.upstream.connections[0].received)


async def test_each_of_several_keys_gets_in_under_its_own_name(proxy: Launch) -> None:
    """PROXY_API_KEYS holds more than one, so that a key can be replaced without a gap."""
    front = await proxy(api_keys=f"{KEY}, {OTHER}")
    for key, key_id in ((KEY, "env-1"), (OTHER, "env-2")):
        response = await front.chat(Authorization=f"Bearer {key}")
        assert response.status == 200
        assert (await front.log.of(response))["key_id"] == key_id


@pytest.mark.parametrize(
    ("fields", "status"),
    ANTHROPIC,
)
async def test_anthropic_routes(proxy: Launch, fields: list[tuple[str, str]], status: int) -> None:
    """They take x-api-key too, and speak Anthropic's errors."""
    front = await proxy()
    response = await front.ask("POST", MESSAGES, [*fields, *JSON.items()], MESSAGE)
    assert response.status == status
    if status == 200:
        assert KEY.encode() not in bytes(front.upstream.connections[0].received)
        return
    types = {401: "authentication_error", 403: "permission_error"}
    assert response.json()["error"]["type"] == types[status]
    assert response.json()["request_id"].encode() == response.header(b"x-request-id")
    code = {401: "missing_api_key", 403: "invalid_api_key"}[status]
    await front.assert_refused(response, status, code)


@pytest.mark.parametrize("host", HOSTS)
async def test_the_host_decides_nothing(proxy: Launch, host: str) -> None:
    """CVE-2026-48710: a path in Host must not become the path."""
    front = await proxy()
    response = await front.ask("POST", CHAT, {"Host": host, **JSON}, CHAT_BODY)
    assert response.status in (400, 401)
    assert front.upstream.requests == []


async def test_the_body_of_a_stranger_is_not_read(proxy: Launch) -> None:
    """He is refused by his head alone, however long his body is and however it is encoded."""
    front = await proxy()
    client = await front.connect()
    fields = {"Content-Length": "2000000", "Content-Encoding": "gzip", **JSON}
    await client.send(request_bytes("POST", CHAT, fields))
    await front.assert_refused(await client.read_response(), 401, "missing_api_key")


async def test_what_follows_a_refusal_is_not_taken_for_a_request(proxy: Launch) -> None:
    """A bad key with a long body, then a good request on the same connection: it ends instead."""
    front = await proxy()
    client = await front.connect()
    bad = request_bytes("POST", CHAT, {"Authorization": "Bearer x", **JSON}, b"x" * 100_000)
    good = request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)
    await client.send(bad + good)
    assert (await client.read_response()).status == 403
    assert await client.read_until_closed() == b""
    assert front.upstream.requests == []


async def test_expect_100_continue_of_a_stranger_gets_the_final_answer(proxy: Launch) -> None:
    """No 100: he need not send his body."""
    front = await proxy()
    client = await front.connect()
    fields = {"Content-Length": "1900000", "Expect": "100-continue", **JSON}
    await client.send(request_bytes("POST", CHAT, fields))
    response = await client.read_response()
    assert (response.status, response.interim) == (401, [])


def key_file(folder: Path, *keys: tuple[str, str]) -> Path:
    """A key file with these keys, each with more TOML about it."""
    path = folder / "keys.toml"
    path.write_text(
        "\n".join(
            f'[[key]]\nid = "{key[6:14]}"\n'
            f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}'
            for key, more in keys
        )
    )
    path.chmod(0o600)
    return path


async def test_keys_of_the_file(proxy: Launch, tmp_path: Path) -> None:
    """Valid, disabled and expired ones; the latter two look like unknown ones."""
    valid, disabled, expired = generate(), generate(), generate()
    path = key_file(
        tmp_path,
        (valid, "expires = 2026-06-01T12:00:01Z"),
        (disabled, "disabled = true"),
        (expired, "expires = 2026-06-01T12:00:00Z"),
    )
    now = datetime(2026, 6, 1, 12, tzinfo=UTC)
    front = await proxy(keys_file=path, clocks=Clocks(now=lambda: now))
    response = await front.chat(Authorization=f"Bearer {valid}")
    assert response.status == 200
    assert (await front.log.of(response))["key_id"] == valid[6:14]
    unknown = await front.chat(Authorization=f"Bearer {OTHER}")
    for key in (disabled, expired):
        refused = await front.chat(Authorization=f"Bearer {key}")
        assert (refused.status, refused.body) == (403, unknown.body)
        assert key[6:14] not in front.log.text
    assert (await front.chat()).status == 200  # and the environment's key beside them
    now += timedelta(seconds=1)
    assert (await front.chat(Authorization=f"Bearer {valid}")).status == 403


async def test_a_server_for_everybody_has_to_be_asked_for(proxy: Launch) -> None:
    """Then no key is needed, and the dummy that clients send is no reason to refuse."""
    front = await proxy(api_keys=None, allow_anonymous="true")
    for fields in ({}, {"Authorization": "Bearer sk-dummy"}):
        response = await front.ask("POST", CHAT, {**fields, **JSON}, CHAT_BODY)
        assert response.status == 200
        assert (await front.log.of(response))["key_id"] == "anonymous"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param("", "holds no key", id="no key in it"),
        pytest.param("[[key]", "is not TOML", id="no TOML"),
        pytest.param("[[key]]\nkey = 'sk-canary'", "unknown field 'key'", id="a raw key"),
    ],
)
def test_a_key_file_that_is_wrong_is_an_error_at_start(
    tmp_path: Path, content: str, problem: str
) -> None:
    """Nothing is served with half a file; the setting is named and no value is."""
    path = tmp_path / "keys.toml"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        configure({"PROXY_KEYS_FILE": str(path)})
    assert all(each.startswith("PROXY_KEYS_FILE: ") for each in caught.value.problems)
    assert problem in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("good_file", [True, False])
def test_settings_and_key_file_are_mended_in_one_go(tmp_path: Path, good_file: bool) -> None:
    """What is wrong with the one does not hide what is wrong with the other."""
    path = key_file(tmp_path, (generate(), "" if good_file else "models = []\n"))
    with pytest.raises(ConfigError) as caught:
        configure({"PROXY_KEYS_FILE": str(path), "PROXY_MAX_PROMPT_CHARS": "-1"})
    names = [problem.split(":")[0] for problem in caught.value.problems]
    assert names == ["PROXY_MAX_PROMPT_CHARS", *([] if good_file else ["PROXY_KEYS_FILE"])]


def test_settings_that_are_wrong_without_a_key_file() -> None:
    """Nothing is read that nobody named."""
    with pytest.raises(ConfigError) as caught:
        configure({"PROXY_MAX_PROMPT_CHARS": "-1", "PROXY_API_KEYS": KEY})
    assert len(caught.value.problems) == 1


def test_a_configuration_in_order(tmp_path: Path) -> None:
    """Its settings and its keys, of both sources."""
    path = key_file(tmp_path, (generate(), ""))
    settings, store = configure({"PROXY_KEYS_FILE": str(path), "PROXY_API_KEYS": KEY})
    assert settings.keys_file == path
    assert len(store) == 2
