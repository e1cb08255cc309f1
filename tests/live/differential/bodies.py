"""Seeded bodies for every endpoint: what clients send, and what those who look for a way around do."""

import base64
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.live.differential.draws import Draw, spelled

PROMPT_CAP = 3_000
SCHEMA_CAP = 6_000
OUTPUT_CAP = 24
CHOICES_CAP = 4
MEDIA_CAP = 2

BOUNDS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
)
MULTIPLIERS = ("n", "best_of", "n_cmpl")
OTHER_NUMBERS = (
    "top_logprobs",
    "logprobs",
    "n_probs",
    "min_tokens",
    "thinking_token_budget",
    "truncate_prompt_tokens",
)

# Fields that some server, template or client knows, besides those that the endpoints have.
UNKNOWN = (
    "guided_json", "guided_regex", "separate_reasoning", "prediction", "web_search_options",
    "context_management", "grammar", "json_schema", "cache_prompt", "samplers", "id_slot", "lora",
    "bad_words", "return_tokens_as_token_ids", "return_token_ids", "ignore_eos", "repetition_penalty",
    "min_p", "top_k", "skip_special_tokens", "stop_regex", "reasoning", "thinking", "audio", "store",
    "conversation", "prompt_cache_key", "messages", "prompt", "input", "system", "tools", "documents",
    "functions", "suffix", "instructions", "reasoning_format", "add_generation_prompt", "tool_choice",
    "continue_final_message", "parallel_tool_calls", "chat_template_kwargs", "t_max_predict_ms",
)  # fmt: skip
HOSTILE = (
    "kv_transfer_params", "prompt_embeds", "input_ids", "prompt_token_ids", "chat_template",
    "use_beam_search", "prompt_logprobs", "previous_response_id", "background", "priority",
    "mm_processor_kwargs", "generation_config", "request_id", "image_embeds", "bootstrap_host",
    "session_params", "custom_logit_processor",
)  # fmt: skip
PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89"
).decode()
DEEPEST = 90
LONG = 0.005
"""How probable a text longer than the cap is: one such is enough for a refusal."""


@dataclass(frozen=True, slots=True)
class Body:
    """One request.

    Attributes:
        endpoint: The name of its row in `proxy.endpoints`.
        data: What the client sends.
    """

    endpoint: str
    data: bytes


def bodies(
    seed: int,
    count: int,
    endpoints: Mapping[str, int],
    without: Collection[str] = (),
    *,
    long: float = LONG,
) -> Iterator[Body]:
    """So many bodies, for endpoints drawn by their weights; the same ones for the same seed.

    `long` is the probability that a text of theirs is longer than the cap.
    """
    draw = Draw(seed)
    names, weights = list(endpoints), list(endpoints.values())
    for _ in range(count):
        (name,) = draw.choices(names, weights)
        maker = Maker(draw, long)
        body = maker.spoil(MAKERS[name](maker))
        body = {key: value for key, value in body.items() if key not in without}
        data = draw.write(body)
        if draw.chance(0.01):
            data = data.rstrip()[:-1] + b',"max_tokens":%d}' % draw.choice((9, 99_999))
        yield Body(name, data)


