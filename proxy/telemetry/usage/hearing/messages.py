"""Anthropic's Messages API."""

from typing import Any

import msgspec

from proxy.telemetry.usage.hearing.dialect import UNSAID, Hearing, Mark
from proxy.telemetry.usage.hearing.texts import length
from proxy.telemetry.usage.hearing.waiting import PING


class _Message(msgspec.Struct, gc=False):
    usage: msgspec.Raw = UNSAID


class _BlockDelta(msgspec.Struct, gc=False):
    type: Any = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None


class _MessageEvent(msgspec.Struct, gc=False):
    type: Any = None
    delta: _BlockDelta | None = None
    message: _Message | None = None
    usage: msgspec.Raw = UNSAID


_message_event = msgspec.json.Decoder(_MessageEvent).decode


class Messages(Hearing):
    """The first event states the prompt, the last but one the output."""

    def hear(self, payload: bytes) -> Mark:
        """See ``Hearing``."""
        event = _message_event(payload)
        # vLLM and llama.cpp begin the message with the first token.
        self.begun = self.begun or event.type != PING
        if event.type == "content_block_delta":
            if (delta := event.delta) is not None:
                for text in (delta.text, delta.thinking, delta.partial_json):
                    self.characters += length(text)
            self.events += 1
        elif event.type == "message_start":
            if event.message is not None and event.message.usage is not UNSAID:
                self._said.part(bytes(event.message.usage), final=False)
        elif event.type == "message_delta" and event.usage is not UNSAID:
            self._said.part(bytes(event.usage), final=True)
        return Mark.PLAIN
