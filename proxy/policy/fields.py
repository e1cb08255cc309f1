"""The fields that are refused by name, each with its reason.

A table of what is known to be hostile, not a schema of what is known: unknown fields pass. A name is
looked for at the top level of the body, inside ``chat_template_kwargs``, for grammars inside
``structured_outputs`` and, for media and embeddings, in content parts; never inside schemas,
arguments, ``tool_use.input`` or text, where a tool may well have a property called ``input_ids``.
A value of null or false is as good as absent.

Sources: the source of vLLM 0.33.0 and SGLang 0.5.23, and the advisories named.
"""

from collections.abc import Mapping
from typing import Any

from proxy.endpoints import BodyKind
from proxy.errors import FieldRefused
from proxy.policy import tables
from proxy.policy.limits import Limits

_REPLACES = "it replaces or smuggles a prompt past the cap"
_RUNS = "it runs code or templates in the server"
_REACHES = "it makes the server reach out or load from a path"
_BLOWS_UP = "it multiplies the work or the size of the response"
_ROUTES = "it steers scheduling or identity inside the server"
_DENIED = "PROXY_DENY_FIELDS names it"
_STATE = "it pulls in state that is not in the body"
_CRASHES = "it has crashed engines or leaked between requests"
_HOLDS = "a short one can hold the engine, and everybody in it, for minutes"

HOSTILE: Mapping[str, str] = {
    # vLLM feeds kv_transfer_params.prompt_token_ids to the engine in place of the messages, even
    # without a KV connector (seen live on 0.32.0: "hi" became 1,500 tokens). Also CVE-2026-94622,
    # -94623, -94626.
    "kv_transfer_params": _REPLACES,
    "ec_transfer_params": _REPLACES,
    "prompt_embeds": _REPLACES,  # torch.load on client bytes: CVE-2025-62164
    "input_embeds": _REPLACES,
    "input_ids": _REPLACES,  # SGLang chat
    "prompt_token_ids": _REPLACES,
    "embed_overrides": _REPLACES,
    "session_params": _STATE,  # SGLang: continues a session whose prompt is on the server
    "chat_template": _RUNS,  # CVE-2025-61620, CVE-2026-115911, CVE-2026-115918
    "custom_logit_processor": _RUNS,  # dill: CVE-2026-7304
    "lora_path": _REACHES,
    "mm_processor_kwargs": _BLOWS_UP,
    "media_io_kwargs": _BLOWS_UP,  # CVE-2026-105758, CVE-2026-105760
    "images_config": _BLOWS_UP,
    "video_config": _BLOWS_UP,
    "max_dynamic_patch": _BLOWS_UP,
    "use_audio_in_video": _BLOWS_UP,
    "prompt_logprobs": _BLOWS_UP,
    "logprob_token_ids": _BLOWS_UP,  # PYSEC-2026-4350
    "use_beam_search": _BLOWS_UP,
    "generation_config": _BLOWS_UP,  # transformers serve: carries its own max_new_tokens
    "n_discard": _CRASHES,  # llama.cpp, heap overflow: CVE-2026-21869
    # What llama.cpp tells itself about a template, and takes from whoever sends it: a parser that
    # refers to itself, or a trigger of a type that there is not, ends the server (seen live).
    "chat_parser": _CRASHES,
    "grammar_triggers": _CRASHES,
    # 30 rules that each name the next one twice, 700 characters, held llama.cpp (with 5 GB) and
    # vLLM 0.32.0 for as long as anybody looked, and went on when the client had left (seen live).
    "grammar": _HOLDS,  # llama.cpp
    "ebnf": _HOLDS,  # SGLang
    "guided_grammar": _HOLDS,  # vLLM before 0.12
    "structural_tag": _HOLDS,  # a grammar may be in it
    "request_id": _ROUTES,  # CVE-2026-116176, CVE-2026-105755
    "rid": _ROUTES,  # SGLang
    "data_parallel_rank": _ROUTES,
    "routed_dp_rank": _ROUTES,
    "disagg_prefill_dp_rank": _ROUTES,
    "extra_key": _ROUTES,  # SGLang: joins another key's prefix cache
}

HOSTILE_ENDINGS: Mapping[str, str] = {"_embeds": _REPLACES}
HOSTILE_BEGINNINGS: Mapping[str, str] = {"bootstrap_": _REACHES}  # SGLang: CVE-2026-92972

