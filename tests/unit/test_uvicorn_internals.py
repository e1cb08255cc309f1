"""Every internal of uvicorn and httptools that ``proxy.server`` builds on.

uvicorn is pinned exactly because of these. When a new version fails here, read the part of
``proxy/server`` that is named, and then change the pin.
"""

import asyncio
import inspect
import logging
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
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


def made_cycle(
    transport: FakeTransport, logger: logging.Logger, flow: FlowControl | None = None
) -> Any:
    """The cycle of uvicorn itself."""
    return RequestResponseCycle(
        scope={"method": "GET"},  # type: ignore[typeddict-item]
        transport=transport,
        flow=flow or FlowControl(transport),
        logger=logger,
        access_logger=logger,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: transport.done.append("on_response"),
    )


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
        ("on_response_complete", []),
        ("timeout_keep_alive_handler", []),
        ("_unset_keepalive_if_required", []),
        ("_start_asgi_task", ["cycle", "app"]),
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
    assert made.expect_100_continue is False


async def test_a_message_begins_with_a_fresh_scope() -> None:
    """Whose headers are the protocol's own list: a trailer must not get there."""
    made, _ = made_protocol()
    made.on_message_begin()
    assert made.url == b""
    assert made.scope["headers"] is made.headers
    assert {"type", "asgi", "server", "client", "scheme", "root_path", "state"} <= set(made.scope)
    assert made.scope["state"] == {"a": 1}
    made.on_url(b"/a")
    made.on_url(b"b")
    made.on_header(b"X-A", b"B")
    made.on_header(b"Expect", b"100-Continue")
    assert made.url == b"/ab"
    assert made.headers == [(b"x-a", b"B"), (b"expect", b"100-Continue")]
    assert made.expect_100_continue is True


async def test_a_body_pauses_reading_and_nothing_but_receive_resumes_it() -> None:
    """Which is why ours resumes at the end of the body."""
    made, transport = made_protocol()
    made.cycle = made_cycle(transport, logging.getLogger(), made.flow)
    made.on_body(b"x" * HIGH_WATER_LIMIT)
    assert transport.done == []
    made.on_body(b"x")
    assert made.flow.read_paused
    made.on_message_complete()
    assert transport.done == ["pause"]
    assert made.cycle.more_body is False
    assert len((await made.cycle.receive())["body"]) == HIGH_WATER_LIMIT + 1  # type: ignore[typeddict-item]
    assert transport.done == ["pause", "resume"]


async def test_a_complete_response_arms_the_keep_alive() -> None:
    """And counts, and resumes reading; nothing of it where the transport closes."""
    made, transport = made_protocol()
    made.flow.pause_reading()
    made.on_response_complete()
    assert made.server_state.total_requests == 1
    assert transport.done == ["pause", "resume"]
    assert made.timeout_keep_alive_task is not None
    made._unset_keepalive_if_required()
    assert made.timeout_keep_alive_task is None
    transport.close()
    made.on_response_complete()
    assert made.server_state.total_requests == 2
    assert made.timeout_keep_alive_task is None


async def test_a_lost_connection_is_a_disconnect() -> None:
    """For the cycle that is not complete; a paused writer goes on."""
    made, transport = made_protocol()
    made.cycle = made_cycle(transport, logging.getLogger())
    made.pause_writing()
    assert made.flow.write_paused
    made.connection_lost(None)
    assert made.cycle.disconnected
    assert made.cycle.message_event.is_set()
    assert not made.flow.write_paused
    assert made.connections == set()
    assert await made.cycle.receive() == {"type": "http.disconnect"}
    await made.cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    assert transport.written == b""


async def test_a_task_is_tracked() -> None:
    """``_start_asgi_task`` runs the cycle's ``run_asgi``."""
    made, transport = made_protocol()
    made._start_asgi_task(made_cycle(transport, logging.getLogger("test")), application)
    assert len(made.tasks) == 1
    await asyncio.wait(made.tasks)
    await asyncio.sleep(0)
    assert made.tasks == set()


async def test_a_cycle_closes_its_own_transport_and_then_tells() -> None:
    """Ours gives it a transport whose ``close`` is the protocol's."""
    transport = FakeTransport()
    cycle = made_cycle(transport, logging.getLogger())
    cycle.keep_alive = False
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    assert cycle.response_started
    assert cycle.chunked_encoding is True
    assert b"connection: close\r\n" in transport.written
    await cycle.send({"type": "http.response.body", "body": b""})
    assert cycle.response_complete
    assert transport.done == ["close", "on_response"]


async def test_a_cycle_without_a_length_and_not_chunked_counts_down() -> None:
    """Which is how ours frames an answer by HTTP/1.0."""
    transport = FakeTransport()
    cycle = made_cycle(transport, logging.getLogger())
    cycle.chunked_encoding = False
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    assert b"transfer-encoding" not in transport.written
    cycle.expected_content_length = 3
    await cycle.send({"type": "http.response.body", "body": b"one", "more_body": True})
    assert cycle.expected_content_length == 0
    assert transport.written.endswith(b"\r\n\r\none")


class CrashError(Exception):
    """What an application raises."""


async def test_a_crash_goes_to_the_logger_and_the_500_to_its_own_method() -> None:
    """Both of which ours replaces."""
    logged: list[tuple[Any, Any]] = []

    class Log:
        def error(self, message: str, *args: object, exc_info: object = None) -> None:
            logged.append((message, exc_info))

    async def crash(*_: object) -> None:
        raise CrashError

    transport = FakeTransport()
    cycle = made_cycle(transport, Log())  # type: ignore[arg-type]
    await cycle.run_asgi(crash)
    [(message, exc_info)] = logged
    assert message == "Exception in ASGI application\n"
    assert isinstance(exc_info, CrashError)
    assert transport.written.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert inspect.iscoroutinefunction(RequestResponseCycle.send_500_response)


async def test_a_cycle_that_is_disconnected_may_end_anyhow() -> None:
    """Without a log line: an answer that was broken off is no bug."""
    transport = FakeTransport()
    cycle = made_cycle(transport, None)  # type: ignore[arg-type] # it would fail if it logged
    cycle.disconnected = True
    await cycle.run_asgi(application)
    assert transport.done == []


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
