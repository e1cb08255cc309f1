"""Whoever reads the log may sleep: requests are served all the same, and what is missing is told."""

import asyncio
import json
import os
from typing import Any

from prometheus_client import CollectorRegistry

from proxy import app
from proxy.app import Bulwark
from proxy.config import load

ENVIRON = {"PROXY_ALLOW_ANONYMOUS": "true", "PROXY_LOG_LEVEL": "debug"}
REQUESTS = 3_000  # of which each writes 500 bytes: more than pipe and buffer hold together


async def probed(bulwark: Bulwark) -> int:
    """The status of one request."""
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/healthz",
        "raw_path": b"/healthz",
        "query_string": b"",
        "headers": [],
        "client": ("192.0.2.1", 1),
        "server": ("192.0.2.2", 80),
        "extensions": {},
    }
    await bulwark.public(scope, receive, send)
    (status,) = statuses
    return status


async def test_a_reader_that_sleeps_holds_no_request_up() -> None:
    """All are answered; it finds whole lines in order, and how many there are not."""
    out, into = os.pipe()
    with os.fdopen(out, "rb") as reader, os.fdopen(into, "wb") as stream:
        settings = load(ENVIRON)
        bulwark = app.build(
            settings, app.key_store(settings), registry=CollectorRegistry(), log_stream=stream
        )
        async with asyncio.timeout(30):
            for _ in range(REQUESTS):
                assert await probed(bulwark) == 200
                await asyncio.sleep(0)
            lines: list[dict[str, Any]] = []
            while not lines or lines[-1]["event"] == "request":
                lines.append(json.loads(await asyncio.to_thread(reader.readline)))
        for close in bulwark.closing:
            await close()
    assert len({line["request_id"] for line in lines[:-1]}) == len(lines) - 1
    times = [line["timestamp"] for line in lines]
    assert times == sorted(times)
    assert lines[-1]["event"] == "log_lines_dropped"
    assert lines[-1]["lines"] == REQUESTS - (len(lines) - 1) > 0
