"""Who watches the key file and the engine beside the requests, and what is said of what they find."""

from collections.abc import Callable, Mapping

import httpx

from proxy.app.clocks import Clocks
from proxy.auth import reload
from proxy.auth.keys import KeyStore
from proxy.auth.reload import KeyFileWatch
from proxy.config import Settings
from proxy.telemetry.log import Log, LogLevel
from proxy.telemetry.metrics import UpstreamMetrics
from proxy.upstream.monitor import Monitor
from proxy.upstream.readings import Reading
from proxy.upstream.states import State
from proxy.upstream.target import Target


def key_file(
    settings: Settings, keys: KeyStore, log: Log, share_out: Callable[[], None]
) -> KeyFileWatch | None:
    """Who watches the key file; None where there is none."""
    if settings.keys_file is None:
        return None

    def tell(event: str, about: Mapping[str, object]) -> None:
        well = event == reload.RELOADED and about["problem"] is None
        log.server(event, level="info" if well else "warning", **about)

    return KeyFileWatch(settings.keys_file, keys, on_event=tell, on_count=share_out)


def engine(
    settings: Settings,
    clocks: Clocks,
    log: Log,
    metrics: UpstreamMetrics,
    *,
    transport: httpx.AsyncBaseTransport,
    target: Target,
    heed: Callable[[Reading], None],
) -> Monitor:
    """Who watches the engine. Nobody has asked it yet: it is starting."""
    metrics.state_is(State.STARTING)

    def tell(state: State, reason: str) -> None:
        metrics.state_is(state)
        # Ready, and yet there is something to say: perhaps nobody's engine.
        well = state is State.SATURATED or (state.serves and not reason)
        level: LogLevel = "info" if well else "warning"
        log.server("upstream", level=level, state=state.value, reason=reason or None)

    def failed(exc: Exception) -> None:
        log.server("monitor_failed", level="error", fault=type(exc).__qualname__)

    return Monitor(
        transport,
        target,
        clock=clocks.monotonic,
        # SGLang's /health generates a token each time.
        health_path="/ready" if settings.engine == "sglang" else "/health",
        on_reading=heed,
        on_state=tell,
        on_ignored=metrics.reading_ignored,
        on_fault=failed,
    )
