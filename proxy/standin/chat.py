"""OpenAI's chat completions and completions, in the form in which vLLM 0.33 speaks them.

Source: the OpenAI API reference.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.standin.dialect import (
    Dialect,
    Json,
    all_text,
    choose_tool,
    data,
    format_schema,
    last_text,
    model_of,
    new_id,
)
from proxy.standin.model import Answer, Question

_DONE = b"data: [DONE]\n\n"


class Chat(Dialect):
    """``/v1/chat/completions``."""

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        messages = body.get("messages") or []
        functions = [tool["function"] for tool in body.get("tools") or [] if "function" in tool]
        return Question(
            model=model_of(body),
            prompt=all_text(messages),
            said=last_text(messages),
            tool=choose_tool(functions, "parameters", body, messages),
            schema=format_schema(body.get("response_format"), member="json_schema"),
            thinks=body.get("reasoning_effort") not in (None, "none"),
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
            stream=body.get("stream") is True,
            include_usage=(body.get("stream_options") or {}).get("include_usage") is True,
        )

    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """See ``Dialect``."""
        # What a reasoning model has no words left to say is null, as with vLLM.
        text = answer.text if answer.pieces or not answer.thoughts else None
        message: Json = {"role": "assistant", "content": text}
        if answer.tool_name:
            message = {"role": "assistant", "content": None, "tool_calls": [_call(answer)]}
        if answer.thoughts:
            message |= _thinking(answer.thought)
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer)}
        return self._frame("chat.completion", question, created) | {
            "choices": [choice | {"logprobs": None}],
            "usage": _usage(answer),
        }

    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """See ``Dialect``."""
        frame = self._frame("chat.completion.chunk", question, created)
        yield self._chunk(frame, {"role": "assistant", "content": ""})
        for thought in answer.thoughts:
            yield self._chunk(frame, _thinking(thought))
        if answer.tool_name:
            yield self._chunk(frame, {"tool_calls": [{"index": 0} | _call(answer, arguments="")]})
        for piece in answer.pieces:
            if answer.tool_name:
                delta: Json = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            else:
                delta = {"content": piece}
            yield self._chunk(frame, delta)
        yield self._chunk(frame, {}, finish=_finish_reason(answer))
        if question.include_usage:
            yield data(frame | {"choices": [], "usage": _usage(answer)})
        yield _DONE

    @staticmethod
    def _frame(kind: str, question: Question, created: int) -> Json:
        return {
            "id": new_id("chatcmpl-"),
            "object": kind,
            "created": created,
            "model": question.model,
        }

    @staticmethod
    def _chunk(frame: Json, delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return data(frame | {"choices": [choice]})


class Completions(Dialect):
    """``/v1/completions``. A list of prompts is answered as if it were one."""

    DEFAULT_MAX_TOKENS = 16

    def question(self, body: Mapping[str, Any]) -> Question:
        """See ``Dialect``."""
        prompt = all_text(body.get("prompt"))
        return Question(
            model=model_of(body),
            prompt=prompt,
            said=prompt,
            max_tokens=body.get("max_tokens") or self.DEFAULT_MAX_TOKENS,
            stream=body.get("stream") is True,
            include_usage=(body.get("stream_options") or {}).get("include_usage") is True,
        )

    def whole(self, question: Question, answer: Answer, created: int) -> Json:
        """See ``Dialect``."""
        return self._part(question, created, answer.text, _finish_reason(answer)) | {
            "usage": _usage(answer)
        }

    def events(self, question: Question, answer: Answer, created: int) -> Iterator[bytes]:
        """See ``Dialect``."""
        frame = self._part(question, created, "", None)
        for piece in answer.pieces:
            yield data(frame | {"choices": [self._choice(piece, None)]})
        yield data(frame | {"choices": [self._choice("", _finish_reason(answer))]})
        if question.include_usage:
            yield data(frame | {"choices": [], "usage": _usage(answer)})
        yield _DONE

    def _part(self, question: Question, created: int, text: str, finish: str | None) -> Json:
        return {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": created,
            "model": question.model,
            "choices": [self._choice(text, finish)],
        }

    @staticmethod
    def _choice(text: str, finish: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


def _thinking(text: str) -> Json:
    # Both names are about: engines write the new one, most clients still read the old one.
    return {"reasoning": text, "reasoning_content": text}


def _finish_reason(answer: Answer) -> str:
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
    return {"id": new_id("call_"), "type": "function", "function": function}
