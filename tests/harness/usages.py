"""What engines say of usage, as they really say it: recorded from each, and shortened.

vLLM 0.32, llama.cpp b11434 and transformers serve 5 were asked for three tokens; SGLang's forms are
read in its source.
"""

import json
from typing import Any


def sse(*events: dict[str, Any] | str, names: bool = False) -> bytes:
    """A stream of these events, with their names where the dialect has them."""
    return b"".join(event(body, name=names) for body in events)


def event(body: dict[str, Any] | str, *, name: bool = False) -> bytes:
    """One of them."""
    data = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
    head = f"event: {body['type']}\n" if name and isinstance(body, dict) else ""
    return f"{head}data: {data}\n\n".encode()


def chunk(delta: dict[str, Any] | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """A chat's chunk of one choice, as vLLM writes it; `more` goes behind the choices."""
    finish = more.pop("finish_reason", None)
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def counted(prompt: int, completion: int) -> dict[str, Any]:
    """OpenAI's usage object."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion}


def usage_chunk(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """The chunk that has nothing but usage."""
    return chunk() | {"choices": [], "usage": counted(prompt, completion), **more}


ROLE = chunk({"role": "assistant", "content": ""})
WORDS = [chunk({"content": "x"}), chunk({"content": "]"})]
LAST = chunk({"content": "["}, finish_reason="length")
PRINT: dict[str, Any] = {"system_fingerprint": "vllm-0.32.0-4ee97886"}
TIMINGS: dict[str, Any] = {
    "timings": {"cache_n": 20, "prompt_n": 1, "predicted_n": 3, "predicted_ms": 0.374}
}

VLLM_CHAT = sse(ROLE, *WORDS, LAST, usage_chunk(21, 3, **PRINT), "[DONE]")
VLLM_CHAT_UNASKED = sse(ROLE, *WORDS, LAST | PRINT, "[DONE]")
"""The same chat where nobody asked: the fingerprint is on the last chunk of the choice."""

VLLM_CHAT_CONTINUOUS = sse(
    *(chunk({"role": "assistant", "content": ""}, i, usage=counted(21, 0)) for i in (0, 1)),
    chunk({"content": "x"}, 0, usage=counted(21, 1)),
    chunk({"content": "y"}, 1, usage=counted(21, 1)),
    chunk({"content": "z"}, 1, usage=counted(21, 2), finish_reason="length"),
    usage_chunk(21, 3),
    "[DONE]",
)

LLAMA_CHAT = sse(
    ROLE, *WORDS, chunk(finish_reason="length"), usage_chunk(21, 3, **TIMINGS), "[DONE]"
)
LLAMA_CHAT_UNASKED = sse(ROLE, *WORDS, chunk(finish_reason="length", **TIMINGS), "[DONE]")

LLAMA_CHAT_TWO = sse(
    chunk({"content": "x"}, 1),
    chunk({"content": "x"}, 0),
    chunk({}, 1, finish_reason="length"),
    usage_chunk(21, 3, **TIMINGS),
    chunk({}, 0, finish_reason="length"),
    usage_chunk(21, 4, **TIMINGS),
    "[DONE]",
)
"""One event of usage for each choice."""

SGLANG_CHAT = sse(
    ROLE | {"usage": None},
    *(word | {"usage": None} for word in WORDS),
    LAST | {"usage": None},
    chunk() | {"choices": [], "usage": None, "sglext": {"routed_experts": "AA=="}},
    usage_chunk(21, 3),
    "[DONE]",
)
"""A null everywhere, and an event without choices that is not of usage."""

TRANSFORMERS_CHAT = sse(
    chunk({"role": "assistant"}),
    *WORDS,
    chunk({"content": "["}),
    chunk({}, finish_reason="length", usage=counted(21, 3)),
)
"""Always on the last chunk, and no [DONE]."""

VLLM_COMPLETIONS = sse(
    *({"object": "text_completion", "choices": [{"index": 0, "text": text}]} for text in "h|j"),
    {"object": "text_completion", "choices": [], "usage": counted(2, 3), **PRINT},
    "[DONE]",
)
LLAMA_COMPLETIONS = sse(
    {"choices": [{"text": "h", "index": 1, "finish_reason": None}]},
    {"choices": [{"text": "%", "index": 0, "finish_reason": None}]},
    {
        "choices": [{"text": "", "index": 1, "finish_reason": "length"}],
        "usage": counted(2, 3),
        **TIMINGS,
    },
    {
        "choices": [{"text": "", "index": 0, "finish_reason": "length"}],
        "usage": counted(2, 4),
        **TIMINGS,
    },
    "[DONE]",
)
"""With each choice, asked or not."""

RESPONSE_USAGE = {
    "input_tokens": 21,
    "input_tokens_details": {"cached_tokens": 0, "input_tokens_per_turn": []},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 24,
}
_RESPONSE = {"id": "resp_1", "object": "response", "output": [], "tools": []}


def responses(end: str = "completed", **response: Any) -> bytes:
    """A stream of the Responses API; the members of its last response."""
    deltas: list[dict[str, Any]] = [
        {"content_index": 0, "delta": text, "logprobs": [], "type": "response.output_text.delta"}
        for text in ("x", "][")
    ]
    return sse(
        {"response": _RESPONSE | {"usage": None}, "type": "response.created"},
        *deltas,
        {"text": "x][", "type": "response.output_text.done"},
        {
            "response": {**_RESPONSE, "usage": RESPONSE_USAGE, "user": None, **response},
            "sequence_number": 9,
            "type": f"response.{end}",
        },
        names=True,
    )


VLLM_RESPONSES = responses()


def messages(start: dict[str, Any], end: dict[str, Any]) -> bytes:
    """A stream of Anthropic's with these usages."""
    block = {"type": "text", "text": ""}
    return sse(
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": text},
            }
            for text in "xw?"
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": end},
        {"type": "message_stop"},
        names=True,
    )


VLLM_MESSAGES = messages(
    {"input_tokens": 21, "output_tokens": 0}, {"input_tokens": 21, "output_tokens": 3}
)
LLAMA_MESSAGES = messages(
    {"cache_read_input_tokens": 20, "input_tokens": 1, "output_tokens": 0}, {"output_tokens": 3}
)
"""What was in the cache is not among the input tokens."""
