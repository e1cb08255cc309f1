"""A tunnel's edge: what stands between a client on the internet and Bulwark, emulated.

It is an emulation, by what their operators document and their users report: fields are added to
each request, connections to the origin are pooled, and a connection on which nothing comes from the
origin for a while (100 s at the best-known one; scaled here) is given up. Then the client gets a 524
if no head of an answer has come yet, and a cut connection otherwise.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

ADDED = (
    b"Cf-Connecting-Ip: 203.0.113.7\r\nX-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\n"
    b"Cf-Ray: 8f0000000000abcd-FRA\r\nCdn-Loop: edge; loops=1\r\nCf-Ipcountry: DE\r\n"
    b'Cf-Visitor: {"scheme":"https"}\r\nAccept-Encoding: gzip, br\r\n'
)
"""The fields that the edge adds to a request."""

GIVEN_UP = json.dumps({"edge": "the origin was silent"}).encode()
_524 = (
    b"HTTP/1.1 524 A Timeout Occurred\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(GIVEN_UP), GIVEN_UP)
)


@dataclass(slots=True)
class Edge:
    """An edge that listens.

    Attributes:
        port: Where clients connect.
        silence_seconds: How long the origin may say nothing.
        given_up: How many connections it has given up for that.
    """

    port: int
    silence_seconds: float
    given_up: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)


@contextlib.asynccontextmanager
async def in_front_of(origin_port: int, silence_seconds: float) -> AsyncIterator[Edge]:
    """An edge for the requests of one client connection each, one after the other."""
    edge = Edge(0, silence_seconds)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        edge._tasks.add(task)
        task.add_done_callback(edge._tasks.discard)
        origin_reader, origin_writer = await asyncio.open_connection("127.0.0.1", origin_port)
        try:
            await _exchange(edge, reader, writer, origin_reader, origin_writer)
        finally:
            origin_writer.transport.abort()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    edge.port = server.sockets[0].getsockname()[1]
    try:
        yield edge
    finally:
        server.close()
        for task in tuple(edge._tasks):
            task.cancel()
        await asyncio.gather(*edge._tasks, return_exceptions=True)


async def _exchange(
    edge: Edge,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    origin_reader: asyncio.StreamReader,
    origin_writer: asyncio.StreamWriter,
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    origin_writer.write(head[:-2] + ADDED + b"\r\n")
    upload = asyncio.create_task(_pass(reader, origin_writer))
    answered = False
    try:
        while True:
            try:
                async with asyncio.timeout(edge.silence_seconds):
                    piece = await origin_reader.read(65_536)
            except TimeoutError:
                edge.given_up += 1
                if answered:
                    writer.transport.abort()
                else:
                    writer.write(_524)
                return
            if not piece:
                return
            answered = True
            writer.write(piece)
    finally:
        upload.cancel()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The rest of the request; a client that leaves takes the origin's connection with it."""
    while piece := await reader.read(65_536):
        writer.write(piece)
    writer.transport.abort()
