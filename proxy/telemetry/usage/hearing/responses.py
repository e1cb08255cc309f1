"""The Responses API."""

from typing import Any

import msgspec

from proxy.telemetry.usage.hearing.dialect import UNSAID, Hearing, Mark
from proxy.telemetry.usage.hearing.texts import length
from proxy.telemetry.usage.hearing.waiting import RESPONSE_WAITS


class _Response(msgspec.Struct, gc=False):
    usage: msgspec.Raw = UNSAID


class _ResponseEvent(msgspec.Struct, gc=False):
    type: Any = None
    delta: Any = None
    response: _Response | None = None


_response_event = msgspec.json.Decoder(_ResponseEvent).decode


class Responses(Hearing):
    """The last event has the whole response, with its usage."""

    depth = 2

    def hear(self, payload: bytes) -> Mark:
        """See ``Hearing``."""
        event = _response_event(payload)
        self.begun = self.begun or event.type not in RESPONSE_WAITS
        if event.delta is not None:
            self.characters += length(event.delta)
            self.events += 1
        if event.response is not None and (usage := event.response.usage) is not UNSAID:
            final = event.type not in RESPONSE_WAITS
            self._said.part(bytes(usage), final=final)
        return Mark.PLAIN