# Tolerable among friends, refused where PROXY_PROFILE=strict.
STRICT: Mapping[str, str] = {
    "priority": _ROUTES,
    "session_id": _ROUTES,
    "id_slot": _ROUTES,  # llama.cpp
    "vllm_xargs": _RUNS,
    "custom_params": _RUNS,
    "bad_words": _CRASHES,  # CVE-2026-93989
    "stop_token_ids": _CRASHES,  # CVE-2026-116181
    "allowed_token_ids": _CRASHES,  # CVE-2026-114049
    "logit_bias": _CRASHES,
}
STRICT_BEGINNINGS: Mapping[str, str] = {"return_": _BLOWS_UP, "routed_experts": _BLOWS_UP}

# Only where they mean this.
HOSTILE_BY_KIND: Mapping[BodyKind, Mapping[str, str]] = {
    BodyKind.RESPONSES: {
        "background": _STATE,
        "previous_response_id": _STATE,
        "previous_input_messages": _STATE,
    },
    # Pads every row to the model's whole context.
    BodyKind.EMBEDDINGS: {"padding": _BLOWS_UP},
}

# Arguments of apply_chat_template, not variables of a template: CVE-2025-62426.
TEMPLATE_ARGUMENTS: Mapping[str, str] = {
    "tokenize": _RUNS,
    "return_dict": _RUNS,
    "return_tensors": _RUNS,
    "conversation": _REPLACES,
    "messages": _REPLACES,
}

# What `structured_outputs` of vLLM may hold besides schemas.
STRUCTURED_OUTPUTS: Mapping[str, str] = {"grammar": _HOLDS, "structural_tag": _HOLDS}

# Types of a format that are such a field by another way, and where formats are.
FORMAT_TYPES: Mapping[str, str] = dict.fromkeys(("structural_tag", "grammar", "ebnf"), _HOLDS)
FORMATS = (("response_format", None), ("text", "format"), ("output_config", "format"))

# Tools that the server would run itself, or unknown ones that it might, are refused: on this route
# a tool's type decides who acts. These are run by the client, or answered by its own functions.
CLIENT_TOOLS = frozenset({"function", "custom", "local_shell"})
CLIENT_TOOL_BEGINNING = "web_search"
SERVER_TOOLS = ("mcp", "code_interpreter", "container", "shell")

# What `RefusedFields.check_top` looks at besides the names.
_LOOKED_INTO = frozenset(
    {"chat_template_kwargs", "structured_outputs", "echo", *(name for name, _ in FORMATS)}
)
_LOOKED_INTO_BY_KIND = {BodyKind.RESPONSES: {"tools"}}

_TEXTS = frozenset({"messages", "prompt", "input", "system", "instructions"})

# What PROXY_ALLOW_FIELDS may name, besides anything that ends in `_embeds`.
KNOWN = frozenset(
    {
        *HOSTILE,
        *STRICT,
        *TEMPLATE_ARGUMENTS,
        *(name for table in HOSTILE_BY_KIND.values() for name in table),
        *(f"tools.{name}" for name in SERVER_TOOLS),
        "video_url",
        "echo",
    }
)


def is_known(name: str) -> bool:
    """Whether allowing this name changes anything: a misspelt one must be an error at start."""
    beginnings = (*HOSTILE_BEGINNINGS, *STRICT_BEGINNINGS, "tools.")
    return name in KNOWN or name.endswith(tuple(HOSTILE_ENDINGS)) or name.startswith(beginnings)


