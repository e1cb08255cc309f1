"""What is built once and handed to several."""

from dataclasses import dataclass

from proxy.admission.buffers import BufferBudget
from proxy.admission.history import History
from proxy.admission.kv import TokenBudget
from proxy.admission.rates import RateLimits
from proxy.admission.slots import Slots
from proxy.app.clocks import Clocks
from proxy.auth.keys import KeyStore
from proxy.auth.reload import KeyFileWatch
from proxy.config import Settings
from proxy.cors import Cors
from proxy.forward.dispatch import Upstream
from proxy.lifeline import Lifelines
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All of it.

    Attributes:
        watch: Of the key file; None where there is none.
        history: What keeps in a file what keys use; None where there is none.
        budget: Of tokens at the upstream; None where they have no bound.
        slots: Of requests that the engine works for.
        listing_slots: Of those that ask for a list, and cost it nothing.
    """

    settings: Settings
    clocks: Clocks
    log: Log
    metrics: Metrics
    keys: KeyStore
    watch: KeyFileWatch | None
    rates: RateLimits
    history: History | None
    budget: TokenBudget | None
    slots: Slots
    listing_slots: Slots
    buffers: BufferBudget
    lifelines: Lifelines
    cors: Cors
    upstream: Upstream
