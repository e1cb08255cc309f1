"""AU: who gets in, with which spelling of a key, and where keys must not go."""

import hashlib
from pathlib import Path

import pytest

from proxy.app import configure
from proxy.auth.keys import generate
from proxy.config import ConfigError
from tests.harness.client import RawResponse
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Launch, Running

GOOD = f"Bearer {KEY}"
BAD = "Bearer sk-other-" + "o" * 40
MESSAGES = "/v1/messages"


async def ask(front: Running, *fields: tuple[str, str], path: str = CHAT) -> RawResponse:
    """A chat with these credentials."""
    return await front.ask("POST", path, [*fields, *JSON.items()], CHAT_BODY)


@pytest.mark.case("AU-01")
@pytest.mark.parametrize(
    ("value", "status", "code"),
    [
        pytest.param(b"Bearer caf\xe9", 401, "missing_api_key", id="a Latin-1 byte"),
        pytest.param("Bearer clé".encode(), 401, "missing_api_key", id="UTF-8"),
        pytest.param(f"Bearer “{KEY}”".encode(), 401, "missing_api_key", id="smart quotes"),
        pytest.param(b"Bearer " + b"k" * 30_000, 403, "invalid_api_key", id="30 KB"),
    ],
)
async def test_keys_that_are_not_ascii_or_long(
    proxy: Launch, capfd: pytest.CaptureFixture[str], value: bytes, status: int, code: str
) -> None:
    """A refusal in JSON, one line about it, and no traceback."""
    front = await proxy()
    answer = await ask(front, ("Authorization", value.decode("latin-1")))
    await front.assert_refused(answer, status, code)
    assert len(front.log.requests()) == 1
    assert "Traceback" not in front.log.text
    assert capfd.readouterr() == ("", "")


@pytest.mark.case("AU-01")
async def test_a_key_longer_than_a_head_may_be(
    proxy: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    """64 KB are over the cap of a head, which comes before anybody asks for a key."""
    front = await proxy()
    answer = await ask(front, ("Authorization", "Bearer " + "k" * 65_536))
    assert (answer.status, answer.json()["error"]["code"]) == (431, "head_too_large")
    await front.log.of(answer)
    assert front.upstream.requests == []
    assert len(front.log.requests()) == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.case("AU-02")
@pytest.mark.parametrize(
    ("value", "status"),
    [
        pytest.param(f"bearer {KEY}", 200, id="a small scheme"),
        pytest.param(f"BEARER {KEY}", 200, id="a capital scheme"),
        pytest.param(f"Bearer  {KEY}", 200, id="two spaces"),
        pytest.param(f"Bearer {KEY} ", 200, id="a space behind"),
        pytest.param(f"Basic {KEY}", 401, id="another scheme"),
        pytest.param(f"Bearer{KEY}", 401, id="no space"),
        pytest.param("Bearer", 401, id="no key"),
        pytest.param(f"Bearer {KEY.upper()}", 403, id="a key in another case"),
    ],
)
async def test_spellings_of_the_scheme(proxy: Launch, value: str, status: int) -> None:
    """The scheme in any case and with any spaces; the key exactly."""
    front = await proxy()
    answer = await ask(front, ("Authorization", value))
    if status == 200:
        assert answer.status == 200
    else:
        code = {401: "missing_api_key", 403: "invalid_api_key"}[status]
        await front.assert_refused(answer, status, code)


ORIGIN = "https://chat.example"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.mark.case("AU-03")
async def test_a_preflight_with_cors_on(proxy: Launch) -> None:
    """Allowed without a key, and the upstream hears nothing of it."""
    front = await proxy(cors_origins=ORIGIN)
    answer = await front.ask("OPTIONS", CHAT, PREFLIGHT)
    assert 200 <= answer.status < 300
    assert answer.header(b"access-control-allow-origin") == ORIGIN.encode()
    assert b"POST" in (answer.header(b"access-control-allow-methods") or b"")
    allowed = (answer.header(b"access-control-allow-headers") or b"").lower()
    assert {b"authorization", b"content-type"} <= set(allowed.replace(b" ", b"").split(b","))
    assert front.upstream.connections == []


@pytest.mark.case("AU-03")
@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        pytest.param({}, 401, "missing_api_key", id="without a key"),
        pytest.param(BEARER, 405, "method_not_allowed", id="with one"),
    ],
)
async def test_a_preflight_with_cors_off(
    proxy: Launch, key: dict[str, str], status: int, code: str
) -> None:
    """A request like others, with a method that nothing answers."""
    front = await proxy()
    answer = await front.ask("OPTIONS", CHAT, {**PREFLIGHT, **key})
    await front.assert_refused(answer, status, code)
    assert answer.header(b"access-control-allow-origin") is None


