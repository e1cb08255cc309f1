"""The proxy in front of real engines, with a tap between them.

A test that wants an engine is run once for each kind; ``live`` starts a proxy in front of it::

    async def test_a_chat(live: Live, engine: Engine, figures: Figures) -> None:
        running = await live(max_output_tokens=10)        # settings, as in the contract tests
        response = await running.chat(b'{"model":"m", ...}')   # "m" is a model of every engine
        assert running.upstream.requests[0].json()["max_tokens"] == 10   # what the tap saw
        bytes_of_the_engine = tap_of(running).answers[0]
        direct = await engine.ask("POST", CHAT, body)      # past the proxy
        await engine.idle(within=1.0)                      # nothing runs, nothing waits in it
        figures.add("Chats", engine.name, compared=1)      # printed when all tests have run

``@only("vllm-cpu")`` restricts a test to some kinds. Engines are shared by all tests of a session
and started when the first wants one; a test that stops, kills or configures its own asks the
fixture ``engines`` for a new one and names it: ``await live(behind=engine)``.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.harness import running as runnings
from tests.harness import tap
from tests.harness.engines import KINDS, Engine, Engines
from tests.harness.figures import Figures, figures
from tests.harness.fixtures import ending, proxy
from tests.harness.running import Running

__all__ = ["ending", "figures", "proxy"]

CLIENT_SECONDS = 60.0
"""How long a read of a client may wait: real engines on a busy machine are no stand-ins."""

TEST_SECONDS = 240.0
"""How long a test may take: some start engines, and each of their waits has a bound of its own."""


class Live(Protocol):
    """What the fixture ``live`` is."""

    async def __call__(self, *, behind: Engine | None = None, **settings: Any) -> Running:
        """Starts a proxy in front of a tap in front of this engine, or of the test's ``engine``."""
        ...


@pytest.fixture(scope="session")
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, figures: Figures
) -> Iterator[Engines]:
    """The engines of the session; those that its tests name start side by side."""
    for kind in KINDS.values():
        if kind.missing is not None:
            not_tested(figures, kind.name, kind.installer)
    made = Engines(tmp_path_factory.mktemp("engines"))
    for name in wanted(request.session.items):
        if KINDS[name].missing is None:
            made.launch(name)
    yield made
    made.end()


def not_tested(figures: Figures, name: str, installer: str) -> None:
    """Says so among the figures, so that nobody takes the skips for passes."""
    figures.add("NOT TESTED", name, because="not installed", command=f"scripts/engines/{installer}")


def wanted(items: list[pytest.Item]) -> list[str]:
    """The kinds of engine that these tests name."""
    calls = [getattr(item, "callspec", None) for item in items]
    names = [call.params.get("engine") for call in calls if call is not None]
    return [name for name in KINDS if name in names]


def available(name: str) -> str:
    """The name again; skips the test where this kind is not installed."""
    missing = KINDS[name].missing
    if missing is not None:
        pytest.skip(missing)
    return name


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, engines: Engines) -> Engine:
    """Each kind of engine in turn, shared and ready."""
    return engines.shared(available(request.param))


ENGINE_KEY = "engine-key-" + "e" * 40
"""What `guarded` wants to be shown on routes below /v1."""


@pytest.fixture(scope="session")
def guarded(engines: Engines) -> Engine:
    """VLLM over the stub core with a key of its own and a parser of reasoning, shared."""
    available("vllm-stub")
    engine = engines.new("vllm-stub", "--api-key", ENGINE_KEY, "--reasoning-parser", "granite")
    engine.start()
    return engine


@pytest.fixture(scope="session")
def own_engine(engines: Engines) -> Engine:
    """A vLLM on the CPU for tests that stop it and start it again; each leaves it serving.

    Starting it takes longer than all that they do with it.
    """
    available("vllm-cpu")
    engine = engines.new("vllm-cpu")
    engine.start()
    return engine


@pytest.fixture
async def live(
    request: pytest.FixtureRequest, ending: list[asyncio.Task[int]]
) -> AsyncIterator[Live]:
    """Starts a proxy with these settings; it is drained when the test ends."""
    usual = request.getfixturevalue("engine") if "engine" in request.fixturenames else None
    async with AsyncExitStack() as stack:

        async def launch(*, behind: Engine | None = None, **settings: Any) -> Running:
            engine = behind or usual
            assert engine is not None, "a test of live asks for engine, or names one behind it"
            upstream = await stack.enter_async_context(tap.relay(engine.port))
            settings = {"upstream_url": upstream.url, **settings}
            running = await stack.enter_async_context(runnings.launch(ending, **settings))
            running.upstream = upstream
            running.client_timeout_seconds = CLIENT_SECONDS
            return running

        yield launch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what the engines have said with a test that failed."""
    report = yield
    made = getattr(item, "funcargs", {}).get("engines")
    if report.failed and isinstance(made, Engines):
        for engine in made.started():
            report.sections.append((f"the end of {engine.log}", engine.last_words()))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all that is in this folder, and puts at the end what leaves no engine alive."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("live")
            if item.get_closest_marker("within") is None:
                item.add_marker(pytest.mark.within(TEST_SECONDS))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


def pytest_configure(config: pytest.Config) -> None:
    """The mark for that."""
    config.addinivalue_line(
        "markers", "last: leaves no engine that serves, and so runs after the others"
    )
