"""From settings to everything that serves."""

from functools import partial
from typing import BinaryIO

import httpx
from prometheus_client import CollectorRegistry

from proxy import __version__
from proxy.admin import Readiness
from proxy.app import admission, control, exposure, history, watches
from proxy.app.chain import chain
from proxy.app.clocks import Clocks
from proxy.app.parts import Parts
from proxy.app.public import Public
from proxy.app.server import Bulwark
from proxy.auth.keys import KeyStore
from proxy.config import Settings
from proxy.cors import Cors
from proxy.forward.dispatch import Upstream
from proxy.lifeline import Lifelines
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import Metrics
from proxy.upstream import target as targets
from proxy.upstream import transport as transports


def build(
    settings: Settings,
    keys: KeyStore,
    *,
    registry: CollectorRegistry,
    log_stream: BinaryIO,
    clocks: Clocks = Clocks(),  # noqa: B008 - frozen
    transport: httpx.AsyncBaseTransport | None = None,
    monitor_transport: httpx.AsyncBaseTransport | None = None,
) -> Bulwark:
    """Puts a server together.

    Args:
        settings: What the operator decided.
        keys: Who may ask; ``key_store`` makes them.
        registry: Where the metrics live.
        log_stream: Where the log goes.
        clocks: What time it is.
        transport: The way to the upstream; None takes our own.
        monitor_transport: Likewise, of the monitor, which must not wait behind requests.

    Raises:
        ConfigError: The file of what keys have used cannot be used.
    """
    kept = history.opened(settings, clocks)
    target = targets.parse(settings.upstream_url)
    transport = transport or transports.build(target)
    monitor_transport = monitor_transport or transports.build(target)
    metrics = Metrics(registry, version=__version__)
    log = Log(
        log_stream,
        form=settings.log_format,
        level=settings.log_level,
        now=clocks.now,
        on_lost=metrics.log_lines_lost,
    )
    keeper = history.keeper(kept, clocks, log) if kept else None
    budget = admission.token_budget(settings)
    slots = admission.slots(settings, clocks, keys=keys.usable, budget=budget)
    listing_slots = admission.slots(settings, clocks, keys=keys.usable, budget=None)
    buffers = admission.buffers(settings, keys.usable)

    share_out = admission.sharing(settings, keys, (slots, listing_slots), buffers)
    watch = watches.key_file(settings, keys, log, share_out)
    monitor = watches.engine(
        settings,
        clocks,
        log,
        metrics.upstream,
        transport=monitor_transport,
        target=target,
        heed=admission.heeding(budget, slots, clocks),
    )
    parts = Parts(
        settings=settings,
        clocks=clocks,
        log=log,
        metrics=metrics,
        keys=keys,
        watch=watch,
        rates=admission.rate_limits(settings, clocks, log, metrics, kept=kept, keeper=keeper),
        history=keeper,
        budget=budget,
        slots=slots,
        listing_slots=listing_slots,
        buffers=buffers,
        lifelines=Lifelines(),
        cors=Cors(settings.cors_origins, relayed=settings.response_headers),
        upstream=Upstream(transport=transport, target=target, api_key=_upstream_key(settings)),
    )
    readiness = Readiness(monitor, details=partial(control.details, parts))
    metrics.watch(control.gauges(parts))
    return Bulwark(
        settings=settings,
        public=Public(chain(parts)),
        admin=control.control_plane(parts, readiness),
        lifelines=parts.lifelines,
        readiness=readiness,
        cors=parts.cors,
        metrics=metrics,
        log=log,
        attendants=[each.run for each in (monitor, parts.rates, watch, keeper) if each],
        remarks=[
            partial(exposure.remark, settings, log),
            partial(history.remarks, settings, keys, kept, log),
        ],
        reload=watch.request if watch else lambda: log.server("nothing_to_reload"),
        # What was used first: nothing that fails at the end may lose it.
        closing=[
            each.aclose for each in (keeper, transport, monitor_transport, parts.rates) if each
        ],
    )


def _upstream_key(settings: Settings) -> bytes | None:
    key = settings.upstream_api_key
    return key.get_secret_value().encode() if key is not None else None
