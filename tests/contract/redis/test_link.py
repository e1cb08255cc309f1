"""The connection to Redis: its own answer to everybody, whoever leaves, or a reason in time."""

import asyncio
import contextlib
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from proxy.admission.rates.ledger import AnsweredError, LinkError
from proxy.admission.rates.link import BUDGET_SECONDS, Link
from proxy.admission.rates.opening import connector
from proxy.names import Names
from tests.harness import redis as servers
from tests.harness.awake import counting
from tests.harness.deaf import deaf_port
from tests.harness.forwarding import until
from tests.harness.redis import Server
from tests.harness.turns import after

PASSWORD = "p@ss:/word"
TLS = Path(__file__).parents[2] / "harness" / "tls"


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Link]:
    """One to a server that is well."""
    async with opened(server.url) as made:
        yield made


@pytest.fixture
async def quick(own_server: Server) -> AsyncIterator[Link]:
    """One with the budget of production, to a server that will not be well."""
    async with opened(own_server.url, BUDGET_SECONDS) as made:
        yield made


def opened(url: str, budget_seconds: float = 5.0) -> contextlib.AbstractAsyncContextManager[Link]:
    """One for a block, by default with a budget that a busy machine does not exceed."""
    return contextlib.aclosing(Link(connector(url), budget_seconds))


async def say(link: Link, word: str) -> str:
    """What it is told, said by the server."""
    return (await link.ask("ECHO", word)).decode()


@pytest.mark.parametrize("way", ["url", "tcp_url"])
async def test_ways_to_a_server(server: Server, way: str) -> None:
    """A Unix socket and a port."""
    async with opened(getattr(server, way)) as link:
        assert await say(link, "a") == "a"


async def test_a_database_of_its_own(server: Server) -> None:
    """Its number is in the URL, as a path or, of a Unix socket, as a parameter."""
    for url in (f"{server.tcp_url}/5", f"{server.url}?db=5"):
        async with opened(url) as link:
            await link.ask("SET", "in5", "1")
    async with server.client() as client:
        assert await client.get("in5") is None
        await client.select(5)
        assert await client.get("in5") == "1"


async def test_a_password() -> None:
    """With it there are answers; without, or with another, there is a reason, and no secret in it."""
    with tempfile.TemporaryDirectory() as folder:
        async with servers.serving(Path(folder), "--requirepass", PASSWORD) as server:
            at = f"127.0.0.1:{server.port}"
            for url, word in (
                (f"redis://:p%40ss%3A%2Fword@{at}", ""),
                (f"redis://default:p%40ss%3A%2Fword@{at}", ""),
                (f"redis://:wrong-secret@{at}", "WRONGPASS"),
                (f"redis://{at}", "NOAUTH"),
                (server.url, "NOAUTH"),
            ):
                async with opened(url) as link:
                    if not word:
                        assert await say(link, "a") == "a"
                        continue
                    with pytest.raises(LinkError, match=word) as failed:
                        await say(link, "a")
                    for secret in ("secret", "127.0.0.1", str(server.port), folder):
                        assert secret not in str(failed.value)


async def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom nobody vouches for is not believed; whom the system's authorities know is."""
    options = ["--tls-cert-file", TLS / "localhost.pem", "--tls-key-file", TLS / "localhost.key"]
    with tempfile.TemporaryDirectory() as folder:
        port = servers.free_port()
        async with servers.serving(
            Path(folder), *map(str, options), "--tls-port", str(port), "--tls-auth-clients", "no"
        ):
            async with opened(f"rediss://localhost:{port}") as link:
                with pytest.raises(LinkError, match="its certificate is not believed"):
                    await say(link, "a")
            monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "localhost.pem"))
            async with opened(f"rediss://localhost:{port}") as link:
                assert await say(link, "a") == "a"


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://127.0.0.1:1", id="another scheme"),
        pytest.param("rediss://h?ssl_cert_reqs=none", id="TLS that believes anybody"),
        pytest.param("redis://h?socket_timeout=9", id="a time-out of its own"),
        pytest.param("redis://h:port", id="a port that is none"),
        pytest.param("unix:///s?db=x", id="a database that is none"),
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    """At the start, and without being quoted."""
    with pytest.raises(ValueError, match=r".") as refused:
        connector(url)
    assert url not in str(refused.value)


