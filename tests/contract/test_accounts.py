"""Whose limits a request counts for, and that every answer tells how they stand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.app import Clocks
from tests.harness.client import RawResponse
from tests.harness.keys import bearer, key_file
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch, Running

TUNNEL: dict[str, Any] = {"trusted_proxies": "127.0.0.1", "client_ip_header": "CF-Connecting-IP"}
LIMIT = b"x-ratelimit-limit-requests"
LEFT = b"x-ratelimit-remaining-requests"


@dataclass
class Clock:
    """A clock that stands still."""

    now: float = 1_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


async def chat(front: Running, fields: dict[str, str], where: str = "192.0.2.7") -> RawResponse:
    """A chat from an address, as the tunnel says it."""
    return await front.ask("POST", CHAT, {**fields, **JSON, "CF-Connecting-IP": where}, CHAT_BODY)


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        pytest.param("192.0.2.7", "192.0.2.7", 429, id="the same address"),
        pytest.param("192.0.2.7", "192.0.2.8", 200, id="its neighbour"),
        pytest.param("2001:db8::1", "2001:db8::2:1", 429, id="another of the same /64"),
        pytest.param("2001:db8::1", "2001:db8:0:1::1", 200, id="one of the next /64"),
        pytest.param("2001:db8::1", "192.0.2.7", 200, id="one of each kind"),
    ],
)
async def test_without_a_key_each_network_is_an_account(
    proxy: Launch, first: str, second: str, status: int
) -> None:
    """One client must not use up what all others have, nor get it twice."""
    front = await proxy(
        api_keys=None,
        allow_anonymous="true",
        key_requests_per_minute=1,
        clocks=Clocks(monotonic=Clock()),
        **TUNNEL,
    )
    assert (await chat(front, {}, first)).status == 200
    answer = await chat(front, {}, second)
    assert answer.status == status
    line = await front.log.of(answer)
    assert (line["key_id"], line["client"]) == ("anonymous", second)
    if status == 200:
        return
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answer.header(b"retry-after") or 0) >= 1
    assert (line["outcome"], line["level"]) == ("rate_limit_exceeded", "warning")
    front.assert_counted(line)
    assert len(front.upstream.requests) == 1


async def test_a_key_is_one_account_wherever_it_is_used(proxy: Launch, tmp_path: Path) -> None:
    """And another key from the same place another one."""
    path, (one, other) = key_file(tmp_path, "requests_per_minute = 1", "requests_per_minute = 1")
    front = await proxy(keys_file=path, clocks=Clocks(monotonic=Clock()), **TUNNEL)
    assert (await chat(front, bearer(one), "192.0.2.7")).status == 200
    refused = await chat(front, bearer(one), "198.51.100.7")
    assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (await chat(front, bearer(other), "192.0.2.7")).status == 200
    assert (await chat(front, BEARER, "192.0.2.7")).status == 200


async def test_every_answer_tells_how_the_limit_stands(proxy: Launch, tmp_path: Path) -> None:
    """Those that went well, those that were refused for another reason, and those for this one."""
    path, (key,) = key_file(tmp_path, 'requests_per_minute = 4\nmodels = ["m"]')
    front = await proxy(keys_file=path, clocks=Clocks(monotonic=Clock()))
    fields = {**bearer(key), **JSON}
    told = []
    for body in (CHAT_BODY, b"{", b'{"model":"x","messages":[]}', CHAT_BODY, CHAT_BODY):
        answer = await front.ask("POST", CHAT, fields, body)
        told.append((answer.status, answer.header(LIMIT), answer.header(LEFT)))
    assert told == [
        (200, b"4", b"3"),
        (400, b"4", b"2"),
        (404, b"4", b"1"),
        (200, b"4", b"0"),
        (429, b"4", b"0"),
    ]


async def test_what_is_refused_before_is_neither_charged_nor_told(
    proxy: Launch, tmp_path: Path
) -> None:
    """Paths that are not there, methods that are not served, keys that are not valid, the probe."""
    path, (key,) = key_file(tmp_path, "requests_per_minute = 1")
    front = await proxy(keys_file=path, clocks=Clocks(monotonic=Clock()))
    for method, target, credential, status in (
        ("GET", "/nope", bearer(key), 404),
        ("GET", CHAT, bearer(key), 405),
        ("POST", CHAT, bearer(key[:-1]), 403),
        ("POST", CHAT, {}, 401),
        ("GET", "/healthz", bearer(key), 200),
    ):
        answer = await front.ask(method, target, credential)
        assert (answer.status, answer.header(LIMIT)) == (status, None)
    assert (await front.ask("POST", CHAT, {**bearer(key), **JSON}, CHAT_BODY)).status == 200
    assert (await front.ask("GET", "/v1/models", bearer(key))).status == 429


async def test_a_key_without_limits_is_told_none(proxy: Launch) -> None:
    """There is nothing to tell."""
    front = await proxy()
    answer = await front.chat()
    assert answer.status == 200
    assert not [name for name, _ in answer.headers if name.startswith(b"x-ratelimit-")]
