"""The browser, and the pages that it opens: both of them of other origins than the proxy."""

import asyncio
import mimetypes
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import javascript
from tests.harness.javascript import Program

HERE = Path(__file__).parent
PAGE = b"<!doctype html><title>a page</title>"


@dataclass(frozen=True, slots=True)
class Pages:
    """Where a page is served: under two names, so that it is of two origins."""

    listed: str
    other: str


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An empty page, and under ``/openai`` the SDK's modules as its package has them."""
    head = await reader.readuntil(b"\r\n\r\n")
    path = head.split(b" ", 2)[1].decode()
    body, kind = PAGE, "text/html"
    if path.startswith("/openai/"):
        body = (javascript.home() / "node_modules" / path[1:]).read_bytes()
        kind = mimetypes.types_map[".js"]
    fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
    writer.write(f"HTTP/1.1 200 OK\r\n{fields}\r\n\r\n".encode() + body)
    await writer.drain()
    writer.close()


@pytest.fixture(scope="module")
async def pages() -> AsyncIterator[Pages]:
    """The page, served for the tests of a module."""
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield Pages(listed=f"http://127.0.0.1:{port}", other=f"http://localhost:{port}")


@pytest.fixture(scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    """The browser, driven by a program."""
    folder = tmp_path_factory.mktemp("browser")
    async with javascript.program(HERE / "browser.mjs", folder) as program:
        yield program