@pytest.mark.parametrize("how", ["tasks", "scopes"])
async def test_whoever_leaves_takes_nothing_along(link: Link, how: str) -> None:
    """Called off at any point of any command, nobody gets the answer of another."""
    dice = random.Random(how)  # noqa: S311 - for the order of things
    heard = left = 0

    async def ask(number: int) -> None:
        nonlocal heard, left
        word = f"{how}-{number}-" + "x" * dice.choice([1, 1, 1, 4_000])
        with anyio.CancelScope() as scope:
            if how == "scopes" and dice.random() < 0.5:
                after(dice.randrange(4), scope.cancel)
            assert await say(link, word) == word
            heard += 1
        left += scope.cancelled_caught

    for turn in range(30):
        tasks = [asyncio.create_task(ask(turn * 100 + number)) for number in range(30)]
        if how == "tasks":
            for task in tasks[::2]:
                after(dice.randrange(4), task.cancel)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(it is None or isinstance(it, asyncio.CancelledError) for it in done)
        left += sum(isinstance(it, asyncio.CancelledError) for it in done)
    assert heard > 100
    assert left > 50
    assert await say(link, "still") == "still"


async def test_a_frozen_server_costs_everybody_the_same_tenth_of_a_second(
    own_server: Server, quick: Link
) -> None:
    """All that wait are told at the first deadline, and the next connection is a new one."""
    assert await say(quick, "a") == "a"
    own_server.freeze()
    async with counting() as awake:
        answers = await asyncio.gather(
            *(say(quick, str(number)) for number in range(50)), return_exceptions=True
        )
        assert awake() < 0.3
    assert all(isinstance(answer, LinkError) for answer in answers)
    with pytest.raises(LinkError, match="in time"):
        await say(quick, "b")
    own_server.thaw()
    assert await say(quick, "c") == "c"


async def test_a_server_that_is_killed(own_server: Server, quick: Link) -> None:
    """Whoever waits is told at once; whoever comes, that nobody is there; then it is back."""
    assert await say(quick, "a") == "a"
    own_server.freeze()
    waiting = asyncio.create_task(say(quick, "b"))
    await asyncio.sleep(0)
    await own_server.kill()
    with pytest.raises(LinkError):
        await waiting
    with pytest.raises(LinkError, match=r"^refused$"):
        await say(quick, "c")
    await own_server.start()
    assert await say(quick, "d") == "d"


async def test_a_connection_that_the_server_closes_while_idle(server: Server, link: Link) -> None:
    """Servers close what is idle: the next command has a new connection, and nobody notices."""
    assert await say(link, "a") == "a"
    session = link._session
    assert session is not None
    async with server.client() as client:
        await client.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: session.ended)
    assert await say(link, "b") == "b"


async def test_a_loop_that_was_held_up_is_not_the_servers_doing(quick: Link) -> None:
    """Whoever reads a large body holds up the loop for longer than the budget: no failure."""
    assert await say(quick, "a") == "a"
    session = quick._session
    assert session is not None
    for _ in range(3):
        asked = [asyncio.create_task(say(quick, str(number))) for number in range(5)]
        while not session._waiting or session._unsent:  # noqa: ASYNC110 - turns, and no time
            await asyncio.sleep(0)
        # The commands are sent, and the answers on their way.
        time.sleep(2 * BUDGET_SECONDS)  # noqa: ASYNC251 - that is what holds the loop up
        assert await asyncio.gather(*asked) == ["0", "1", "2", "3", "4"]


