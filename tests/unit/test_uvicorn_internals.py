"""Every internal of uvicorn and httptools that ``proxy.server`` builds on.

uvicorn is pinned exactly because of these. When a new version fails here, read the part of
``proxy/server`` that is named, and then change the pin.
"""

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import Server, ServerState

from proxy.server.connection import Connection
from proxy.server.protocol import BulwarkProtocol


class FakeTransport(asyncio.Transport):
    """Remembers what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.written = b""

    def write(self, data: Any) -> None:
        """Keeps it."""
        self.written += data

    def close(self) -> None:
        """Notes it."""
        self.done.append("close")

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return "close" in self.done

    def pause_reading(self) -> None:
        """Notes it."""
        self.done.append("pause")

    def resume_reading(self) -> None:
        """Notes it."""
        self.done.append("resume")


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Does nothing."""


def made_protocol() -> tuple[HttpToolsProtocol, FakeTransport]:
    """The protocol of uvicorn itself, with a connection."""
    config = Config(
        application,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
    )
    made = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={"a": 1})
    transport = FakeTransport()
    made.connection_made(transport)
    return made, transport


def test_the_version_is_the_one_that_was_read() -> None:
    """And the one that is pinned."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert version("uvicorn") == uvicorn.__version__ == "0.54.0"
    assert "uvicorn==0.54.0" in project["project"]["dependencies"]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("__init__", ["config", "server_state", "app_state", "_loop"]),
        ("connection_made", ["transport"]),
        ("connection_lost", ["exc"]),
        ("eof_received", []),
        ("data_received", ["data"]),
        ("shutdown", []),
        ("pause_writing", []),
        ("resume_writing", []),
        ("on_message_begin", []),
        ("on_url", ["url"]),
        ("on_header", ["name", "value"]),
        ("on_headers_complete", []),
        ("on_body", ["body"]),
        ("on_message_complete", []),
        ("_unset_keepalive_if_required", []),
    ],
)
def test_the_protocol_has_the_methods(method: str, parameters: list[str]) -> None:
    """That ours overrides or calls, with these parameters."""
    found = inspect.signature(getattr(HttpToolsProtocol, method)).parameters
    assert [name for name in found if name != "self"] == parameters


def test_nothing_else_of_the_protocol_reacts_to_bytes() -> None:
    """A new callback or event would go past ours."""
    ours = {
        name
        for part in (BulwarkProtocol, Connection)
        for name in vars(part)
        if not name.startswith("_")
    }
    theirs = {
        name
        for name, value in vars(HttpToolsProtocol).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert theirs - ours == {
        "timeout_keep_alive_handler",  # armed by their on_response_complete only
        "on_response_complete",  # called by their cycle only
        "send_400_response",  # called by their data_received only
        "handle_websocket_upgrade",  # the same
    }


async def test_the_protocol_has_the_attributes() -> None:
    """That ours reads or sets."""
    made, transport = made_protocol()
    assert made.app is application
    assert made.loop is asyncio.get_running_loop()
    assert isinstance(made.parser, httptools.HttpRequestParser)
    assert isinstance(made.flow, FlowControl)
    assert made.transport is transport
    assert made.connections is made.server_state.connections == {made}
    assert made.tasks is made.server_state.tasks
    assert made.client is None
    assert made.cycle is None
    assert made.timeout_keep_alive == 5
    assert made.timeout_keep_alive_task is None
    assert (made.server, made.scheme) == (None, "http")
    assert (made.asgi_version, made.root_path, made.app_state) == ("3.0", "", {"a": 1})


async def test_a_lost_connection_is_forgotten() -> None:
    """Where there is no cycle to tell, which ours takes away before; a paused writer goes on."""
    made, transport = made_protocol()
    made.pause_writing()
    assert made.flow.write_paused
    made.connection_lost(None)
    assert transport.done == ["close"]
    assert not made.flow.write_paused
    assert made.connections == set()


async def test_a_drain_asks_the_cycle_for_two_things() -> None:
    """Whether its answer is complete, and to close behind it; ours has both by these names."""

    class Cycle:
        response_complete = False
        keep_alive = True

    made, transport = made_protocol()
    made.cycle = Cycle()  # type: ignore[assignment]
    made.shutdown()
    assert made.cycle.keep_alive is False
    assert transport.done == []
    made.cycle.response_complete = True
    made.shutdown()
    assert transport.done == ["close"]


async def test_the_flow_waits_for_room() -> None:
    """And stops reading only once."""
    transport = FakeTransport()
    flow = FlowControl(transport)
    await flow.drain()
    flow.pause_writing()
    waits = asyncio.ensure_future(flow.drain())
    await asyncio.sleep(0)
    assert not waits.done()
    flow.resume_writing()
    await waits
    flow.pause_reading()
    flow.pause_reading()
    flow.resume_reading()
    flow.resume_reading()
    assert transport.done == ["pause", "resume"]


def test_each_status_has_its_line() -> None:
    """With a phrase where there is one."""
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"
    assert STATUS_LINE[599] == b"HTTP/1.1 599 \r\n"


class CrashError(Exception):
    """What a callback raises."""


def test_the_server_has_the_parts() -> None:
    """That ours overrides or sets."""
    server = Server(Config(application, log_config=None))
    assert server.should_exit is False
    assert server.force_exit is False
    assert isinstance(server.server_state, ServerState)
    assert list(inspect.signature(Server.serve).parameters) == ["self", "sockets"]
    assert list(inspect.signature(Server.startup).parameters) == ["self", "sockets"]
    assert "capture_signals" in inspect.getsource(Server.serve)
    assert "force_exit" in inspect.getsource(Server._wait_tasks_to_complete)
    assert "connection.shutdown()" in inspect.getsource(Server.shutdown)
    assert "config.http_protocol_class(" in inspect.getsource(Server.startup)


class Callbacks:
    """What httptools calls; one of them may raise."""

    def __init__(self, raises: str = "") -> None:
        self.raises = raises
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def callback(*_: object) -> None:
            self.called.append(name)
            if name == self.raises:
                raise CrashError

        return callback


@pytest.mark.parametrize(
    "raises", ["on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body"]
)
def test_the_parser_stops_where_a_callback_raises(raises: str) -> None:
    """With its own error, at once: ours keeps the reason aside."""
    callbacks = Callbacks(raises)
    parser = httptools.HttpRequestParser(callbacks)
    with pytest.raises(httptools.HttpParserError):
        parser.feed_data(b"POST / HTTP/1.1\r\nA: b\r\nContent-Length: 2\r\n\r\n{}")
    assert callbacks.called[-1] == raises


def test_the_parser_says_where_the_other_protocol_would_begin() -> None:
    """After the head, with the body counted as the other protocol's."""
    callbacks = Callbacks()
    parser = httptools.HttpRequestParser(callbacks)
    head = b"POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as info:
        parser.feed_data(head + b"{}")
    assert info.value.args == (len(head),)
    assert not isinstance(info.value, httptools.HttpParserError)
    assert parser.should_upgrade()
    assert "on_body" not in callbacks.called


def test_the_parser_has_no_callback_for_a_trailer_of_its_own() -> None:
    """It comes as a header after the body: ours counts and drops it."""
    callbacks = Callbacks()
    parser = httptools.HttpRequestParser(callbacks)
    parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    callbacks.called.clear()
    parser.feed_data(b"2\r\n{}\r\n0\r\nX: 1\r\n\r\n")
    assert callbacks.called[-3:] == ["on_header", "on_chunk_complete", "on_message_complete"]
