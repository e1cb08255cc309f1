"""Writes a tiny Llama with random weights, for vLLM (a folder) or for llama-server (one GGUF file).

Two layers, 64 wide, half a megabyte. Its tokens are the 256 bytes, a few merges and the marks of
ChatML, so that no text has more tokens than bytes and few have many less. Only the standard
library, so that it can be made before any engine is there, and is the same one every time.

Usage: ``tiny_model.py folder DIRECTORY`` or ``tiny_model.py gguf FILE``.
"""

import json
import random
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WIDTH, FEED, LAYERS, HEADS, CONTEXT = 64, 128, 2, 2, 131_072
MERGES = ["h e", "l l", "he ll", "hell o", "t h", "th e"]
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
# One token each: a logit_bias on the first makes the random model open a call, after which the
# grammar of the tools leads it.
TOOL_MARKS = ["<tool_call>", "</tool_call>"]
# ChatML, and as much of a request in the prompt as any template in use puts there.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}
Call one with <tool_call>{"name": <name>, "arguments": <arguments>}</tool_call><|im_end|>
{% endif -%}
{%- if documents %}<|im_start|>system
Documents: {{ documents | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.name %} {{ message.name }}{% endif %}
{%- if message.tool_call_id %} {{ message.tool_call_id }}{% endif -%}
{{ "\\n" }}{% if message.reasoning %}<think>{{ message.reasoning }}</think>{% endif -%}
{%- if message.content %}{{ message.content }}{% endif %}
{%- if message.tool_calls %}{% for call in message.tool_calls -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": \
{{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Kinds of tokens and of values, as GGUF numbers them.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """A matrix, or a vector of ``columns``; its values row by row, under both of its names."""

    folder_name: str
    gguf_name: str
    rows: int | None
    columns: int
    values: list[float]

    def encode(self) -> bytes:
        """The values as 32-bit floats."""
        return struct.pack(f"<{len(self.values)}f", *self.values)


def byte_tokens() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: printable ones themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


TEXTS = byte_tokens() + [merge.replace(" ", "") for merge in MERGES]
IDS = {token: index for index, token in enumerate([*TEXTS, *MARKS, *TOOL_MARKS])}
SIZE = (len(IDS) + 31) // 32 * 32


def seldom() -> Iterator[int]:
    """The tokens that it shall seldom say: what is not printable, and what ends."""
    yield from range(0x20)
    yield from range(0x7F, 0x100)
    yield from range(len(TEXTS), SIZE)


def tensors() -> Iterator[Tensor]:
    """The whole model."""
    draw = random.Random(0)  # noqa: S311 - the same model every time

    def matrix(folder: str, gguf: str, rows: int, columns: int, scale: float) -> Tensor:
        values = [draw.gauss(0, scale) for _ in range(rows * columns)]
        return Tensor(folder, gguf, rows, columns, values)

    def ones(folder: str, gguf: str) -> Tensor:
        return Tensor(folder, gguf, None, WIDTH, [1.0] * WIDTH)

    yield matrix("model.embed_tokens.weight", "token_embd.weight", SIZE, WIDTH, 0.5)
    yield ones("model.norm.weight", "output_norm.weight")
    head = matrix("lm_head.weight", "output.weight", SIZE, WIDTH, 0.4)
    for token in seldom():
        for index in range(token * WIDTH, (token + 1) * WIDTH):
            head.values[index] *= 0.01
    yield head
    for layer in range(LAYERS):
        folder, gguf = f"model.layers.{layer}.", f"blk.{layer}."
        yield ones(f"{folder}input_layernorm.weight", f"{gguf}attn_norm.weight")
        yield ones(f"{folder}post_attention_layernorm.weight", f"{gguf}ffn_norm.weight")
        for theirs, ours in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
            names = f"{folder}self_attn.{theirs}_proj.weight", f"{gguf}attn_{ours}.weight"
            yield matrix(*names, WIDTH, WIDTH, 0.1)
        for name, rows, columns in (
            ("gate", FEED, WIDTH),
            ("up", FEED, WIDTH),
            ("down", WIDTH, FEED),
        ):
            names = f"{folder}mlp.{name}_proj.weight", f"{gguf}ffn_{name}.weight"
            yield matrix(*names, rows, columns, 0.1)


# A folder as transformers reads it: safetensors, and JSON beside it.


def safetensors() -> bytes:
    """The weights."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for tensor in tensors():
        start = len(data)
        data += tensor.encode()
        shape = [tensor.columns] if tensor.rows is None else [tensor.rows, tensor.columns]
        offsets = [start, len(data)]
        header[tensor.folder_name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


def config() -> dict[str, object]:
    """What the model is."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": SIZE,
        "hidden_size": WIDTH,
        "intermediate_size": FEED,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": WIDTH // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "tie_word_embeddings": False,
        **{f"{kind}_token_id": IDS[token] for kind, token in special().items()},
    }


def special() -> dict[str, str]:
    """Which mark is what."""
    return {"bos": "<|endoftext|>", "eos": "<|im_end|>", "pad": "<|pad|>"}


def tokenizer() -> dict[str, object]:
    """Byte-level BPE, without a word at the beginning that nobody wrote."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {
            "id": IDS[token],
            "content": token,
            "special": token in MARKS,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for token in [*MARKS, *TOOL_MARKS]
    ]
    model = {
        "type": "BPE",
        "vocab": IDS,
        "merges": [merge.split(" ") for merge in MERGES],
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix"), None),
        **dict.fromkeys(("end_of_word_suffix",), None),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
    }
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {**level, "use_regex": True},
        "decoder": {**level, "use_regex": True},
        "model": model,
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"), None),
    }


def write_folder(path: Path) -> None:
    """All files, in place of what was there."""
    unfinished = path.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors").write_bytes(safetensors())
    (unfinished / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    marks = {f"{kind}_token": token for kind, token in special().items()}
    class_ = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT}
    for name, content in (
        ("config.json", config()),
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", {**class_, **marks}),
    ):
        (unfinished / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    shutil.rmtree(path, ignore_errors=True)
    unfinished.replace(path)


# One file as llama.cpp reads it: typed pairs, a list of tensors, their numbers.


def string(text: str) -> bytes:
    """A string with its length."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    """A key with its typed value."""
    return string(key) + struct.pack("<I", kind) + value


def number(key: str, value: int) -> bytes:
    """A key with a number."""
    return pair(key, UINT32, struct.pack("<I", value))


def strings(key: str, values: list[str]) -> bytes:
    """A key with a list of strings."""
    return pair(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(string, values)))


def metadata() -> list[bytes]:
    """What the model is."""
    unused = [f"<unused{number}>" for number in range(SIZE - len(IDS))]
    kinds = [NORMAL] * len(TEXTS) + [CONTROL] * len(MARKS) + [USER_DEFINED] * len(TOOL_MARKS)
    kinds += [UNUSED] * len(unused)
    types = struct.pack(f"<IQ{SIZE}i", INT32, SIZE, *kinds)
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return [
        pair("general.architecture", STRING, string("llama")),
        pair("general.name", STRING, string("tiny-llama")),
        number("general.file_type", 0),
        number("llama.context_length", CONTEXT),
        number("llama.embedding_length", WIDTH),
        number("llama.block_count", LAYERS),
        number("llama.feed_forward_length", FEED),
        number("llama.attention.head_count", HEADS),
        number("llama.attention.head_count_kv", HEADS),
        number("llama.rope.dimension_count", WIDTH // HEADS),
        number("llama.vocab_size", SIZE),
        pair("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        pair("tokenizer.ggml.model", STRING, string("gpt2")),
        pair("tokenizer.ggml.pre", STRING, string("gpt-2")),
        strings("tokenizer.ggml.tokens", [*IDS, *unused]),
        pair("tokenizer.ggml.token_type", ARRAY, types),
        strings("tokenizer.ggml.merges", MERGES),
        *(
            number(f"tokenizer.ggml.{names[kind]}_token_id", IDS[token])
            for kind, token in special().items()
        ),
        pair("tokenizer.ggml.add_bos_token", BOOL, b"\x00"),
        pair("tokenizer.chat_template", STRING, string(TEMPLATE)),
    ]


def gguf() -> bytes:
    """The whole file."""
    listed, data, count = b"", bytearray(), 0
    for tensor in tensors():
        # The innermost side comes first.
        sides = [tensor.columns] if tensor.rows is None else [tensor.columns, tensor.rows]
        shape = struct.pack(f"<I{len(sides)}Q", len(sides), *sides)
        listed += string(tensor.gguf_name) + shape + struct.pack("<IQ", 0, len(data))
        data += tensor.encode()
        data += bytes(-len(data) % ALIGNMENT)
        count += 1
    pairs = metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(pairs)) + b"".join(pairs) + listed
    return head + bytes(-len(head) % ALIGNMENT) + data


def write_gguf(path: Path) -> None:
    """Whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(gguf())
    unfinished.replace(path)


def main() -> None:
    """The command."""
    kind, path = sys.argv[1:]
    {"folder": write_folder, "gguf": write_gguf}[kind](Path(path))


if __name__ == "__main__":
    main()
