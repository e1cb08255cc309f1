"""The operator's listener: what it says, and to whom."""

import asyncio
import socket

import httpx
import pytest

from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch
from tests.harness.upstream import COMPLETION, End, response

PATHS = ["/healthz", "/readyz", "/metrics", "/status"]


@pytest.mark.parametrize("path", PATHS)
async def test_each_path_answers_get_and_head(proxy: Launch, path: str) -> None:
    """Without a key, named and typed; HEAD with the fields and without the body."""
    front = await proxy()
    answer = await front.ask_admin("GET", path)
    head = await front.ask_admin("HEAD", path)
    assert (answer.status, head.status, head.body) == (200, 200, b"")
    assert answer.body
    for each in (answer, head):
        assert each.header(b"x-request-id")
        assert each.header(b"x-content-type-options") == b"nosniff"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_no_other_method(proxy: Launch, path: str, method: str) -> None:
    """405 with Allow, in our shape; also where a browser asks for CORS."""
    front = await proxy()
    fields = {
        "Host": "localhost",
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "GET",
    }
    answer = await front.ask_admin(method, path, fields)
    assert (answer.status, answer.header(b"allow")) == (405, b"GET, HEAD")
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert not any(name.startswith(b"access-control-") for name, _ in answer.headers)


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/openapi.json", "/metrics/", "//metrics", "/v1/models", "/v1/chat/completions"],
)
async def test_no_other_path(proxy: Launch, path: str) -> None:
    """404 in our shape; nothing is forwarded from here."""
    front = await proxy()
    answer = await front.ask_admin("GET", path)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")
    assert front.upstream.requests == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("localhost", 200, id="localhost"),
        pytest.param("LOCALHOST:9090", 200, id="in capitals, with a port"),
        pytest.param("127.0.0.1:1", 200, id="an address of the loopback"),
        pytest.param("127.9.9.9", 200, id="another address of the loopback"),
        pytest.param("[::1]:9090", 200, id="the loopback of IPv6"),
        pytest.param("ops.example", 200, id="a name of PROXY_ADMIN_HOSTS"),
        pytest.param("OPS.example:80", 200, id="that name in capitals"),
        pytest.param("evil.example", 421, id="another name"),
        pytest.param("localhost.evil.example", 421, id="a name that begins like ours"),
        pytest.param("evil-localhost", 421, id="a name that ends like ours"),
        pytest.param("127.0.0.1.evil.example", 421, id="a name that begins like an address"),
        pytest.param("10.0.0.1", 421, id="an address of the LAN"),
        pytest.param("[::2]", 421, id="another address of IPv6"),
        pytest.param("2130706433", 421, id="the loopback as a number"),
        pytest.param("local_host!", 421, id="no name at all"),
        pytest.param("localhost.", 421, id="a name with a dot behind"),
    ],
)
async def test_it_answers_to_its_own_names_only(proxy: Launch, host: str, status: int) -> None:
    """A page that makes a browser take its name for ours reads nothing."""
    front = await proxy(admin_hosts="Ops.Example")
    for path in PATHS:
        answer = await front.ask_admin("GET", path, {"Host": host})
        assert answer.status == status
        if status == 421:
            assert answer.json()["error"]["code"] == "misdirected_request"
            line = await front.log.of(answer)
            assert (line["endpoint"], line["outcome"]) == ("admin", "misdirected_request")


async def test_metrics_are_the_proxys_own(proxy: Launch) -> None:
    """Never the upstream's; in the text format; and scraping is not counted as traffic."""
    front = await proxy()
    await front.chat()
    await front.idle()
    await front.ask_admin("GET", "/metrics")
    answer = await front.ask_admin("GET", "/metrics")
    assert (answer.header(b"content-type") or b"").startswith(b"text/plain; version=")
    page = answer.body.decode()
    served = 'bulwark_requests_total{endpoint="chat.completions",outcome="ok",status="200"} 1.0'
    assert served in page
    assert "bulwark_requests_in_flight 0.0" in page
    assert "admin" not in page
    assert len(front.upstream.requests) == 1


async def test_status_counts_what_is_held(proxy: Launch) -> None:
    """Of the moment; no secret, no setting."""
    front = await proxy(max_inflight=1)
    gate = asyncio.Event()
    front.upstream.script.append([gate, response(COMPLETION)])
    await front.ask_admin("GET", "/readyz")  # after which it is known how the engine is
    quiet = (await front.ask_admin("GET", "/status")).json()
    assert quiet.pop("uptime_seconds") >= 0
    assert quiet.pop("version")
    upstream = quiet.pop("upstream")
    assert 0 <= upstream.pop("last_ok_seconds_ago") == upstream.pop("since_seconds") < 60
    assert quiet == {
        "in_flight": 0,
        "slots_in_use": 0,
        "queued": 0,
        "buffered_bytes": 0,
        "draining": False,
        "kv_budget": {"state": "off", "reason": "no_pool_shown"},
        "keys": {"known": 1, "file_problem": None},
    }
    nothing = ("engine", "engines", "running", "waiting", "kv_usage", "preemptions_total")
    assert upstream == {
        "state": "ready",
        "reason": "",
        "restarts": 0,
        "pool_tokens": None,
        "ignored_pages": {"absent": 1},
        **dict.fromkeys(nothing),
    }
    asking = asyncio.create_task(front.chat())
    await front.upstream.request(0)
    busy = (await front.ask_admin("GET", "/status")).json()
    assert (busy["in_flight"], busy["slots_in_use"], busy["queued"]) == (1, 1, 0)
    gate.set()
    assert (await asking).status == 200


