"""What a real engine made of a request, against what the proxy counted.

The prompt is what the engine rendered, taken back from its tokens to characters (`Vllm`) or as it
tells it (`LlamaCpp`). Marks such as ``<|im_start|>`` are one token of any model that has them, and
count 4 here as token ids do in the proxy.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from proxy.policy.limits import Cost
from scripts.engines import tiny_model
from tests.harness.client import BrokenOff, RawClient, RawResponse

CHARS_PER_MARK = 4
MARKS = (*tiny_model.MARKS, *tiny_model.TOOL_MARKS)

# The template's own text: the beginning of the answer, and messages that are none in the body, for
# `instructions` and an `input` that is a string; more where there are tools. Each of the first 64
# messages, parts, calls and arguments may bring 32 more; those after them count.
BASE = 56
BASE_WITH_TOOLS = 96
FREE_ITEMS = 64
CHARS_PER_ITEM = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """One way of `shapes.jinja`.

    Attributes:
        schema_factor: How many times the counted schema it may write.
        wraps_arguments: Whether each argument of a tool call brings text of the template.
    """

    name: str
    schema_factor: float
    wraps_arguments: bool = False


SHAPES = (
    Shape("plain", 4),
    Shape("indented", 4),
    Shape("blocks", 4, wraps_arguments=True),
    Shape("printed", 4),
    Shape("all", 4),
)


def allowed(body: bytes, cost: Cost, shape: Shape) -> float:
    """The characters that a prompt may have which the proxy counted like this."""
    free = min(cost.items, FREE_ITEMS)
    if shape.wraps_arguments:
        free += min(arguments_in(json.loads(body)), FREE_ITEMS)
    base = BASE_WITH_TOOLS if cost.schema_chars else BASE
    return (
        cost.prompt_chars + shape.schema_factor * cost.schema_chars + CHARS_PER_ITEM * free + base
    )


def arguments_in(value: Any) -> int:
    """How many arguments all tool calls in a body have together, at least."""
    if type(value) is list:
        return sum(map(arguments_in, value))
    if type(value) is not dict:
        return 0
    count = sum(arguments_in(child) for child in value.values())
    for key in ("arguments", "input"):
        given = value.get(key)
        if type(given) is str:
            with contextlib.suppress(ValueError):
                given = json.loads(given)
        count += len(given) if type(given) is dict else 0
    return count


class Pool:
    """Connections to one server, reused; each request has one to itself."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self._port = port
        self._headers = {"Content-Type": "application/json", **headers}
        self._idle: list[RawClient] = []
        self._all: set[RawClient] = set()

    async def post(self, target: str, body: bytes) -> RawResponse:
        """One request and its whole answer; again where a connection was too old."""
        while True:
            reused = bool(self._idle)
            client = self._idle.pop() if reused else await self._connect()
            self._all.add(client)
            try:
                response = await client.request("POST", target, self._headers, body)
            except (BrokenOff, OSError):
                self._drop(client)
                if not reused:
                    raise
                continue
            if response.header(b"connection") == b"close":
                self._drop(client)
            else:
                self._idle.append(client)
            return response

    def _drop(self, client: RawClient) -> None:
        client.close()
        self._all.discard(client)

    async def _connect(self) -> RawClient:
        return await RawClient.open("127.0.0.1", self._port, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._all:
            client.close()


_BYTES = {letter: byte for byte, letter in enumerate(tiny_model.byte_tokens())}
_TOKENS = {
    number: bytes(_BYTES[letter] for letter in text) for number, text in enumerate(tiny_model.TEXTS)
}
_MARK = -1


def size_of_tokens(tokens: Iterable[int]) -> int:
    """Characters of what these tokens stand for."""
    marks = 0
    text = bytearray()
    for token in tokens:
        piece = _TOKENS.get(token)
        if piece is None:
            marks += 1
        else:
            text += piece
    return len(text.decode(errors="replace")) + CHARS_PER_MARK * marks


def size_of_text(text: str) -> int:
    """Characters of a rendered prompt."""
    return len(text) - sum(text.count(mark) * (len(mark) - CHARS_PER_MARK) for mark in MARKS)


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer says was done: prompt and output in tokens, and how many answers it has."""

    prompt_tokens: int
    output_tokens: int
    choices: int


def usage_of(response: RawResponse) -> Usage | None:
    """The usage in an answer of any endpoint, whole or as a stream; None where it has none."""
    if not (response.header(b"content-type") or b"").startswith(b"text/event-stream"):
        answer = response.json()
        # llama.cpp answers a request for several responses with a list of them.
        answers = answer if type(answer) is list else [answer]
        usages = [usage for each in answers if (usage := _usage_in([each]))]
        if not usages:
            return None
        return Usage(
            usages[0].prompt_tokens,
            sum(usage.output_tokens for usage in usages),
            sum(usage.choices for usage in usages),
        )
    lines = response.body.split(b"\n")
    events = [
        json.loads(line[6:])
        for line in lines
        if line.startswith(b"data: ") and line != b"data: [DONE]"
    ]
    return _usage_in(events)


def _usage_in(events: list[Any]) -> Usage | None:
    counts: dict[str, int] = {}
    choices: set[int] = set()
    pieces = 0
    for event in events:
        if type(event) is not dict:
            continue
        if type(event.get("input_tokens")) is int:  # all that a count of tokens is
            counts["input_tokens"] = event["input_tokens"]
        for holder in (event, event.get("message"), event.get("response")):
            if type(holder) is dict and type(holder.get("usage")) is dict:
                counts |= {k: v for k, v in holder["usage"].items() if type(v) is int}
        for choice in event.get("choices") or []:
            choices.add(choice["index"])
            pieces += bool(choice.get("text") or (choice.get("delta") or {}).get("content"))
    if not counts and not pieces:
        return None
    return Usage(
        counts.get("prompt_tokens", counts.get("input_tokens", 0)),
        counts.get("completion_tokens", counts.get("output_tokens", pieces)),
        max(1, len(choices)),
    )


@dataclass(frozen=True, slots=True)
class Rendered:
    """What an engine would run for a body.

    Attributes:
        chars: Of its prompts together.
        tokens: Of its prompts together.
        output_tokens: The most that it would generate, over all sequences; 0 if it does not tell.
    """

    chars: int
    tokens: int
    output_tokens: int = 0


class Vllm:
    """vLLM with its render endpoints on: the code that generation goes through, without it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def render(self, path: str, body: bytes, shape: Shape) -> Rendered | None:
        """The prompt of a body in this shape; None where it refuses."""
        wanted = with_shape(path, body, shape)
        response = await self._pool.post(f"{path.removesuffix('/count_tokens')}/render", wanted)
        if response.status != 200:
            return None
        answer = response.json()
        requests = answer if type(answer) is list else [answer]
        chars = tokens = output = 0
        ids = path == "/v1/completions" and _of_ids(json.loads(body))
        for request in requests:
            these = request["token_ids"]
            tokens += len(these)
            chars += CHARS_PER_MARK * len(these) if ids else size_of_tokens(these)
            parameters = request["sampling_params"]
            output += parameters.get("n", 1) * parameters.get(
                "max_tokens", 16
            )  # defaults are left out
        return Rendered(chars, tokens, output)


class LlamaCpp:
    """llama.cpp's server, which tells what its template makes of a chat."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def render(self, path: str, body: bytes, shape: Shape) -> Rendered | None:
        """The prompt of a chat in this shape; None elsewhere, or where it refuses."""
        if path != "/v1/chat/completions":
            return None
        response = await self._pool.post("/apply-template", with_shape(path, body, shape))
        if response.status != 200:
            return None
        return Rendered(size_of_text(response.json()["prompt"]), 0)


def with_shape(path: str, body: bytes, shape: Shape) -> bytes:
    """The body, to be rendered in this shape: the very same where that is the usual one."""
    added: dict[str, Any] = {"max_tokens": 1} if path.endswith("/count_tokens") else {}
    if shape.name != "plain" and path != "/v1/completions":
        given = json.loads(body).get("chat_template_kwargs")
        if given is None or type(given) is dict:
            added["chat_template_kwargs"] = {**(given or {}), "shape": shape.name}
    return json.dumps(json.loads(body) | added).encode() if added else body


def _of_ids(body: Mapping[str, Any]) -> bool:
    prompt = body.get("prompt")
    return type(prompt) is list and bool(prompt) and type(prompt[0]) is not str


# What the proxy may change in a body.

GOVERNED = frozenset(
    {
        "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict",
        "n", "best_of", "n_cmpl", "top_logprobs", "logprobs", "n_probs", "min_tokens",
        "thinking_token_budget", "thinking",
    }
)  # fmt: skip
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def wrongly_edited(sent: bytes, received: bytes) -> str | None:
    """What is wrong with the proxy's edit of a body; None if only governed values differ."""
    if sent == received:
        return None
    before = {name: bytes(raw) for name, raw in _MEMBERS.decode(sent).items()}
    after = {name: bytes(raw) for name, raw in _MEMBERS.decode(received).items()}
    if missing := before.keys() - after.keys():
        return f"lost {sorted(missing)}"
    changed = {name for name in after if after[name] != before.get(name)}
    if others := changed - GOVERNED:
        return f"changed {sorted(others)}"
    restored = {name: before.get(name, raw) for name, raw in after.items()}
    if [name for name in after if name in before] != list(before) or any(
        restored[name] != before[name] for name in before
    ):
        return "changed the order"
    grown = sum(
        len(after[name]) - len(before[name]) if name in before else len(after[name]) + len(name) + 4
        for name in changed
    )
    if not before:
        grown -= 1  # no comma behind the only member
    if len(received) - len(sent) != grown:
        return "changed more than values"
    return None