class Maker:
    """Makes one body."""

    def __init__(self, draw: Draw, long: float = LONG) -> None:
        self.draw = draw
        self.long = long

    # Output, for every endpoint that generates.

    def number(self) -> Any:
        """A value for a governed number: within the cap, over it, or no number at all."""
        draw = self.draw
        if draw.chance(0.7):
            return draw.choice((1, 2, 3, 5, 7, OUTPUT_CAP - 1, OUTPUT_CAP))
        return draw.choice(
            (
                *(OUTPUT_CAP + 1, 100, 4_096, 0, -1, 2**31, 2**63 - 1, 2**63),
                *(True, False, None, "7", "40", " 40 ", "", [40], {"a": 40}),
                *(map(spelled, ("40.0", "4e1", "7.5", "1e400", "-0", "40E0", "0.4e2", "-1.0"))),
            )
        )

    def bounds(self, own: str) -> dict[str, Any]:
        """How much to generate, as one or several fields say it."""
        draw = self.draw
        fields: dict[str, Any] = {}
        if draw.chance(0.6):
            fields[own] = draw.choice((1, 4, OUTPUT_CAP - 1, OUTPUT_CAP, OUTPUT_CAP + 1, 4_096))
        if draw.chance(0.25):
            fields |= {name: self.number() for name in draw.some(BOUNDS, 3)}
        if draw.chance(0.2):
            fields[draw.choice(MULTIPLIERS)] = draw.choice(
                (*(1, 2, 3, CHOICES_CAP) * 3, CHOICES_CAP + 1, 64)
            )
        if draw.chance(0.06):
            fields[draw.choice(MULTIPLIERS)] = self.number()
        if draw.chance(0.06):
            fields |= {name: self.number() for name in draw.some(OTHER_NUMBERS, 2)}
        return fields

    def sampling(self) -> dict[str, Any]:
        """What never reaches a prompt, mostly."""
        draw = self.draw
        fields: dict[str, Any] = {}
        if draw.chance(0.25):
            options = {
                "temperature": 0.5,
                "top_p": 0.9,
                "seed": 7,
                "stop": draw.choice(("zzz", ["zzz", "yyy"], [])),
                "user": draw.text(draw.length(300)),
                "metadata": {"a": draw.text(draw.length(100))},
                "frequency_penalty": 0.1,
                "service_tier": "auto",
                "ignore_eos": True,
                "logit_bias": {"5": 1},
            }
            fields |= {name: options[name] for name in draw.some(tuple(options), 3)}
        return fields

    # Text and structures.

    def text(self) -> str:
        """Text, now and then as long as the cap."""
        draw = self.draw
        if draw.chance(0.025):
            return draw.text(PROMPT_CAP - draw.randint(-5, 60))
        if draw.chance(self.long):
            return draw.text(PROMPT_CAP * 2)
        return draw.text()

    def structure(self) -> Any:
        """An object that a template may write: wide, deep, or small."""
        draw = self.draw
        kind = draw.random()
        if kind < 0.06:
            return {"k": draw.nested(draw.randint(5, DEEPEST), [1] * draw.randint(0, 60))}
        if kind < 0.1:
            return {str(index): draw.scalar() for index in range(draw.randint(0, 150))}
        if kind < 0.16:
            return {"k": [draw.choice((1, True, "", "'", [], {}))] * draw.randint(0, 900)}
        if kind < 0.24:
            return {draw.word(): self.text()}
        return draw.object()

    def arguments(self) -> Any:
        """Of a tool call: JSON in a string, an object, or neither."""
        draw = self.draw
        structure = self.structure()
        kind = draw.random()
        if kind < 0.6:
            return draw.write(structure).decode()
        if kind < 0.8:
            return structure
        return draw.choice(("", "{}", "[]", "null", "42", '"text"', "{not json", '{"a": NaN}', None, 5,
                            '{"a":1,"a":2}', [1], "[" * 50, "1" * 300, self.text()))  # fmt: skip

    def odd_schema(self) -> dict[str, Any]:
        """One that nobody has: deep, wide, or as large as the cap."""
        draw = self.draw
        count = draw.randint(0, 400)
        leaves: tuple[Any, ...] = (
            {},
            None,
            1,
            {"type": "a"},
            {"a": 1, "b": []},
            {"": ""},
            [1],
            "'\"",
        )
        leaf = draw.choice(leaves)
        return draw.choice(
            (
                {"k": draw.nested(draw.randint(2, 60), [1] * draw.randint(0, 300))},
                draw.object(),
                {draw.choice(("properties", "k", "")): {f"{i:x}": leaf for i in range(count)}},
                {f"{i:x}": 1 for i in range(2 * count)},
                {
                    "properties": {
                        "a": {"description": draw.text(draw.randint(0, SCHEMA_CAP * 3 // 4))}
                    }
                },
            )
        )

    def schema(self, depth: int = 3) -> dict[str, Any]:
        """A JSON schema of a tool's parameters, mostly as agents have them."""
        draw = self.draw
        if draw.chance(0.1):
            return self.odd_schema()
        properties = {}
        for _ in range(draw.randint(0, 5)):
            one: dict[str, Any] = {"type": draw.choice(("string", "integer", "array", "object"))}
            if draw.chance(0.6):
                one["description"] = draw.text(draw.length(150))
            if draw.chance(0.2):
                one["enum"] = [draw.word() for _ in range(draw.randint(0, 5))]
            if draw.chance(0.1):
                one[draw.word()] = draw.value(2)
            if one["type"] == "object" and depth > 0:
                one |= self.schema(depth - 1)
            if one["type"] == "array" and depth > 0:
                one["items"] = self.schema(depth - 1)
            properties[draw.word()] = one
        required = draw.some(tuple(properties), 5)
        return {"type": "object", "properties": properties, "required": required}

    def functions(self) -> list[dict[str, Any]]:
        """Functions as tools have them."""
        draw = self.draw
        many = draw.chance(0.05)
        count = draw.randint(20, 150) if many else draw.randint(1, 3)
        made = []
        for index in range(count):
            function: dict[str, Any] = {"name": f"f{index}" if many else draw.word()}
            if draw.chance(0.1 if many else 0.8):
                function["description"] = draw.text(draw.length(20 if many else 200))
            if draw.chance(0.1 if many else 0.9):
                function["parameters"] = self.schema()
            if draw.chance(0.1):
                function[draw.choice(("strict", "returns", "x_" + draw.word()))] = draw.value(2)
            made.append(function)
        return made

    def tools(self) -> list[Any]:
        """Chat's."""
        tools = [{"type": "function", "function": function} for function in self.functions()]
        if self.draw.chance(0.2):
            for tool in tools:
                del tool["type"]
        return tools

    def response_format(self) -> Any:
        """Chat's."""
        return self.draw.choice(
            (
                {"type": "text"},
                {"type": "json_object"},
                {"type": "json_schema", "json_schema": {"name": "x", "schema": self.schema()}},
                self.draw.value(2),
            )
        )

    # Chat.

    def image(self) -> Any:
        """A part that is an image, mostly not one that is accepted."""
        url = self.draw.choice(
            (f"data:image/png;base64,{PNG}", "http://127.0.0.1:9/x.png", "file:///x")
        )
        return self.draw.choice(
            (
                {"type": "image_url", "image_url": {"url": url}},
                {"image_url": url},
                {"type": "image_embeds"},
            )
        )

    def part(self) -> Any:
        """A content part: of a known type, of none, or of one that nobody knows."""
        draw, text = self.draw, self.text()
        part = draw.choice(
            (
                text,
                {"type": "text", "text": text},
                {"type": "text", "text": text},
                {"text": text},
                {"type": "input_text", "text": text},
                {"type": "output_text", "text": text},
                {"type": "refusal", "refusal": text},
                {"refusal": text},
                {"type": "thinking", "thinking": text},
                {"type": "tool_reference", "name": draw.word()},
                {"type": "text", "text": text, draw.word(): draw.value(2)},
                {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": text, "content": [self.structure()]},
                {"type": draw.choice(("tool_result", "x" * 50)), "text": text},
                {"type": "text"},
            )
        )
        if draw.chance(0.01):
            return {"type": draw.choice(("audio", "input_file")), "text": text}
        return self.image() if draw.chance(0.01) else part

    def content(self) -> Any:
        """Of a message."""
        draw = self.draw
        kind = draw.random()
        if kind < 0.6:
            return self.text()
        if kind < 0.93:
            count = draw.randint(50, 120) if draw.chance(0.03) else draw.randint(0, 4)
            return [self.part() for _ in range(count)]
        return draw.choice((None, "", [], self.part(), 7, True, [[self.text()]], [None], [3]))

    def call(self) -> Any:
        """A tool call in a message."""
        draw = self.draw
        function: dict[str, Any] = {"name": draw.word(), "arguments": self.arguments()}
        call: dict[str, Any] = {"id": draw.word(), "type": "function", "function": function}
        if draw.chance(0.1):
            draw.choice((call, function))[draw.word()] = draw.value(2)
        if draw.chance(0.05):
            del call[draw.choice(("id", "type"))]
        return call

    def calls(self) -> Any:
        """Those of one message."""
        draw = self.draw
        if draw.chance(0.05):
            return draw.choice((None, [], {}, "x", [None], [self.structure()]))
        count = draw.randint(30, 90) if draw.chance(0.03) else draw.randint(1, 3)
        return [self.call() for _ in range(count)]

    def message(self) -> dict[str, Any]:
        """One of a chat."""
        draw = self.draw
        role = draw.choice(("system", "developer", "user", "user", "assistant", "assistant", "tool",
                            "function", draw.choice(("ipython", "critic", "x" * 40))))  # fmt: skip
        message: dict[str, Any] = {"role": role, "content": self.content()}
        if role == "assistant":
            if draw.chance(0.5):
                message["tool_calls"] = self.calls()
            for name in draw.some(("reasoning", "reasoning_content", "refusal", "audio"), 2):
                message[name] = self.text() if draw.chance(0.8) else draw.value(2)
            if draw.chance(0.05):
                message["function_call"] = {"name": draw.word(), "arguments": self.arguments()}
        if role == "tool":
            message["tool_call_id"] = draw.text(draw.length(50))
        if role == "developer" and draw.chance(0.3):
            message["tools"] = self.tools()
        if draw.chance(0.1):
            message["name"] = draw.text(draw.length(60))
        if draw.chance(0.1):
            name = draw.choice(("task", "tools", "prefix", "partial", "documents", draw.word()))
            message[name] = draw.value(3)
        return message

    def messages(self, make: Callable[[], Any]) -> list[Any]:
        """A conversation; sometimes of very many small messages."""
        draw = self.draw
        if draw.chance(0.04):
            roles = ("user", "assistant")
            return [
                {"role": draw.choice(roles), "content": draw.word()[:3]}
                for _ in range(draw.randint(50, 160))
            ]
        return [make() for _ in range(draw.randint(1, 4))]

    def template(self) -> dict[str, Any]:
        """What reaches a template past the messages."""
        draw = self.draw
        fields: dict[str, Any] = {}
        if draw.chance(0.12):
            fields["documents"] = [
                {"title": draw.text(draw.length(60)), "text": self.text(), draw.word(): draw.word()}
                for _ in range(draw.randint(0, 3))
            ]
        if draw.chance(0.12):
            variables = {
                "persona": self.text(),
                "extra": self.structure(),
                "enable_thinking": draw.choice((True, False)),
                "date_string": draw.text(draw.length(40)),
                draw.word(): draw.value(),
            }
            names = draw.some(tuple(variables), 4)
            fields["chat_template_kwargs"] = {name: variables[name] for name in names}
        if draw.chance(0.06):
            fields["reasoning_effort"] = draw.choice(("low", "high", "none", self.text()))
        return fields

    def chat(self) -> dict[str, Any]:
        """For chat completions."""
        draw = self.draw
        body: dict[str, Any] = {"model": "m", "messages": self.messages(self.message)}
        if draw.chance(0.35):
            body["tools"] = self.tools()
            if draw.chance(0.3):
                body["tool_choice"] = draw.choice(("auto", "none", "auto", draw.value(1)))
        if draw.chance(0.06):
            body["response_format"] = self.response_format()
        body |= self.template() | self.sampling() | self.bounds("max_tokens")
        if draw.chance(0.2):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    # The others.

    def completions(self) -> dict[str, Any]:
        """For completions: a prompt in each of its forms, and in others."""
        draw = self.draw
        ids = [draw.randint(0, 255) for _ in range(draw.length(200))]
        usual: tuple[Any, ...] = (
            self.text(),
            [self.text() for _ in range(draw.randint(1, CHOICES_CAP))],
            [*ids, 5],
            [[*ids, 5], [7, *ids[:3]]],
            [[7, *ids]] * draw.randint(1, CHOICES_CAP),
        )
        others: tuple[Any, ...] = (
            ids,
            [ids] * (CHOICES_CAP + 1),
            [self.text()] * (CHOICES_CAP + 1),
            [float(number) for number in ids],
            [str(number) for number in ids],
            [True] * len(ids),
            [self.text(), ids],
            [ids, self.text()],
            {"prompt_token_ids": ids},
            [7] * (PROMPT_CAP // 4 + draw.randint(-1, 1)),
            [-1, 5],
            None,
            5,
        )
        prompts = usual if draw.chance(0.8) else others
        body = {"model": "m", "prompt": draw.choice(prompts)}
        if draw.chance(0.1):
            body["suffix"] = draw.choice((self.text(), None, 5))
        if draw.chance(0.1):
            body["echo"] = True
        if draw.chance(0.1):
            body["logprobs"] = draw.choice((0, 1, 5, 20, 10_000, True, False))
        body |= self.sampling() | self.bounds("max_tokens")
        if draw.chance(0.2):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def item(self) -> Any:
        """One of the input of a response."""
        draw, text = self.draw, self.text()
        role = draw.choice(("user", "system", "developer", "assistant"))
        name = draw.word()
        input_text = [
            {"type": "input_text", "text": text},
            {"type": "input_text", "text": draw.text()},
        ]
        output_text = {"type": "output_text", "text": text, "annotations": []}
        message = {"type": "message", "id": name, "role": "assistant", "status": "completed"}
        thought = [{"type": "reasoning_text", "text": text}]
        item = draw.choice(
            (
                {"role": role, "content": text},
                {"role": role, "content": text},
                {"type": "message", "role": role, "content": input_text},
                {"role": role, "content": self.content()},
                {**message, "content": [output_text]},
                {"type": "reasoning", "id": name, "summary": [], "content": thought},
                {
                    "type": "reasoning",
                    "id": name,
                    "summary": [{"type": "summary_text", "text": text}],
                },
                {
                    "type": "function_call",
                    "call_id": name,
                    "name": name,
                    "arguments": self.arguments(),
                },
                {"type": "function_call_output", "call_id": name, "output": text},
                {"type": "function_call_output", "call_id": name, "output": input_text},
                {"type": "custom_tool_call", "call_id": name, "name": name, "input": text},
                {"type": "custom_tool_call_output", "call_id": name, "output": text},
                self.message(),
            )
        )
        if draw.chance(0.05):
            item[draw.word()] = draw.value(2)
        return item

    def responses(self) -> dict[str, Any]:
        """For responses."""
        draw = self.draw
        forms: tuple[Any, ...] = (self.text(), [self.text()], [], None, [5], {"role": "user"})
        items = self.messages(self.item)
        body: dict[str, Any] = {"model": "m"}
        body["input"] = items if draw.chance(0.85) else draw.choice(forms)
        if draw.chance(0.2):
            body["instructions"] = self.text()
        if draw.chance(0.3):
            body["tools"] = [{"type": "function", **function} for function in self.functions()]
        if draw.chance(0.05):
            body["tools"] = [
                {"type": draw.choice(("custom", "mcp", "shell", "web_search")), "name": "x"}
            ]
        if draw.chance(0.06):
            schema = {"type": "json_schema", "name": "x", "schema": self.schema()}
            body["text"] = draw.choice(({"format": schema}, {"verbosity": "low"}, draw.value(2)))
        if draw.chance(0.1):
            body["reasoning"] = draw.choice(({"effort": "low"}, {"summary": "auto"}, draw.value(2)))
        template = self.template()
        template.pop("reasoning_effort", None)
        body |= template | self.sampling() | self.bounds("max_output_tokens")
        if draw.chance(0.15):
            body["stream"] = True
        return body

    def block(self) -> Any:
        """A content block of Anthropic's messages."""
        draw, text = self.draw, self.text()
        name = draw.word()
        result = {"type": "tool_result", "tool_use_id": name}
        tool = {"name": name, "description": text, "input_schema": self.schema()}
        texts = [{"type": "text", "text": draw.text()} for _ in range(draw.randint(0, 4))]
        return draw.choice(
            (
                {"type": "text", "text": text},
                {"type": "text", "text": text},
                {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": name, "name": name, "input": self.structure()},
                {"type": "tool_use", "id": name, "name": name, "input": self.structure()},
                {**result, "content": text},
                {**result, "content": texts},
                {**result, "content": [*texts, {draw.word(): draw.value(2)}]},
                {**result, "content": [{"type": "tool_reference", "tool_name": name}]},
                {"type": "thinking", "thinking": text, "signature": name},
                {"type": "redacted_thinking", "data": text},
                {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}},
                {"type": "tool_reference", "tool_name": name},
                {"type": "text", "text": text, draw.word(): draw.value(2)},
            )
        )

    def turn(self) -> dict[str, Any]:
        """A message of Anthropic's."""
        draw = self.draw
        role = draw.choice(("user", "user", "assistant", "system"))
        content: Any = self.text()
        if draw.chance(0.7):
            content = [self.block() for _ in range(draw.randint(1, 3))]
            if role != "system":
                content = [block for block in content if block["type"] != "tool_addition"]
        return {"role": role, "content": content}

    def count_tokens(self) -> dict[str, Any]:
        """For messages, without what generates."""
        draw = self.draw
        body: dict[str, Any] = {"model": "m", "messages": self.messages(self.turn)}
        if draw.chance(0.3):
            texts = [{"type": "text", "text": self.text()} for _ in range(draw.randint(0, 3))]
            body["system"] = draw.choice((self.text(), texts))
        if draw.chance(0.3):
            body["tools"] = [
                {
                    **{key: value for key, value in function.items() if key != "parameters"},
                    "input_schema": function.get("parameters", {}),
                }
                for function in self.functions()
            ]
        if draw.chance(0.1):
            body["thinking"] = draw.choice(
                (
                    {"type": "enabled", "budget_tokens": draw.choice((1_024, 31_999, -5))},
                    {"type": "disabled"},
                    {"type": "adaptive"},
                )
            )
        if draw.chance(0.08):
            body["output_config"] = draw.choice(
                ({"effort": "low"}, {"format": {"type": "json_schema", "schema": self.schema()}})
            )
        template = self.template()
        return body | {
            key: value for key, value in template.items() if key == "chat_template_kwargs"
        }

    def anthropic(self) -> dict[str, Any]:
        """For messages."""
        draw = self.draw
        bounds = {"max_tokens": draw.choice((1, OUTPUT_CAP, 32_000))} | self.bounds("max_tokens")
        body = self.count_tokens() | bounds
        if draw.chance(0.2):
            body["stream"] = True
        if draw.chance(0.1):
            body["stop_sequences"] = ["zzz"]
        return body

    def embeddings(self) -> dict[str, Any]:
        """For embeddings."""
        body = self.completions()
        for name in ("suffix", "echo", "logprobs", "stream", "stream_options"):
            body.pop(name, None)
        body["input"] = body.pop("prompt")
        return body

    def spoil(self, body: dict[str, Any]) -> dict[str, Any]:
        """Adds what does not belong there, now and then."""
        draw = self.draw
        if draw.chance(0.08):
            body |= {name: draw.value() for name in draw.some(UNKNOWN, 2)}
        if draw.chance(0.05):
            body[draw.choice(UNKNOWN)] = self.structure()
        if draw.chance(0.03):
            body[draw.choice(HOSTILE)] = draw.choice(
                (True, {"prompt_token_ids": [1] * 99}, "x", 5, [1])
            )
        if draw.chance(0.03):
            body[draw.choice(tuple(body))] = draw.value()
        if draw.chance(0.02):
            name = draw.choice(
                ("Max_Tokens", "max_tokens ", "maxTokens", "max-tokens", "N", "max_tokens\0")
            )
            body[name] = self.number()
        if draw.chance(0.5):  # a missing bound is to be found wherever the others stand
            names = draw.sample(tuple(body), len(body))
            body = {name: body[name] for name in names}
        return body


MAKERS: Mapping[str, Callable[[Maker], dict[str, Any]]] = {
    "chat.completions": Maker.chat,
    "completions": Maker.completions,
    "responses": Maker.responses,
    "messages": Maker.anthropic,
    "messages.count_tokens": Maker.count_tokens,
    "embeddings": Maker.embeddings,
}
