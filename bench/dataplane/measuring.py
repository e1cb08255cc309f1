"""Measures one subject: starts it, loads it in each way, looks at its CPU time and memory meanwhile."""

import contextlib
import http.client
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.dataplane import figures, proc, traffic
from bench.dataplane.figures import Aborts, Figures, HalfLoad, Requests, Streams, Window
from bench.dataplane.programs import Programs
from bench.dataplane.subjects import Place, Subject, free_port
from bench.dataplane.traffic import Bodies, Load, LoadError, Upstream

ROOT = Path(__file__).resolve().parent.parent.parent
EVENTS = 200
INTERVAL_MS = {64: 20.0, 500: 50.0, 2000: 100.0}
"""Of the streams, by how many there may be: 3,200, 10,000 and 20,000 events a second."""
_START_SECONDS = 60.0
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_STALL_MS = 1000
_ABORT_CLIENTS = 64


class StartError(Exception):
    """A subject does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long everything takes, in seconds, and how many streams there are.

    Attributes:
        streams: How many at a time, one after the other.
        in_step: Whether all streams have their events at the same moments.
        warmup: Before each window.
        window: Of a closed loop and of streams.
    """

    streams: Sequence[int] = tuple(INTERVAL_MS)
    in_step: bool = True
    connections: int = 32
    warmup: float = 1.5
    window: float = 6.0
    half: float = 5.0
    direct: float = 3.0
    aborts: float = 4.0


