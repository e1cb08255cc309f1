"""A client may ask again the moment it has every byte of an answer."""

import asyncio
import sys

import pytest

from tests.harness import upstream as upstreams
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch

pytestmark = pytest.mark.both_ways

CLIENT = """
import concurrent.futures, socket, sys

port, clients, requests = map(int, sys.argv[1:])
request = sys.stdin.buffer.read()

def ask(client):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        for answered in range(requests):
            sock.sendall(request)
            received, missing = b"", 1
            while missing > 0:
                piece = sock.recv(65536)
                if not piece:
                    return f"closed after {answered} answers"
                received += piece
                head, end, body = received.partition(b"\\r\\n\\r\\n")
                if end:
                    length = head.lower().partition(b"content-length: ")[2].split() or [b"0"]
                    missing = int(length[0]) - len(body)

with concurrent.futures.ThreadPoolExecutor(clients) as pool:
    sys.exit("; ".join(filter(None, pool.map(ask, range(clients)))) or 0)
"""
"""Clients that ask again the moment they can. In a process of its own, and several, so that the
server has something else to do between the last byte of an answer and its end."""

CLIENTS = 16
REQUESTS = 50


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(upstreams.response(upstreams.COMPLETION), id="with a body"),
        pytest.param(upstreams.response(b""), id="with an empty body"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", id="without a body"),
    ],
)
async def test_no_request_is_taken_for_pipelined(proxy: Launch, reply: bytes) -> None:
    """Its predecessor's answer must not be pending any more: such a request would be dropped."""
    running = await proxy()
    running.upstream.reply = [reply]
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, str(running.port), str(CLIENTS), str(REQUESTS)),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    request = request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)
    _, complaint = await client.communicate(request)
    assert (client.returncode, complaint.decode()) == (0, "")
