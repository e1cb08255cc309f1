"""A process that is out of descriptors."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys

from tests.harness.client import RawClient
from tests.harness.programs import started
from tests.harness.running import BEARER, KEY

SERVER = """
import asyncio, resource, uvloop
from proxy.server import listeners
from proxy.server.protocol import ProtocolLimits, protocol

resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})

async def main():
    sockets = [listeners.bind("127.0.0.1", 0, "PROXY_PORT") for _ in range(2)]
    await listeners.serve(
        app, app, http_protocol=protocol(ProtocolLimits(), lambda *_: None),
        public_socket=sockets[0], admin_socket=sockets[1], drain_seconds=1,
        on_ready=lambda: print(sockets[0].getsockname()[1], flush=True),
        on_drain=lambda: None, on_deadline=lambda: None,
    )

uvloop.run(main())
"""


async def test_a_server_out_of_descriptors_survives() -> None:
    """The newest are closed, the others stay; when they leave it serves again, and drains."""
    process = subprocess.Popen(  # noqa: ASYNC220, S603 - a real process, and its limit is its own
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        clients = [await RawClient.open("127.0.0.1", port) for _ in range(60)]
        assert await clients[-1].read_until_closed() == b""
        assert process.poll() is None
        for client in clients:
            client.close()

        async def served() -> bool:
            with contextlib.suppress(Exception):
                async with await RawClient.open("127.0.0.1", port) as client:
                    return (await client.request("GET", "/")).status == 200
            return False

        async with asyncio.timeout(10):
            while not await served():
                pass
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
        assert (process.returncode, "Traceback" in errors) == (0, False)
    finally:
        process.kill()
        process.wait()


async def test_strangers_do_not_take_all_descriptors() -> None:
    """Where the system has fewer than the settings want, places are fewer too, and the idle give way."""
    limited = f"ulimit -n 400; exec '{sys.executable}' -m proxy serve"
    settings = {
        "PROXY_API_KEYS": KEY,
        "PROXY_PORT": "0",
        "PROXY_ADMIN_PORT": "0",
        "PROXY_MAX_CONNECTIONS_PER_ADDRESS": "0",
        "PROXY_UPSTREAM_URL": "http://127.0.0.1:1",
    }
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(started("sh", "-c", limited, env=settings))
        assert server.stdout is not None
        few, listening = [json.loads(await server.stdout.readline()) for _ in range(2)]
        assert (few["event"], few["limit"]) == ("few_descriptors", 400)
        assert 50 < few["connections"] < 200
        port = int(listening["public"].rpartition(":")[2])

        async def connect() -> RawClient:
            return await stack.enter_async_context(await RawClient.open("127.0.0.1", port))

        client = await connect()
        assert (await client.request("GET", "/nope", BEARER)).status == 404
        for _ in range(450):
            await (await connect()).send(b"GET / HT")
        assert (await (await connect()).request("GET", "/healthz")).status == 200
        assert (await client.request("GET", "/nope", BEARER)).status == 404
