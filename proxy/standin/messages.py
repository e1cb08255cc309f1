"""Anthropic's messages. Source: the Anthropic API reference, "Messages" and "Streaming"."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.standin.dialect import (
    Dialect,
    Json,
    all_text,
    choose_tool,
    format_schema,
    last_text,
    model_of,
    named_event,
    new_id,
)
from proxy.standin.model import Answer, Question


class Messages(Dialect):
    """``/v1/messages``, Anthropic's."""

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        messages = body.get("messages") or []
        return Question(
            model=model_of(body),
            prompt=f"{all_text(body.get('system'))} {all_text(messages)}",
            said=last_text(messages),
            tool=choose_tool(body.get("tools") or [], "input_schema", body, messages),
            schema=format_schema((body.get("output_config") or {}).get("format")),
            thinks=(body.get("thinking") or {}).get("type") in ("enabled", "adaptive"),
            max_tokens=body.get("max_tokens"),
            stream=body.get("stream") is True,
        )

    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """See ``Dialect``."""
        del created  # Anthropic's messages are undated.
        block: Json = {"type": "text", "text": answer.text}
        if answer.tool_name:
            # Arguments that were cut are no JSON, and no input either.
            block = self._tool_use(answer, {} if answer.cut else json.loads(answer.text))
        return self._message(question, answer) | {
            "content": [*self._thinking(answer), block],
            "stop_reason": self._stop_reason(answer),
        }

    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """See ``Dialect``."""
        del created
        began = self._message(question, answer)
        began["usage"]["output_tokens"] = 0
        yield self._event("message_start", message=began)
        yield self._event("ping")
        index = 0
        for thinking in self._thinking(answer):
            empty = thinking | {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": word} for word in answer.thoughts]
            signed = {"type": "signature_delta", "signature": thinking["signature"]}
            yield from self._block(index, empty, [*deltas, signed])
            index += 1
        if answer.tool_name:
            block = self._tool_use(answer, {})
            kind, member = "input_json_delta", "partial_json"
        else:
            block = {"type": "text", "text": ""}
            kind, member = "text_delta", "text"
        yield from self._block(index, block, [{"type": kind, member: p} for p in answer.pieces])
        ending = {"stop_reason": self._stop_reason(answer), "stop_sequence": None}
        usage = {"output_tokens": answer.completion_tokens}
        yield self._event("message_delta", delta=ending, usage=usage)
        yield self._event("message_stop")

    def _block(self, index: int, block: Json, deltas: list[Json]) -> Iterator[bytes]:
        yield self._event("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield self._event("content_block_delta", index=index, delta=delta)
        yield self._event("content_block_stop", index=index)

    @staticmethod
    def _thinking(answer: Answer) -> list[Json]:
        block = {"type": "thinking", "thinking": answer.thought, "signature": "c3RhbmQtaW4="}
        return [block] if answer.thoughts else []

    @staticmethod
    def _message(question: Question, answer: Answer) -> Json:
        return {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": question.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": answer.prompt_tokens,
                "output_tokens": answer.completion_tokens,
            },
        }

    @staticmethod
    def _tool_use(answer: Answer, arguments: Json) -> Json:
        name = answer.tool_name
        return {"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": arguments}

    @staticmethod
    def _stop_reason(answer: Answer) -> str:
        if answer.cut:
            return "max_tokens"
        return "tool_use" if answer.tool_name else "end_turn"

    @staticmethod
    def _event(name: str, **members: object) -> bytes:
        return named_event(name, {"type": name} | members)