CONTROL = [
    *("POST /" + path for path in (
        "invocations", "tokenize", "pooling", "score", "sleep", "collective_rpc",
        "reset_prefix_cache", "load_lora_adapter", "v1/load_lora_adapter",
    )),
    *("GET /" + path for path in ("metrics", "docs", "openapi.json", "server_info", "version")),
]  # fmt: skip


@pytest.mark.case("AU-04")
@pytest.mark.parametrize("line", [*CONTROL, "POST /v1/messages"])
async def test_nothing_beside_the_prefix_is_open(proxy: Launch, line: str) -> None:
    """401 without a key; with one, only what is in the table is forwarded."""
    front = await proxy()
    method, path = line.split()
    body = CHAT_BODY if method == "POST" else b""
    refused = await front.ask(method, path, JSON, body)
    await front.assert_refused(refused, 401, "missing_api_key")
    answer = await front.ask(method, path, {**JSON, **BEARER}, body)
    if path == MESSAGES:
        assert answer.status == 200
        assert [request.target for request in front.upstream.requests] == [b"/v1/messages"]
    else:
        await front.assert_refused(answer, 404, "not_found")


@pytest.mark.case("AU-07")
@pytest.mark.parametrize("host", ["x/health?a=", "x#", "x/metrics", "x/healthz?a=", "x/healthz#"])
async def test_a_path_in_the_host(proxy: Launch, host: str) -> None:
    """It is no Host, with a key or without: 400, and the upstream is not even connected to."""
    front = await proxy()
    for key in ({}, BEARER):
        answer = await ask(front, ("Host", host), *key.items())
        assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_http")
    assert front.upstream.connections == []


@pytest.mark.case("AU-09")
@pytest.mark.parametrize(
    ("upstream_key", "sent"),
    [("upstream-key", b"Bearer upstream-key"), (None, None)],
    ids=["the upstream has one", "the upstream has none"],
)
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(CHAT, [("Authorization", GOOD)], id="OpenAI's field"),
        pytest.param(MESSAGES, [("x-api-key", KEY)], id="Anthropic's field"),
        pytest.param(MESSAGES, [("x-api-key", KEY), ("Authorization", GOOD)], id="both"),
    ],
)
async def test_the_clients_key_stays_here(
    proxy: Launch,
    upstream_key: str | None,
    sent: bytes | None,
    path: str,
    fields: list[tuple[str, str]],
) -> None:
    """The upstream sees its own key or none; the client's is in none of its bytes."""
    front = await proxy(upstream_api_key=upstream_key)
    assert (await ask(front, *fields, path=path)).status == 200
    (received,) = front.upstream.requests
    assert received.header(b"authorization") == sent
    assert received.header(b"x-api-key") is None
    assert KEY.encode() not in bytes(front.upstream.connections[0].received)


@pytest.mark.case("AU-10")
async def test_other_secrets_stay_here(proxy: Launch) -> None:
    """So does every field that nobody listed: a list of secrets would never be complete."""
    front = await proxy()
    names = ("x-api-key", "api-key", "x-goog-api-key", "Cookie", "Proxy-Authorization", "X-Trace")
    secrets = [(name, f"canary-{number}") for number, name in enumerate(names)]
    answer = await ask(front, *secrets, *BEARER.items(), ("OpenAI-Beta", "v2"))
    assert answer.status == 200
    assert b"canary" not in bytes(front.upstream.connections[0].received)
    assert front.upstream.requests[0].header(b"openai-beta") == b"v2"
    await front.log.of(answer)
    assert "canary" not in front.log.text


@pytest.mark.case("AU-11")
@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        pytest.param(MESSAGES, [("x-api-key", KEY)], 200, id="on Anthropic's route"),
        pytest.param(
            MESSAGES, [("x-api-key", KEY), ("Authorization", BAD)], 401, id="beside a bad bearer"
        ),
        pytest.param(
            MESSAGES,
            [("x-api-key", BAD), ("Authorization", GOOD)],
            401,
            id="bad, beside a good one",
        ),
        pytest.param(CHAT, [("x-api-key", KEY)], 401, id="on OpenAI's route"),
        pytest.param(
            CHAT, [("x-api-key", KEY), ("Authorization", BAD)], 403, id="there, with a bad bearer"
        ),
    ],
)
async def test_anthropics_field(
    proxy: Launch, path: str, fields: list[tuple[str, str]], status: int
) -> None:
    """Accepted on its routes; elsewhere the refusal says where the key belongs; none is rescued."""
    front = await proxy()
    answer = await ask(front, *fields, path=path)
    if status == 200:
        assert answer.status == 200
        return
    code = {401: "missing_api_key", 403: "invalid_api_key"}[status]
    await front.assert_refused(answer, status, code)
    if status == 401:
        assert "Authorization: Bearer <key>" in answer.json()["error"]["message"]