class RefusedFields:
    """The tables as one operator set them."""

    def __init__(self, limits: Limits) -> None:
        self._allowed = limits.allow_fields
        self._strict = limits.profile == "strict"
        operator = dict.fromkeys(limits.deny_fields, _DENIED)
        strict = STRICT if self._strict else {}
        common = {**HOSTILE, **strict}
        self._tables = {
            kind: self._without_allowed({**common, **HOSTILE_BY_KIND.get(kind, {}), **operator})
            for kind in BodyKind
        }
        self._template = self._without_allowed({**common, **TEMPLATE_ARGUMENTS, **operator})
        self._structured = self._without_allowed(STRUCTURED_OUTPUTS)
        self._endings = tuple(HOSTILE_ENDINGS)
        self._beginnings = (*HOSTILE_BEGINNINGS, *(STRICT_BEGINNINGS if self._strict else ()))
        # What most bodies are made of: how these begin and end need not be looked at each time.
        self._plain = frozenset(
            name
            for name in tables.SAMPLING | tables.ROUTING | tables.SCHEMAS | _TEXTS
            if not name.endswith(self._endings) and not name.startswith(self._beginnings)
        )
        # A body of these alone has nothing to be looked into.
        self._usual = {
            kind: self._plain - table.keys() - _LOOKED_INTO - _LOOKED_INTO_BY_KIND.get(kind, set())
            for kind, table in self._tables.items()
        }

    def check_top(self, kind: BodyKind, body: Mapping[str, Any]) -> None:
        """Looks at the top level, into the two places named above and, on responses, tools.

        Raises:
            FieldRefused: Naming the field, the reason and the setting.
        """
        if self._usual[kind].issuperset(body):
            return
        self._check(self._tables[kind], body, "")
        kwargs = body.get("chat_template_kwargs")
        if type(kwargs) is dict:
            self._check(self._template, kwargs, "chat_template_kwargs.")
        structured = body.get("structured_outputs")
        if type(structured) is dict:
            self._check(self._structured, structured, "structured_outputs.")
        self._check_formats(body)
        if kind is BodyKind.RESPONSES:
            self._check_tools(body.get("tools"))
        if (
            self._strict
            and body.get("echo") not in (None, False)
            and body.get("logprobs") not in (None, False)
            and "echo" not in self._allowed
        ):
            raise _refusal("echo", "echo", "with logprobs " + _BLOWS_UP)

    def check_part(self, name: str, where: str) -> None:
        """Looks at one key or type of a content part.

        Raises:
            FieldRefused: It names embeddings.
        """
        if name.endswith(self._endings) and name not in self._allowed:
            raise _refusal(f"{where}.{name}", name, _REPLACES)

    def allows(self, name: str) -> bool:
        """Whether the operator allowed this name."""
        return name in self._allowed

    def _check(self, table: Mapping[str, str], members: Mapping[str, Any], prefix: str) -> None:
        for name, value in members.items():
            if value is None or value is False:
                continue
            reason = table.get(name)
            if reason is None and name in self._plain:
                continue
            if reason is None and name.endswith(self._endings):
                reason = _REPLACES
            elif reason is None and name.startswith(self._beginnings):
                reason = _REACHES if name.startswith(tuple(HOSTILE_BEGINNINGS)) else _BLOWS_UP
            if reason is not None and name not in self._allowed:
                raise _refusal(prefix + name, name, reason)

    def _check_formats(self, body: Mapping[str, Any]) -> None:
        for name, inner in FORMATS:
            value = body.get(name)
            if inner is not None and type(value) is dict:
                value = value.get(inner)
            kind = value.get("type") if type(value) is dict else None
            # By its name: grammars and tags are refused, schemas are not.
            if type(kind) is str and kind in FORMAT_TYPES and kind not in self._allowed:
                where = f"{name}.{inner}" if inner else name
                raise _refusal(f"{where}.type={kind}", kind, FORMAT_TYPES[kind])

    def _check_tools(self, tools: object) -> None:
        for index, tool in enumerate(tools if type(tools) is list else ()):
            kind = tool.get("type") if type(tool) is dict else None
            name = kind if type(kind) is str else "?"
            if name in CLIENT_TOOLS or name.startswith(CLIENT_TOOL_BEGINNING):
                continue
            if f"tools.{name}" not in self._allowed:
                shown = name if name in SERVER_TOOLS else "another"
                raise FieldRefused(
                    f"Tools of type function, custom, web_search and local_shell are accepted here; "
                    f"tools[{index}] is of {shown} type, which the server might run itself "
                    "(PROXY_ALLOW_FIELDS=tools.TYPE allows one).",
                    param=f"tools[{index}].type",
                )

    def _without_allowed(self, table: Mapping[str, str]) -> dict[str, str]:
        return {name: reason for name, reason in table.items() if name not in self._allowed}


def _refusal(path: str, name: str, reason: str) -> FieldRefused:
    # The name is one of a table, or ends or begins like one: cut what the client made up.
    way_out = (
        "" if reason == _DENIED else f" The operator can allow it: PROXY_ALLOW_FIELDS={name[:40]}."
    )
    return FieldRefused(
        f"The field {path[:80]!r} is not accepted here: {reason}.{way_out}", param=path[:80]
    )