async def test_an_error_is_an_answer(link: Link) -> None:
    """The next command is answered on the same connection."""
    await link.ask("SET", "text", "x")
    session = link._session
    for command, code in (
        (("ZADD", "text", "1", "a"), "WRONGTYPE"),
        (("NOSUCH",), "ERR"),
        (("EVALSHA", "0" * 40, "0"), "NOSCRIPT"),
        (("EVAL", "return 1", "0"), "integer"),
        (("EVAL", "return nil", "0"), "nil"),
    ):
        with pytest.raises(AnsweredError) as answered:
            await link.ask(*command)
        assert answered.value.code == code
    assert await say(link, "a") == "a"
    assert link._session is session


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="another protocol"),
        pytest.param(b"+OK\r\n" * 5, id="answers that nobody asked for"),
        pytest.param(b"$x\r\n", id="a length that is none"),
        pytest.param(b"$-7\r\nabc\r\n", id="a length below zero"),
        pytest.param(b"$3\r\nab", id="half an answer"),
        pytest.param(b"$99999999999\r\nab", id="a length without end"),
        pytest.param(b"+" + b"x" * 200_000, id="a line without end"),
        pytest.param(b"$4097\r\n" + b"x" * 4097 + b"\r\n", id="an answer that is too long"),
        pytest.param(b"*1\r\n" * 800, id="lists in lists"),
        pytest.param(b":" + b"9" * 6_000 + b"\r\n", id="a number without end"),
        pytest.param(b"-" + b"x" * 3_000 + b" \r\n", id="a long word for an error"),
        pytest.param(b"-LOADING the dataset\r\n", id="it is not there yet"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_a_server_that_is_none(says: bytes) -> None:
    """Whatever it says: a reason in time, and nothing raised elsewhere."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
            writer.write(says)
            if not says.endswith(b"ab"):
                await reader.read()
        except ConnectionError:
            pass  # it was left in the middle of what it said
        finally:
            writer.close()
            ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened(f"redis://127.0.0.1:{port}", BUDGET_SECONDS) as link, counting() as awake:
        answers = await asyncio.gather(*(say(link, "a") for _ in range(3)), return_exceptions=True)
        assert all(isinstance(answer, LinkError | str) for answer in answers)
        assert "a" not in answers
        assert awake() < 0.3
    await ended.wait()
    server.close()


@pytest.mark.parametrize(
    ("bytes_", "ends"),
    [
        pytest.param(0, False, id="nothing"),
        pytest.param(1, True, id="one byte"),
        pytest.param(100_000_000, True, id="a hundred million"),
    ],
)
async def test_what_is_said_while_nobody_asks(bytes_: int, ends: bool) -> None:
    """Ends the connection, and is not kept: a server may not fill our memory."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"+a\r\n")
        await told.wait()
        try:
            for _ in range(0, bytes_, 100_000):
                writer.write(b"x" * min(bytes_, 100_000))
                await writer.drain()
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()
            gone.set()

    told = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with opened(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}") as link:
        assert await say(link, "a") == "a"
        session = link._session
        assert session is not None
        told.set()
        if ends:
            await gone.wait()
            await until(lambda: session.ended)
        else:
            await asyncio.sleep(0)
            assert not session.ended
    await gone.wait()
    server.close()


async def test_a_name_server_that_hangs() -> None:
    """The connection is given up in time, also by those that come later."""
    hanging = threading.Event()
    names = Names(lambda _host: [str(hanging.wait(30))])
    link = Link(connector("redis://somewhere:6379", names), BUDGET_SECONDS)
    for _ in range(3):
        with pytest.raises(LinkError, match="in time"):
            await say(link, "a")
    hanging.set()
    await link.aclose()


@pytest.mark.parametrize(
    ("addresses", "answers"),
    [
        pytest.param(["127.0.0.1"], True, id="the one"),
        pytest.param(["127.0.0.2", "127.0.0.1"], True, id="the second"),
        pytest.param(["127.0.0.2"], False, id="another"),
        pytest.param([], False, id="none"),
    ],
)
async def test_a_name_with_addresses(server: Server, addresses: list[str], answers: bool) -> None:
    """The first that takes it."""
    link = Link(connector(f"redis://somewhere:{server.port}", Names(lambda _host: addresses)), 5.0)
    async with contextlib.aclosing(link):
        if answers:
            assert await say(link, "a") == "a"
        else:
            with pytest.raises(LinkError, match="refused" if addresses else "unreachable"):
                await say(link, "a")


async def test_an_address_that_swallows_everything(server: Server) -> None:
    """The name's other one is asked soon: within the time of a command, if nothing else is slow."""
    names = Names(lambda _host: ["127.0.0.2", "127.0.0.1"])
    link = Link(connector(f"redis://somewhere:{server.port}", names), 5.0)
    with deaf_port("127.0.0.2", server.port):
        async with contextlib.aclosing(link), counting() as awake:
            assert await say(link, "a") == "a"
            assert awake() < 2


async def test_a_host_that_is_nowhere() -> None:
    """A name that nobody knows, and an address that swallows everything, are not waited for."""
    for host in ("nowhere.invalid", "192.0.2.1"):
        async with opened(f"redis://{host}:6379", BUDGET_SECONDS) as link:
            async with counting() as awake:
                with pytest.raises(LinkError) as failed:
                    await say(link, "a")
                assert awake() < 0.3
            assert host not in str(failed.value)


async def test_the_end(link: Link, server: Server) -> None:
    """Whoever waits is told so, and the connection is closed."""
    waiting = asyncio.create_task(say(link, "a"))
    await asyncio.sleep(0)
    await link.aclose()
    with pytest.raises(LinkError, match="ending"):
        await waiting
    async with server.client() as client:
        others = [it for it in await client.client_list() if it["cmd"] != "client|list"]
    assert others == []