class Engine(httpx.AsyncBaseTransport):
    """One that only the monitor asks: with this health, once its gate is open."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Its health; it has no metrics."""
        await self.gate.wait()
        self.asked += request.url.path == "/health"
        status = self.status if request.url.path == "/health" else 404
        return httpx.Response(status, stream=httpx.ByteStream(b"{}"))


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param(200, "", id="it is well"),
        pytest.param(404, "no_health_page", id="it does not know the question, but serves"),
        pytest.param(401, "", id="it wants a key for its health"),
        pytest.param(503, "unavailable", id="it still loads its model"),
        pytest.param(500, "failing", id="it is broken"),
    ],
)
async def test_readiness_is_the_upstreams(proxy: Launch, status: int, reason: str) -> None:
    """Told with a reason, and that there is no KV budget; no line of it in the log."""
    front = await proxy(monitor_transport=Engine(status))
    answer = await front.ask_admin("GET", "/readyz")
    state = "starting" if status >= 500 else "ready"
    told = answer.json()
    error = told.pop("error", None)
    assert told == {
        "status": state,
        "upstream": {"state": state, "reason": reason},
        "kv_budget": {"state": "off", "reason": "no_pool_shown"},
        "keys": {"known": 1, "file_problem": None},
    }
    if state == "starting":
        assert (answer.status, error["code"]) == (503, "upstream_unavailable")
        assert answer.header(b"retry-after") == b"5"
    else:
        assert (answer.status, error) == (200, None)
    assert (await front.log.of(answer))["level"] == "debug"
    assert front.upstream.requests == []


async def test_nobody_who_asks_makes_us_ask_the_upstream(proxy: Launch) -> None:
    """And who asks before the first look has ended waits for it, rather than be told a guess."""
    engine = Engine()
    engine.gate.clear()
    front = await proxy(monitor_transport=engine)
    asking = [asyncio.create_task(front.ask_admin("GET", "/readyz")) for _ in range(5)]
    alive = await front.ask_admin("GET", "/healthz")
    assert (alive.status, engine.asked) == (200, 0)
    assert not any(each.done() for each in asking)
    engine.gate.set()
    assert [(await each).status for each in asking] == [200] * 5
    assert engine.asked == 1


async def test_not_ready_without_an_upstream_but_alive(proxy: Launch) -> None:
    """The two probes differ: a restart would not bring the engine back."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        front = await proxy(upstream_url=url, monitor_transport=None)
        answer = await front.ask_admin("GET", "/readyz")
        assert (answer.status, answer.json()["status"]) == (503, "starting")
        assert answer.json()["upstream"] == {"state": "starting", "reason": "refused"}
        assert url.rpartition(":")[2] not in answer.body.decode()
        assert (await front.ask_admin("GET", "/healthz")).status == 200
        assert (await front.ask("GET", "/healthz")).status == 200
        status = (await front.ask_admin("GET", "/status")).json()
        assert status["upstream"]["state"] == "starting"
        assert status["upstream"]["last_ok_seconds_ago"] is None


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        pytest.param("off", {"state": "off", "reason": "switched_off"}, id="switched off"),
        pytest.param("auto", {"state": "off", "reason": "no_pool_shown"}, id="no pool was shown"),
        pytest.param(
            "50000",
            {
                "state": "on",
                "reason": "fixed",
                "limit_tokens": 50_000,
                "reserved_tokens": 0,
                "pool_tokens": None,
            },
            id="a number, whatever the pool",
        ),
    ],
)
async def test_readiness_tells_of_the_budget(
    proxy: Launch, setting: str, told: dict[str, object]
) -> None:
    """Whether there is one, and why not."""
    front = await proxy(kv_budget_tokens=setting)
    assert (await front.ask_admin("GET", "/readyz")).json()["kv_budget"] == told


async def test_not_ready_while_it_drains(proxy: Launch) -> None:
    """The admin listener outlives the public one, so that the drain can be seen."""
    front = await proxy()
    front.upstream.script.append([End.SILENCE])
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    await front.upstream.request(0)
    front.stop.set()
    await front.log.until(lambda: "draining" in front.log.text)
    answer = await front.ask_admin("GET", "/readyz")
    assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert (answer.header(b"retry-after"), answer.json()["status"]) == (b"5", "draining")
    assert (await front.ask_admin("GET", "/metrics")).status == 200
    assert (await front.ask_admin("GET", "/status")).json()["draining"] is True


class Broken(httpx.AsyncBaseTransport):
    """A transport with a bug."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Fails as no transport may."""
        raise RuntimeError("canary")


async def test_a_bug_is_told_once_and_is_not_the_end(
    proxy: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not ready, with a word for it; its kind in the log, and its message nowhere."""
    front = await proxy(monitor_transport=Broken())
    answer = await front.ask_admin("GET", "/readyz")
    assert (answer.status, answer.json()["upstream"]["reason"]) == (503, "bug")
    assert front.log.text.count('"event":"monitor_failed"') == 1
    assert "RuntimeError" in front.log.text
    assert "canary" not in front.log.text + answer.body.decode()
    assert capfd.readouterr() == ("", "")
    assert (await front.chat()).status == 200
