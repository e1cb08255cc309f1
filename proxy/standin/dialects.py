"""The four dialects that clients generate with: how each asks, and how it is answered.

Sources: the OpenAI API reference (chat completions, completions, responses) and the Anthropic API
reference (messages), in the form in which vLLM 0.33 speaks them.
"""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.standin.model import Answer, Question, Tool

DEFAULT_MODEL = "stand-in"

Json = dict[str, Any]


class Dialect(ABC):
    """Reads a question out of a request body and writes an answer as JSON or as events."""

    @abstractmethod
    def question(self, body: Mapping[str, Any]) -> Question:
        """What a request asks."""

    @abstractmethod
    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """The answer as one JSON object. ``created`` is in seconds since 1970."""

    @abstractmethod
    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """The answer as server-sent events, in order."""


class Chat(Dialect):
    """``/v1/chat/completions``."""

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        messages = body.get("messages") or []
        functions = [tool["function"] for tool in body.get("tools") or [] if "function" in tool]
        return Question(
            model=_model(body),
            prompt=_all_text(messages),
            said=_last_text(messages),
            tool=_choose(functions, "parameters", body, messages),
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
            stream=body.get("stream") is True,
            include_usage=(body.get("stream_options") or {}).get("include_usage") is True,
        )

    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """See ``Dialect``."""
        message: Json = {"role": "assistant", "content": answer.text}
        if answer.tool_name:
            message = {"role": "assistant", "content": None, "tool_calls": [_call(answer)]}
        choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
        return self._frame("chat.completion", question, created) | {
            "choices": [choice | {"logprobs": None}],
            "usage": _usage(answer),
        }

    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """See ``Dialect``."""
        frame = self._frame("chat.completion.chunk", question, created)
        first: Json = {"role": "assistant", "content": ""}
        if answer.tool_name:
            first["tool_calls"] = [{"index": 0} | _call(answer, arguments="")]
        yield self._chunk(frame, first)
        for piece in answer.pieces:
            if answer.tool_name:
                delta: Json = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            else:
                delta = {"content": piece}
            yield self._chunk(frame, delta)
        yield self._chunk(frame, {}, finish=_finish(answer))
        if question.include_usage:
            yield _data(frame | {"choices": [], "usage": _usage(answer)})
        yield _DONE

    @staticmethod
    def _frame(kind: str, question: Question, created: int) -> Json:
        return {
            "id": _id("chatcmpl-"),
            "object": kind,
            "created": created,
            "model": question.model,
        }

    @staticmethod
    def _chunk(frame: Json, delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data(frame | {"choices": [choice]})


class Completions(Dialect):
    """``/v1/completions``. A list of prompts is answered as if it were one."""

    DEFAULT_MAX_TOKENS = 16

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        prompt = _all_text(body.get("prompt"))
        return Question(
            model=_model(body),
            prompt=prompt,
            said=prompt,
            max_tokens=body.get("max_tokens") or self.DEFAULT_MAX_TOKENS,
            stream=body.get("stream") is True,
            include_usage=(body.get("stream_options") or {}).get("include_usage") is True,
        )

    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """See ``Dialect``."""
        return self._part(question, created, answer.text, _finish(answer)) | {
            "usage": _usage(answer)
        }

    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """See ``Dialect``."""
        frame = self._part(question, created, "", None)
        for piece in answer.pieces:
            yield _data(frame | {"choices": [self._choice(piece, None)]})
        yield _data(frame | {"choices": [self._choice("", _finish(answer))]})
        if question.include_usage:
            yield _data(frame | {"choices": [], "usage": _usage(answer)})
        yield _DONE

    def _part(self, question: Question, created: int, text: str, finish: str | None) -> Json:
        return {
            "id": _id("cmpl-"),
            "object": "text_completion",
            "created": created,
            "model": question.model,
            "choices": [self._choice(text, finish)],
        }

    @staticmethod
    def _choice(text: str, finish: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


class Responses(Dialect):
    """``/v1/responses``."""

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        asked = body.get("input") or ""
        items = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        functions = [tool for tool in body.get("tools") or [] if tool.get("type") == "function"]
        return Question(
            model=_model(body),
            prompt=f"{body.get('instructions') or ''} {_all_text(items)}",
            said=_last_text(items),
            tool=_choose(functions, "parameters", body, items),
            max_tokens=body.get("max_output_tokens"),
            stream=body.get("stream") is True,
        )

    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """See ``Dialect``."""
        status = "incomplete" if answer.cut else "completed"
        return self._response(question, created, status) | {
            "incomplete_details": {"reason": "max_output_tokens"} if answer.cut else None,
            "output": [self._item(answer, _id("item_"))],
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
            yield _event(name, {"type": name, "sequence_number": number} | event)

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
            kind, done = "response.function_call_arguments", {"arguments": answer.text}
            done |= {"name": answer.tool_name}
        else:
            kind, done = "response.output_text", {"text": answer.text}
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
            "id": _id("resp_"),
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
                "call_id": _id("call_"),
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


class Messages(Dialect):
    """``/v1/messages``, Anthropic's."""

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        messages = body.get("messages") or []
        return Question(
            model=_model(body),
            prompt=f"{_all_text(body.get('system'))} {_all_text(messages)}",
            said=_last_text(messages),
            tool=_choose(body.get("tools") or [], "input_schema", body, messages),
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
            "content": [block],
            "stop_reason": self._stop_reason(answer),
        }

    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """See ``Dialect``."""
        del created
        began = self._message(question, answer)
        began["usage"]["output_tokens"] = 0
        yield self._event("message_start", message=began)
        block: Json = {"type": "text", "text": ""}
        kind, member = "text_delta", "text"
        if answer.tool_name:
            block = self._tool_use(answer, {})
            kind, member = "input_json_delta", "partial_json"
        yield self._event("content_block_start", index=0, content_block=block)
        yield self._event("ping")
        for piece in answer.pieces:
            delta = {"type": kind, member: piece}
            yield self._event("content_block_delta", index=0, delta=delta)
        yield self._event("content_block_stop", index=0)
        ending = {"stop_reason": self._stop_reason(answer), "stop_sequence": None}
        usage = {"output_tokens": answer.completion_tokens}
        yield self._event("message_delta", delta=ending, usage=usage)
        yield self._event("message_stop")

    @staticmethod
    def _message(question: Question, answer: Answer) -> Json:
        return {
            "id": _id("msg_"),
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
        return {"type": "tool_use", "id": _id("toolu_"), "name": name, "input": arguments}

    @staticmethod
    def _stop_reason(answer: Answer) -> str:
        if answer.cut:
            return "max_tokens"
        return "tool_use" if answer.tool_name else "end_turn"

    @staticmethod
    def _event(name: str, **members: object) -> bytes:
        return _event(name, {"type": name} | members)


_DONE = b"data: [DONE]\n\n"


def _data(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + _data(value)


def _id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _model(body: Mapping[str, Any]) -> str:
    return str(body.get("model") or DEFAULT_MODEL)


def _finish(answer: Answer) -> str:
    if answer.cut:
        return "length"
    return "tool_calls" if answer.tool_name else "stop"


def _usage(answer: Answer) -> Json:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _call(answer: Answer, arguments: str | None = None) -> Json:
    text = answer.text if arguments is None else arguments
    function = {"name": answer.tool_name, "arguments": text}
    return {"id": _id("call_"), "type": "function", "function": function}


def _choose(
    offered: list[Json], schema: str, body: Mapping[str, Any], messages: list[Json]
) -> Tool | None:
    """The tool to call: the first one, unless the client wants none or has just run it."""
    if not offered or body.get("tool_choice") == "none" or _is_tool_result(messages):
        return None
    return Tool(str(offered[0].get("name")), offered[0].get(schema) or {})


def _is_tool_result(messages: list[Json]) -> bool:
    last = messages[-1] if messages else {}
    if last.get("role") == "tool" or last.get("type") == "function_call_output":
        return True
    content = last.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )


def _last_text(messages: list[Json]) -> str:
    return _all_text(messages[-1:])


def _all_text(value: object) -> str:
    """Every text in a prompt, messages, items or parts, however they nest."""
    match value:
        case str():
            return value
        case list():
            return " ".join(filter(None, map(_all_text, value)))
        case dict():
            return _all_text([value.get(name) for name in ("content", "text", "output")])
    return ""
