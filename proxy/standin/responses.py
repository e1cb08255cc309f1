"""OpenAI's responses. Source: the OpenAI API reference, "Responses" and "Streaming events"."""

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


class Responses(Dialect):
    """``/v1/responses``."""

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        asked = body.get("input") or ""
        items = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        functions = [tool for tool in body.get("tools") or [] if tool.get("type") == "function"]
        return Question(
            model=model_of(body),
            prompt=f"{body.get('instructions') or ''} {all_text(items)}",
            said=last_text(items),
            tool=choose_tool(functions, "parameters", body, items),
            schema=format_schema((body.get("text") or {}).get("format")),
            max_tokens=body.get("max_output_tokens"),
            stream=body.get("stream") is True,
        )

    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """See ``Dialect``."""
        status = "incomplete" if answer.cut else "completed"
        return self._response(question, created, status) | {
            "incomplete_details": {"reason": "max_output_tokens"} if answer.cut else None,
            "output": [self._item(answer, new_id("item_"))],
            "usage": {
                "input_tokens": answer.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": answer.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": answer.prompt_tokens + answer.completion_tokens,
            },
        }

    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """See ``Dialect``."""
        for number, (name, event) in enumerate(self._events(question, answer, created)):
            yield named_event(name, {"type": name, "sequence_number": number} | event)

    def _events(
        self, question: Question, answer: Answer, created: int
    ) -> Iterator[tuple[str, Json]]:
        whole = self.whole(question, answer, created)
        (item,) = whole["output"]
        began = whole | self._response(question, created, "in_progress") | {"id": whole["id"]}
        yield "response.created", {"response": began}
        yield "response.in_progress", {"response": began}
        place: Json = {"output_index": 0}
        started = item | {"status": "in_progress"}
        empty: Json = {"arguments": ""} if answer.tool_name else {"content": []}
        started |= empty
        yield "response.output_item.added", place | {"item": started}
        place |= {"item_id": item["id"]}
        if answer.tool_name:
            kind = "response.function_call_arguments"
            done: Json = {"arguments": answer.text, "name": answer.tool_name}
        else:
            kind = "response.output_text"
            done = {"text": answer.text}
            place |= {"content_index": 0}
            part = item["content"][0]
            yield "response.content_part.added", place | {"part": part | {"text": ""}}
        extra: Json = {} if answer.tool_name else {"logprobs": []}
        for piece in answer.pieces:
            yield f"{kind}.delta", place | {"delta": piece} | extra
        yield f"{kind}.done", place | done | extra
        if not answer.tool_name:
            yield "response.content_part.done", place | {"part": item["content"][0]}
        yield "response.output_item.done", {"output_index": 0, "item": item}
        yield f"response.{whole['status']}", {"response": whole}

    @staticmethod
    def _response(question: Question, created: int, status: str) -> Json:
        return {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "model": question.model,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "metadata": {},
        }

    @staticmethod
    def _item(answer: Answer, item_id: str) -> Json:
        if answer.tool_name:
            return {
                "type": "function_call",
                "id": item_id,
                "call_id": new_id("call_"),
                "name": answer.tool_name,
                "arguments": answer.text,
                "status": "completed",
            }
        content = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        return {
            "type": "message",
            "id": item_id,
            "role": "assistant",
            "status": "completed",
            "content": [content],
        }
