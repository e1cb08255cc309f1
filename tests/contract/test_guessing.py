"""Wrong keys, one after another: told to stop, and no harm to whoever has a right one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.app import Clocks
from proxy.auth.keys import generate
from tests.harness.client import RawResponse
from tests.harness.keys import bearer, key_file
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch, Running

WRONG = {"Authorization": "Bearer " + "w" * 40}
TUNNEL: dict[str, Any] = {"trusted_proxies": "127.0.0.1", "client_ip_header": "CF-Connecting-IP"}


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


async def ask(front: Running, path: str = CHAT, /, **fields: str) -> RawResponse:
    """One request with these fields; without a key unless one is among them."""
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return await front.ask("POST", path, {**JSON, **named}, CHAT_BODY)


async def fail(front: Running, times: int, **fields: str) -> list[int]:
    """The statuses of so many wrong keys, one after the other."""
    return [(await ask(front, **WRONG, **fields)).status for _ in range(times)]


async def test_the_eleventh_wrong_key_is_told_to_stop(proxy: Launch) -> None:
    """429 with Retry-After, in the shape that SDKs read; nothing reaches the upstream."""
    clock = Clock()
    front = await proxy(clocks=Clocks(monotonic=clock))
    assert await fail(front, 10) == [403] * 10
    clock.now += 10.5
    refused = await ask(front, **WRONG)
    await front.assert_refused(refused, 429, "too_many_failures")
    assert refused.header(b"retry-after") == b"50"
    assert refused.header(b"x-should-retry") == b"false"
    error = refused.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "50 s" in error["message"]
    assert (
        front.metric(
            "bulwark_refusals_total", endpoint="chat.completions", reason="invalid_api_key"
        )
        == 10
    )
    assert "w" * 40 not in front.log.text
    clock.now += 49.5
    assert await fail(front, 1) == [403]


async def test_a_right_key_is_never_locked_out(proxy: Launch) -> None:
    """It may come from where the wrong ones come from; and a key that is missing is no guess."""
    front = await proxy(clocks=Clocks(monotonic=Clock()))
    assert await fail(front, 12) == [403] * 10 + [429] * 2
    assert (await front.chat()).status == 200
    assert (await ask(front)).status == 401
    assert (await ask(front, Authorization="Basic x")).status == 401
    assert await fail(front, 1) == [429]


async def test_what_is_no_guess_is_not_counted(proxy: Launch) -> None:
    """Missing and malformed keys, paths that are not there, bodies that are refused, success."""
    front = await proxy(clocks=Clocks(monotonic=Clock()))
    for _ in range(11):
        assert (await ask(front)).status == 401
        assert (await ask(front, Authorization="Bearer a, Bearer b")).status == 401
        assert (await ask(front, "/nope", **BEARER)).status == 404
        assert (await front.chat(b"{")).status == 400
        assert (await front.chat()).status == 200
    assert await fail(front, 1) == [403]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/nope"])
async def test_on_every_path(proxy: Launch, path: str) -> None:
    """In the route's own shape, and without a map for whoever has no key."""
    front = await proxy(clocks=Clocks(monotonic=Clock()))
    await fail(front, 10)
    refused = await ask(front, path, **WRONG)
    await front.assert_refused(refused, 429, "too_many_failures")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.header(b"retry-after") == b"60"


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        pytest.param("192.0.2.7", "192.0.2.7", 429, id="the same address"),
        pytest.param("192.0.2.7", "192.0.2.8", 403, id="its neighbour"),
        pytest.param("192.0.2.7", "::ffff:192.0.2.7", 429, id="the same, mapped"),
        pytest.param("2001:db8::1", "2001:db8::ffff:1", 429, id="another of the same /64"),
        pytest.param("2001:db8::1", "2001:db8:0:1::1", 403, id="one of the next /64"),
    ],
)
async def test_each_address_has_its_own_ten(
    proxy: Launch, first: str, second: str, status: int
) -> None:
    """As the tunnel says where a client is."""
    front = await proxy(clocks=Clocks(monotonic=Clock()), **TUNNEL)
    await fail(front, 10, CF_Connecting_IP=first)
    assert await fail(front, 1, CF_Connecting_IP=second) == [status]


async def test_nobody_gets_more_by_saying_that_he_is_elsewhere(proxy: Launch) -> None:
    """Nobody is trusted by default."""
    front = await proxy(clocks=Clocks(monotonic=Clock()))
    statuses = [
        (await ask(front, **WRONG, CF_Connecting_IP=address, X_Forwarded_For=address)).status
        for address in (f"192.0.2.{n}" for n in range(11))
    ]
    assert statuses == [403] * 10 + [429]


async def test_all_kinds_of_wrong_keys_look_alike(proxy: Launch, tmp_path: Path) -> None:
    """Unknown, disabled and expired ones, before and after: byte for byte, but for the request id."""
    path, (disabled, expired) = key_file(
        tmp_path, "disabled = true", "expires = 2020-01-01T00:00:00Z"
    )
    front = await proxy(clocks=Clocks(monotonic=Clock()), keys_file=path, **TUNNEL)
    for status in (403, 429):
        answers = []
        for number, key in enumerate((disabled, expired, generate())):
            where = {"CF-Connecting-IP": f"192.0.2.{number}"}
            if status == 429:
                await fail(front, 9, CF_Connecting_IP=where["CF-Connecting-IP"])
            answer = await front.ask("POST", CHAT, {**JSON, **where, **bearer(key)}, CHAT_BODY)
            fields = [f for f in answer.headers if f[0] not in (b"x-request-id", b"date")]
            answers.append((answer.status, fields, answer.body))
        assert answers[0][0] == status
        assert answers == [answers[0]] * 3
