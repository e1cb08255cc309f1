"""What runs under valgrind: ``python -m bench.counting.counted MARKS FOLDER``.

The whole product, a bare uvicorn and nothing at all are asked the same by the same client. Between two
of its marks is what so many requests or events have taken; what that is of the product alone, somebody
else works out (``instructions.py``).

With ``calls`` in place of MARKS it counts calls of functions instead, without valgrind: where a request
goes through more of them, the module tells which stage has grown.
"""

import asyncio
import ctypes
import dataclasses
import gc
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry, disable_created_metrics

from bench.counting.loopback import PLAIN, Client, Plan, Upstream
from bench.dataplane import traffic
from proxy import app

REQUESTS, EVENTS = 200, 500
"""N: each part is run with N of them and with 2 N, so that what it takes to begin cancels out."""
_WARM = 40
_HOST = "127.0.0.1"


class Marks:
    """Cuts what callgrind counts into parts."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.start_counting()

    def begin(self) -> None:
        """From here on it counts."""
        self._library.forget()

    def end(self, name: str) -> None:
        """Until here, under this name."""
        self._library.cut(name.encode())


class Calls:
    """Counts calls of functions by their modules, in place of instructions."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._parts: dict[str, Counter[str]] = {}
        self._counts: Counter[str] = Counter()

    def begin(self) -> None:
        """From here on it counts."""
        self._counts = Counter()
        sys.setprofile(self._note)

    def end(self, name: str) -> None:
        """Until here, under this name."""
        sys.setprofile(None)
        self._parts[name] = self._counts
        self._target.write_text(json.dumps(self._parts))

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self._counts[frame.f_globals.get("__name__", "?")] += 1
        elif event == "c_call":
            self._counts[f"{argument.__module__ or 'built in'} (C)"] += 1


def main() -> None:
    """Runs all parts."""
    library, folder = sys.argv[1], Path(sys.argv[2])
    disable_created_metrics()  # type: ignore[no-untyped-call]
    uvicorn.Server.main_loop = _still  # type: ignore[assignment,method-assign]
    marks = Calls(folder / "calls.json") if library == "calls" else Marks(library)
    with Path(os.devnull).open("wb") as log:
        uvloop.run(_parts(marks, folder, log))


async def _still(server: uvicorn.Server) -> None:
    """In place of a look at the clock ten times a second, which is work that no request has made."""
    await server.on_tick(0)
    while not server.should_exit:  # noqa: ASYNC110 - never looked at but at the end
        await asyncio.sleep(3600)


async def _parts(marks: Marks | Calls, folder: Path, log: BinaryIO) -> None:
    plan = Plan()
    loop = asyncio.get_running_loop()
    upstream = await loop.create_server(lambda: Upstream(plan), _HOST, 0)
    upstream_port: int = upstream.sockets[0].getsockname()[1]
    running: set[asyncio.Task[int]] = set()
    ports = {
        "direct": upstream_port,
        "bare": await _bare(),
        "product": await _product(upstream_port, folder, log, running),
        "plain": await _product(upstream_port, folder, log, running, write_through=False),
    }
    gc.collect()
    gc.freeze()
    for name, port in ports.items():
        if name != "plain":
            plan.events = 0
            client = await _client(port, plan, stream=False)
            await _counted(marks, f"{name}-request", REQUESTS, client.ask)
        if name == "bare":
            continue
        stream = await _client(port, plan, stream=True)

        async def ask(events: int, stream: Client = stream) -> None:
            plan.events = events
            await stream.ask(1)

        await _counted(marks, f"{name}-event", EVENTS, ask)
    # Nothing of the end is of interest, least of all the seconds that a drain takes here.
    sys.stdout.flush()
    os._exit(0)


async def _counted(
    marks: Marks | Calls, name: str, count: int, ask: Callable[[int], Awaitable[None]]
) -> None:
    await ask(_WARM)
    for times in (1, 2):
        gc.collect()
        marks.begin()
        await ask(times * count)
        marks.end(f"{name}-{times}")


async def _client(port: int, plan: Plan, *, stream: bool) -> Client:
    body = traffic.body(stream=stream)
    head = (
        f"POST {traffic.CHAT} HTTP/1.1\r\nhost: {_HOST}:{port}\r\n"
        f"authorization: Bearer {traffic.KEY}\r\nuser-agent: OpenAI/Python 3.57.0\r\n"
        "accept: application/json\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: Client(plan, request), _HOST, port
    )
    return client


async def _bare() -> int:
    """The yardstick: an application that only reads and answers, on the server that ours is made of."""
    body = PLAIN.partition(b"\r\n\r\n")[2]
    length = str(len(body)).encode()

    async def answer(_scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        answer, host=_HOST, port=0, http="httptools", lifespan="off", log_level="error"
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


async def _product(
    upstream_port: int,
    folder: Path,
    log: BinaryIO,
    running: set[asyncio.Task[int]],
    *,
    write_through: bool = True,
) -> int:
    """All of it but what runs beside the requests: that works by the clock."""
    keys = folder / "keys.toml"
    keys.write_text(
        f'[[key]]\nid = "{traffic.KEY.split("-")[2]}"\nname = "bench"\n'
        f'sha256 = "{hashlib.sha256(traffic.KEY.encode()).hexdigest()}"\n'
        "requests_per_minute = 1000000\ntokens_per_minute = 10000000000\n"
        "tokens_per_day = 10000000000\nconcurrency = 64\n"
    )
    keys.chmod(0o600)
    settings, store = app.configure(
        {
            "PROXY_PORT": "0",
            "PROXY_ADMIN_PORT": "0",
            "PROXY_UPSTREAM_URL": f"http://{_HOST}:{upstream_port}",
            "PROXY_KEYS_FILE": str(keys),
            "PROXY_KV_BUDGET_TOKENS": "100000000",
            "PROXY_WRITE_THROUGH": str(write_through),
        }
    )
    whole = app.build(
        settings,
        store,
        registry=CollectorRegistry(),
        log_stream=log,
    )
    bulwark = dataclasses.replace(whole, attendants=[])
    public, admin = app.bind(settings)
    ready = asyncio.Event()
    serving = asyncio.create_task(
        bulwark.serve(public, admin, on_ready=ready.set, stop=asyncio.Event())
    )
    listening = asyncio.create_task(ready.wait())
    await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    running.add(serving)
    port: int = public.getsockname()[1]
    return port


if __name__ == "__main__":
    main()