QUICK = Lengths(streams=(64,), warmup=0.5, window=2.5, half=2.0, direct=1.0, aborts=1.5)


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where; empty is anywhere, on a machine with one core."""

    subject: Sequence[int]
    load: Sequence[int]

    @classmethod
    def split(cls, available: Sequence[int]) -> "Cores":
        """The last one for the subject, as interrupts like the first; one for whoever loads it."""
        if len(available) < 2:  # noqa: PLR2004
            return cls((), ())
        return cls(available[-1:], available[-2:-1])


@dataclass(frozen=True, slots=True)
class Bench:
    """What is the same for all subjects."""

    programs: Programs
    bodies: Bodies
    upstream: Upstream
    cores: Cores
    lengths: Lengths
    say: Callable[[str], None]

    def measure(self, subject: Subject) -> Figures:
        """All figures of one; what fails is told in them."""
        seen = Figures(title=subject.title)
        try:
            with self._started(subject) as server:
                self._measure(subject, server, seen)
        except (StartError, LoadError) as exc:
            seen.faults.append(str(exc))
        return seen

    def _measure(self, subject: Subject, server: "Server", seen: Figures) -> None:
        headers = [f"authorization: Bearer {traffic.KEY}", *subject.headers(self.upstream.port)]
        load = self._load(server.port, headers)
        seen.rss_idle_mib = server.rss_mib()
        self.say("requests")
        seen.requests = self._requests(load, server)
        if subject.start and seen.requests.per_second:
            self.say("half load")
            seen.half = self._half(load, self._load(self.upstream.port, headers), seen.requests)
        for count in self.lengths.streams:
            self.say(f"{count:,} streams")
            seen.streams[count] = self._streams(load, server, count)
            if seen.aborts is None:
                # Not last: whoever cannot bear many streams is busy with them long after.
                self.say("clients that leave")
                seen.aborts = self._aborts(load)

    def _load(self, port: int, headers: Sequence[str]) -> Load:
        return Load(program=self.programs.load, cores=self.cores.load, port=port, headers=headers)

    def _requests(self, load: Load, server: "Server") -> Requests:
        measured, window = server.watch(
            load,
            "requests",
            self.bodies.plain,
            connections=self.lengths.connections,
            warmup=self.lengths.warmup,
            seconds=self.lengths.window,
        )
        return Requests(
            us=window.each(measured["requests"]),
            per_second=round(measured["requests"] / measured["seconds"], 1),
            busy=window.busy,
            p50_us=measured["latency"].get("p50_us"),
            p99_us=measured["latency"].get("p99_us"),
            errors=figures.errors(measured),
        )

    def _half(self, load: Load, direct: Load, most: Requests) -> HalfLoad:
        alone, measured = (
            one.run(
                "rate",
                self.bodies.plain,
                # More than are busy at half load: hardly a request waits for one to be free.
                connections=4 * self.lengths.connections,
                rate=most.per_second / 2,
                warmup=self.lengths.warmup,
                seconds=seconds,
            )
            for one, seconds in ((direct, self.lengths.direct), (load, self.lengths.half))
        )
        first, latency = measured["first_byte"], measured["latency"]
        return HalfLoad(
            per_second=round(measured["requests"] / measured["seconds"], 1),
            first_byte_p50_us=first.get("p50_us"),
            first_byte_p99_us=first.get("p99_us"),
            latency_p50_us=latency.get("p50_us"),
            latency_p99_us=latency.get("p99_us"),
            direct_p50_us=alone["first_byte"].get("p50_us"),
            direct_p99_us=alone["first_byte"].get("p99_us"),
            errors=figures.errors(measured),
            never_sent=measured["never_sent"],
        )

    def _streams(self, load: Load, server: "Server", count: int) -> Streams:
        interval_ms = INTERVAL_MS[count]
        in_step = self.lengths.in_step
        self.upstream.plan(events=EVENTS, interval_ms=interval_ms, in_step=in_step)
        measured, window = server.watch(
            load,
            "streams",
            self.bodies.stream,
            connections=count,
            events=EVENTS,
            # Over the length of one: from then on as many end at any moment as begin.
            ramp=EVENTS * interval_ms / 1000,
            warmup=self.lengths.warmup,
            seconds=self.lengths.window,
            stall_ms=max(_STALL_MS, 5 * interval_ms),
        )
        delay, first = measured["delay"], measured["first_byte"]
        return Streams(
            us=window.each(measured["events"]),
            per_second=round(measured["events"] / measured["seconds"], 1),
            planned_per_second=count * 1000 / interval_ms,
            busy=window.busy,
            delay_p50_us=delay.get("p50_us"),
            delay_p99_us=delay.get("p99_us"),
            first_event_p50_us=first.get("p50_us"),
            first_event_p99_us=first.get("p99_us"),
            rss_mib=server.rss_at_end_mib,
            stalled=measured["stalled"],
            longest_gap_ms=measured["longest_gap_ms"],
            errors=figures.errors(measured),
        )

    def _aborts(self, load: Load) -> Aborts:
        self.upstream.plan(events=10 * EVENTS, interval_ms=INTERVAL_MS[64])
        measured = load.run(
            "aborts",
            self.bodies.leaver,
            upstream=self.upstream.port,
            connections=_ABORT_CLIENTS,
            events=10 * EVENTS,
            warmup=0.1,
            seconds=self.lengths.aborts,
        )
        seen = measured["abort"]
        return Aborts(
            left=measured["left"],
            unnoticed=measured["unnoticed"],
            p50_ms=_ms(seen.get("p50_us")),
            max_ms=_ms(seen.get("max_us")),
        )

    @contextlib.contextmanager
    def _started(self, subject: Subject) -> Iterator["Server"]:
        """The subject for the block, in a session of its own, on its core."""
        if subject.start is None:
            yield Server(port=self.upstream.port, session=0)
            return
        with tempfile.TemporaryDirectory(prefix="bulwark-bench-") as name:
            place = Place(free_port(), self.upstream.port, Path(name))
            start = subject.start(place)
            with traffic.pinned(self.cores.load):
                # Where its log goes to: somebody has to read it, on somebody else's core.
                reader = subprocess.Popen(
                    ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
                )
            errors = (place.folder / "stderr").open("wb")
            with reader, errors, traffic.pinned(self.cores.subject):
                process = subprocess.Popen(  # noqa: S603
                    start.command,
                    cwd=ROOT,
                    env=_environment(start.env),
                    stdin=subprocess.DEVNULL,
                    stdout=reader.stdin,
                    stderr=errors,
                    start_new_session=True,
                )
                try:
                    traffic_headers = subject.headers(self.upstream.port)
                    _await_answer(process, place, self.bodies.plain.read_bytes(), traffic_headers)
                    yield Server(port=place.port, session=process.pid)
                finally:
                    _end(process)


@dataclass(slots=True)
class Server:
    """A subject that serves.

    Attributes:
        session: All of its processes; 0 where there is none of its own.
        rss_at_end_mib: Its memory when the last window ended.
    """

    port: int
    session: int
    rss_at_end_mib: float = 0.0
    _cpu_ns: list[int] = field(default_factory=list)

    def rss_mib(self) -> float:
        """Its memory now."""
        return round(proc.rss_mib(self.session), 1) if self.session else 0.0

    def watch(
        self, load: Load, mode: str, body: Path, **options: float
    ) -> tuple[dict[str, Any], Window]:
        """Runs a load; gives what it measured and what it took."""
        self._cpu_ns.clear()

        def look() -> None:
            self._cpu_ns.append(proc.cpu_ns(self.session) if self.session else 0)

        def look_last() -> None:
            look()
            self.rss_at_end_mib = self.rss_mib()

        measured = load.run(mode, body, on_start=look, on_end=look_last, **options)
        before, after = self._cpu_ns
        return measured, Window(cpu_us=(after - before) / 1000, seconds=measured["seconds"])


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}
    return {**kept, **given}


def _await_answer(
    process: subprocess.Popen[bytes], place: Place, body: bytes, lines: Sequence[str]
) -> None:
    """Returns once a request is answered as it should be."""
    headers = {
        "Authorization": f"Bearer {traffic.KEY}",
        "Content-Type": "application/json",
        **dict(line.split(": ", 1) for line in lines),
    }
    until = time.monotonic() + _START_SECONDS
    last = "no answer"
    while time.monotonic() < until and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=10)
        with contextlib.closing(connection):
            try:
                connection.request("POST", traffic.CHAT, body, headers)
                response = connection.getresponse()
                text = response.read().decode(errors="replace")
                if response.status == http.HTTPStatus.OK:
                    return
                last = f"{response.status} {text[:300]}"
            except (OSError, http.client.HTTPException) as exc:
                last = str(exc)
        time.sleep(_LOOK_SECONDS)
    told = (place.folder / "stderr").read_text(errors="replace").strip()[-600:]
    raise StartError(f"did not start ({last}) {told}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends all that was started, which is all of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ms(us: float | None) -> float | None:
    return None if us is None else round(us / 1000, 2)