@pytest.mark.case("AU-12")
@pytest.mark.parametrize(
    "values",
    [
        pytest.param([BAD, GOOD], id="bad, good"),
        pytest.param([GOOD, BAD], id="good, bad"),
        pytest.param([GOOD, GOOD], id="the same twice"),
        pytest.param([f"{BAD}, {GOOD}"], id="bad, good, joined"),
        pytest.param([f"{GOOD}, {BAD}"], id="good, bad, joined"),
        pytest.param([f"{GOOD},{GOOD}"], id="the same, joined"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_two_credentials(proxy: Launch, path: str, values: list[str]) -> None:
    """Refused in every order: whoever reads the other one must not be believed."""
    front = await proxy()
    answer = await ask(front, *(("Authorization", value) for value in values), path=path)
    await front.assert_refused(answer, 401, "missing_api_key")


def entry(key: str, more: str = "") -> str:
    """One key of the file."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'[[key]]\nid = "{key[6:14]}"\nsha256 = "{digest}"\n{more}'


def private(path: Path, content: bytes) -> Path:
    """A file that only its owner writes."""
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.mark.case("AU-13")
async def test_files_as_editors_leave_them(proxy: Launch, tmp_path: Path) -> None:
    """A byte order mark, CRLF, blank lines, comments, spaces: every key in them works."""
    one, two = generate(), generate()
    text = f"# keys\n\n{entry(one)}\n   \n# and\n  {entry(two)}\n"
    keys = private(tmp_path / "keys.toml", b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    raw = private(tmp_path / "raw", b"\xef\xbb\xbf" + f"{KEY}\r\n\r\n  {KEY[::-1]}  \r\n".encode())
    own = private(tmp_path / "own", b"upstream-key\r\n")
    front = await proxy(api_keys=None, api_keys_file=raw, keys_file=keys, upstream_api_key_file=own)
    for key in (one, two, KEY, KEY[::-1]):
        assert (await ask(front, ("Authorization", f"Bearer {key}"))).status == 200
        assert front.upstream.requests[-1].header(b"authorization") == b"Bearer upstream-key"


@pytest.mark.case("AU-13")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param('"canary\n"', id="a line break within quotes"),
        pytest.param("canary\n", id="a line break behind"),
        pytest.param("canary\r\nX: y", id="another field"),
        pytest.param("canary two", id="a space"),
        pytest.param("canary\xe9", id="not ASCII"),
    ],
)
def test_an_upstream_key_that_is_no_header_value(value: str) -> None:
    """Rejected at start, by the name of its setting and without its value."""
    with pytest.raises(ConfigError) as caught:
        configure({"PROXY_API_KEYS": KEY, "PROXY_UPSTREAM_API_KEY": value})
    (problem,) = caught.value.problems
    assert problem.startswith("PROXY_UPSTREAM_API_KEY: ")
    assert "canary" not in problem


@pytest.mark.case("AU-13")
def test_a_list_of_raw_keys_has_no_comments(tmp_path: Path) -> None:
    """Only the file of hashed keys has; here one is refused at start, and not as a key."""
    path = private(tmp_path / "raw", f"# canary, of which nobody may hear a word\n{KEY}\n".encode())
    with pytest.raises(ConfigError) as caught:
        configure({"PROXY_API_KEYS_FILE": str(path)})
    (problem,) = caught.value.problems
    assert problem.startswith("PROXY_API_KEYS")
    assert "canary" not in problem


TYPES = {401: "authentication_error", 403: "permission_error"}


@pytest.mark.case("AU-15")
@pytest.mark.parametrize(
    ("value", "status", "code"),
    [
        pytest.param(None, 401, "missing_api_key", id="no field"),
        pytest.param("Bearer", 401, "missing_api_key", id="half a field"),
        pytest.param("Token x", 401, "missing_api_key", id="malformed"),
        pytest.param(BAD, 403, "invalid_api_key", id="an unknown key"),
        pytest.param("disabled", 403, "invalid_api_key", id="a disabled key"),
        pytest.param("expired", 403, "invalid_api_key", id="an expired key"),
    ],
)
async def test_401_or_403(
    proxy: Launch, tmp_path: Path, value: str | None, status: int, code: str
) -> None:
    """401 asks for a key, with a challenge; 403 says that this one does not do, in one way."""
    retired = {"disabled": generate(), "expired": generate()}
    entries = [
        entry(retired["disabled"], "disabled = true\n"),
        entry(retired["expired"], "expires = 2020-01-01T00:00:00Z\n"),
    ]
    path = private(tmp_path / "keys.toml", "\n".join(entries).encode())
    front = await proxy(keys_file=path)
    if value in retired:
        value = f"Bearer {retired[value]}"
    answer = await ask(front, *([("Authorization", value)] if value else []))
    await front.assert_refused(answer, status, code)
    assert answer.header(b"www-authenticate") == (b"Bearer" if status == 401 else None)
    assert answer.json()["error"]["type"] == TYPES[status]
