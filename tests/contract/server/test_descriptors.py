"""A process that is out of descriptors."""

import asyncio
import contextlib
import signal
import subprocess
import sys

from tests.harness.client import RawClient

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
