"""The benchmark's two C programs against each other: what one sends, the other counts.

Nothing about time is asserted, for that is what they measure.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.dataplane import programs, traffic
from bench.dataplane.programs import Programs
from bench.dataplane.traffic import Bodies, Load, Upstream

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Compiled afresh, with every warning an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BULWARK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield programs.build()


@pytest.fixture
def upstream(built: Programs) -> Iterator[Upstream]:
    """A mock that serves."""
    with traffic.upstream(built, ()) as upstream:
        yield upstream


@pytest.fixture
def run(built: Programs, upstream: Upstream, tmp_path: Path) -> Any:
    """Runs one mode of the load; gives what it counted."""
    bodies = Bodies.written(tmp_path)
    by_mode = {"streams": bodies.stream, "aborts": bodies.leaver}
    load = Load(program=built.load, cores=(), port=upstream.port, headers=["x-one: 1"])

    def run(mode: str, **options: float) -> dict[str, Any]:
        usual = {"connections": 4, "warmup": 0.05, "seconds": 0.2}
        return load.run(mode, by_mode.get(mode, bodies.plain), **usual | options)  # type: ignore[arg-type]

    return run


def test_building_again_compiles_nothing(built: Programs) -> None:
    """What was built is kept."""
    before = built.load.stat().st_mtime_ns
    assert programs.build() == built
    assert built.load.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        pytest.param("requests", {}, id="a closed loop"),
        pytest.param("rate", {"rate": 200.0}, id="an open loop"),
    ],
)
def test_requests(run: Any, mode: str, options: dict[str, float]) -> None:
    """Each is answered, and measured."""
    seen = run(mode, **options)
    assert seen["requests"] == seen["latency"]["count"] > 0
    assert (seen["errors"], seen["refused"], seen["never_sent"]) == (0, 0, 0)


def test_streams(run: Any, upstream: Upstream) -> None:
    """Every event has its stamp, and every stream all of its events."""
    upstream.plan(events=5, interval_ms=1)
    seen = run("streams", events=5)
    assert seen["streams"] > 0
    assert seen["events"] == seen["delay"]["count"] > 0
    assert (seen["errors"], seen["refused"], seen["stalled"]) == (0, 0, 0)


def test_a_stream_that_is_short_is_an_error(run: Any, upstream: Upstream) -> None:
    """One that ends after fewer events than it should have."""
    upstream.plan(events=5, interval_ms=1)
    seen = run("streams", events=6)
    assert (seen["streams"], seen["errors"] > 0) == (0, True)


def test_leavers(run: Any, upstream: Upstream) -> None:
    """The upstream sees each leave, and after it has."""
    upstream.plan(events=1000, interval_ms=1)
    seen = run("aborts", events=1000, upstream=upstream.port, seconds=0.8)
    assert seen["left"] > 0
    assert (seen["unnoticed"], seen["abort"]["count"]) == (0, seen["left"])


def test_a_load_that_cannot_run(built: Programs, tmp_path: Path) -> None:
    """It says so: here its body is missing."""
    load = Load(program=built.load, cores=(), port=1, headers=())
    with pytest.raises(traffic.LoadError, match="status 1"):
        load.run("requests", tmp_path / "nothing.json")
