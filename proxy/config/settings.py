"""The settings themselves: name, unit, default, bound and meaning of each, in this one place.

The README's table, ``docker/proxy.env.example`` and ``bulwark check`` are made from the fields below.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.config.values import (
    AddressHeader,
    ClientKeys,
    EndpointNames,
    FieldNames,
    FilePath,
    HeaderNames,
    Host,
    HostNames,
    KvBudget,
    ModelNames,
    Origins,
    Peers,
    Port,
    RedisUrl,
    RefusedFieldNames,
    Seconds,
    Unusable,
    UpstreamKey,
    UpstreamUrl,
)
from proxy.policy.limits import Engine
from proxy.principal import MOST

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_HOUR = 3600.0
_DAY = 24 * _HOUR

CONFLICT = "conflict"


def _setting(
    default: object,
    meaning: str,
    *,
    unit: str = "",
    bound: str = "",
    secret: bool = False,
    ge: float | None = None,
    le: float | None = None,
) -> Any:
    """A field with what its documentation says.

    Args:
        default: The value where the environment says nothing.
        meaning: One sentence, for the README and the example file.
        unit: What a number counts.
        bound: What is accepted, where neither the type nor ``ge`` and ``le`` tell.
        secret: Whether it is never shown, and may be given as the file that ``<NAME>_FILE`` names.
        ge: The least that is accepted.
        le: The most that is accepted.
    """
    extra: dict[str, Any] = {"unit": unit, "bound": bound, "secret": secret}
    return Field(default, description=meaning, json_schema_extra=extra, ge=ge, le=le)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that are right one by one and wrong together."""

    fields: tuple[str, ...]
    message: str


class Settings(BaseSettings):
    """What the operator decided. Valid by construction, and never changed afterwards.

    Reads nothing by itself: ``load`` does, from an environment that it is given.
    """

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, validate_default=False, hide_input_in_errors=True
    )

    host: Host = _setting(
        "127.0.0.1",
        "Address of the public listener, the only one that a tunnel may reach.",
        bound="IP address or host name",
    )
    port: Port = _setting(8080, "Port of the public listener; 0 takes any free one.")
    admin_host: Host = _setting(
        "127.0.0.1",
        "Address of the admin listener (health, readiness, metrics); never put a tunnel on it.",
        bound="IP address or host name",
    )
    admin_port: Port = _setting(9090, "Port of the admin listener; 0 takes any free one.")
    admin_hosts: HostNames = _setting(
        (),
        "More `Host` names that the admin listener answers to, besides loopback and its own address.",
        bound="host names, comma separated",
    )

    upstream_url: UpstreamUrl = _setting(
        "http://127.0.0.1:8000",
        "The inference server, as a TCP address or as a Unix socket.",
        bound="http://host:port, https://host:port or unix:///path",
    )
    upstream_api_key: UpstreamKey | None = _setting(
        None,
        "Sent to the upstream as its bearer token, in place of the client's key.",
        bound="printable ASCII without spaces",
        secret=True,
    )

    api_keys: ClientKeys = _setting(
        (),
        "Keys that clients may use, named env-1, env-2, … in logs.",
        bound="at least 32 characters each, comma separated",
        secret=True,
    )
    keys_file: FilePath | None = _setting(
        None,
        "File of hashed keys, made by `bulwark keys`; a change is in force within 2 s.",
        bound="path of a TOML file",
    )
    allow_anonymous: bool = _setting(
        False, "Serve clients that send no key; without any key at all, serve everybody."
    )
    trusted_proxies: Peers = _setting(
        (),
        "Who may say where a client is: the tunnel's own address, as this server sees it.",
        bound="addresses or networks, comma separated",
    )
    client_ip_header: AddressHeader | None = _setting(
        None,
        "The one header in which a trusted proxy says it; cloudflared: `CF-Connecting-IP`.",
        bound="name of a header",
    )

    endpoints: EndpointNames = _setting(
        (),
        "The endpoints served, in place of the default ones.",
        bound="endpoint names, comma separated",
    )
    models: ModelNames = _setting(
        (),
        "The only models that anybody may use; none given is all that the upstream has.",
        bound="model names, comma separated",
    )
    engine: Engine = _setting("vllm", "The engine behind, for what only one of them needs.")
    profile: Literal["standard", "strict"] = _setting(
        "standard", "`strict` refuses a second tier of fields and hides where models are on disk."
    )

    max_prompt_chars: int = _setting(
        10_000, "Prompt of one request.", unit="characters", ge=1, le=MOST["max_prompt_chars"]
    )
    max_prompt_chars_ceiling: int = _setting(
        0,
        "How far a key's own `max_prompt_chars` may go above `PROXY_MAX_PROMPT_CHARS`; 0 is not at all.",
        unit="characters",
        ge=0,
        le=MOST["max_prompt_chars"],
    )
    max_schema_chars: int = _setting(
        64_000,
        "Tools and output schemas of one request: compact JSON, or a quarter of what templates write if more.",
        unit="characters",
        ge=1,
        le=16 * _MIB,
    )
    max_output_tokens: int = _setting(
        4_096,
        "Output of one request, over all its sequences.",
        unit="tokens",
        ge=1,
        le=MOST["max_output_tokens"],
    )
    max_output_tokens_ceiling: int = _setting(
        0,
        "How far a key's own `max_output_tokens` may go above `PROXY_MAX_OUTPUT_TOKENS`; 0 is not at all.",
        unit="tokens",
        ge=0,
        le=MOST["max_output_tokens"],
    )
    output_overflow: Literal["clamp", "reject"] = _setting(
        "clamp", "Whether a request for more output is lowered (and told so) or refused."
    )
    max_choices: int = _setting(
        8,
        "Sequences of one request: its prompts times `n`, `best_of` or `n_cmpl`.",
        unit="sequences",
        ge=1,
        le=128,
    )
    max_media_parts: int = _setting(
        8, "Images and sounds in one request; 0 refuses them.", unit="parts", ge=0, le=128
    )
    max_body_bytes: int = _setting(
        2 * _MIB, "Body of one request.", unit="bytes", ge=_KIB, le=256 * _MIB
    )
    max_buffered_bytes: int = _setting(
        64 * _MIB,
        "Bodies of all requests together that are held in memory at one moment.",
        unit="bytes",
        ge=_KIB,
        le=64 * _GIB,
    )
    max_response_bytes: int = _setting(
        64 * _MIB,
        "Body of one response; a longer one is broken off.",
        unit="bytes",
        ge=_KIB,
        le=64 * _GIB,
    )
    allow_fields: RefusedFieldNames = _setting(
        (),
        "Request fields taken out of the table of refused ones; a name that is not in it is an error.",
        bound="field names, comma separated",
    )
    deny_fields: FieldNames = _setting(
        (),
        "Request fields refused besides those of the table.",
        bound="field names, comma separated",
    )
    cache_salt: Literal["off", "per-key"] = _setting(
        "off", "`per-key` gives each key a prefix cache of its own at the engine."
    )
    response_headers: HeaderNames = _setting(
        (),
        "More response headers of the upstream that are relayed to the client.",
        bound="header names, comma separated",
    )
    cors_origins: Origins = _setting(
        (),
        "Web pages whose scripts may call this server; none answers no CORS at all.",
        bound="origins such as https://chat.example.org, comma separated",
    )

    max_inflight: int = _setting(
        32, "Requests at the upstream at one moment.", unit="requests", ge=1, le=65_536
    )
    key_max_inflight: int = _setting(
        0,
        "Of these, the most that one key may hold; 0 is three quarters where there are several keys.",
        unit="requests",
        ge=0,
        le=65_536,
    )
    key_requests_per_minute: int = _setting(
        0,
        "Requests of a key that has no limit of its own; 0 sets none.",
        unit="requests",
        ge=0,
        le=MOST["requests_per_minute"],
    )
    key_tokens_per_minute: int = _setting(
        0,
        "Tokens, prompt and output, of a key that has no limit of its own; 0 sets none.",
        unit="tokens",
        ge=0,
        le=MOST["tokens_per_minute"],
    )
    key_tokens_per_day: int = _setting(
        0,
        "Tokens in 24 hours of a key that has no limit of its own; 0 sets none.",
        unit="tokens",
        ge=0,
        le=MOST["tokens_per_day"],
    )
    key_concurrency: int = _setting(
        0,
        "Requests at one moment of a key that has no limit of its own, one more is refused; 0 sets none.",
        unit="requests",
        ge=0,
        le=MOST["concurrency"],
    )
    redis_url: RedisUrl | None = _setting(
        None,
        "Redis or Valkey that counts the keys' limits for several replicas; none counts here.",
        bound="redis://…, rediss://… or unix:///path",
        secret=True,
    )
    redis_failure: Literal["local", "closed"] = _setting(
        "local", "Without Redis, `local` counts here and `closed` refuses who has limits."
    )
    usage_db: FilePath | None = _setting(
        None,
        "File of what each key has used by day, so that a restart gives no key a new day; none remembers nothing.",
        bound="path of an SQLite file, made if it is not there",
    )
    kv_budget_tokens: KvBudget = _setting(
        "auto",
        "Tokens that the requests at the upstream may need together; `auto` is nine tenths of its KV cache.",
        bound="auto, off or a number of tokens",
    )
    media_tokens: int = _setting(
        2_000,
        "What one image or sound is taken to need of that.",
        unit="tokens",
        ge=0,
        le=_MIB,
    )
    queue_size: int = _setting(
        64, "Requests that wait for a place; one more is refused.", unit="requests", ge=0, le=65_536
    )
    queue_timeout_seconds: Seconds = _setting(
        30.0, "How long a request waits for a place.", unit="seconds", ge=0.0, le=_HOUR
    )
    max_connections: int = _setting(
        4_096,
        "Connections of clients at one moment; one more takes the place of an idle one, or gets 503.",
        unit="connections",
        ge=1,
        le=65_536,
    )
    max_idle_connections: int = _setting(
        1_024,
        "Of these, those that wait for a request; one more closes one: of clients without a key first, and of them the one that has waited longest.",
        unit="connections",
        ge=1,
        le=65_536,
    )
    max_connections_per_address: int = _setting(
        256,
        "Of one address (IPv6: /64), one more is refused with 429; trusted proxies are not counted; 0 sets none.",
        unit="connections",
        ge=0,
        le=65_536,
    )
    connect_timeout_seconds: Seconds = _setting(
        5.0, "Connecting to the upstream.", unit="seconds", ge=0.01, le=_HOUR
    )
    first_byte_timeout_seconds: Seconds = _setting(
        600.0,
        "Until the upstream's status; a plain answer comes when its generation is done.",
        unit="seconds",
        ge=0.01,
        le=_DAY,
    )
    idle_timeout_seconds: Seconds = _setting(
        300.0,
        "Between two chunks of the upstream's answer, while its client keeps up.",
        unit="seconds",
        ge=0.01,
        le=_DAY,
    )
    total_timeout_seconds: Seconds = _setting(
        1800.0, "One request, from its body to its last byte.", unit="seconds", ge=0.01, le=_DAY
    )
    write_through: bool = _setting(
        True,
        "Streams go from socket to socket; `false` takes each chunk through the application, slower, to find faults.",
    )
    sse_keepalive_seconds: Seconds = _setting(
        15.0,
        "Silence in an event stream after which a comment is sent, so that no tunnel cuts it; 0 sends none.",
        unit="seconds",
        ge=0.0,
        le=_HOUR,
    )
    sse_commit_seconds: Seconds = _setting(
        45.0,
        "A request for a stream to which the upstream has not answered by then gets a 200 and "
        "comments, and what goes wrong later as an error event; 0 never, nor without comments.",
        unit="seconds",
        ge=0.0,
        le=_HOUR,
    )
    write_timeout_seconds: Seconds = _setting(
        60.0,
        "A client that takes nothing of its answer is cut off.",
        unit="seconds",
        ge=0.01,
        le=_HOUR,
    )
    body_timeout_seconds: Seconds = _setting(
        30.0, "Receiving the body of a request.", unit="seconds", ge=0.01, le=_HOUR
    )
    drain_seconds: Seconds = _setting(
        120.0,
        "How long requests in flight may take to finish after SIGTERM.",
        unit="seconds",
        ge=0.0,
        le=_DAY,
    )

    log_format: Literal["json", "text"] = _setting("json", "Form of the log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Least severe log line that is written."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 -- the base class names them all
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the caller hands over: no variable and no .env file may slip in beside it."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _usable(cls, value: object) -> object:
        if isinstance(value, Unusable):
            raise ValueError(value.reason)  # noqa: TRY004 -- pydantic collects no TypeError
        return value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if conflicts := tuple(_conflicts(self)):
            raise PydanticCustomError(CONFLICT, "settings disagree", {"conflicts": conflicts})
        return self


def _conflicts(settings: Settings) -> Iterator[Conflict]:
    if not (settings.api_keys or settings.keys_file or settings.allow_anonymous):
        yield Conflict(
            ("api_keys", "keys_file", "allow_anonymous"),
            "no keys at all: set PROXY_API_KEYS or PROXY_KEYS_FILE, or say "
            "PROXY_ALLOW_ANONYMOUS=true to serve everybody who can connect",
        )
    if settings.port and (settings.host, settings.port) == (
        settings.admin_host,
        settings.admin_port,
    ):
        yield Conflict(
            ("host", "port", "admin_host", "admin_port"),
            "PROXY_PORT and PROXY_ADMIN_PORT are the same on the same address",
        )
    if settings.max_buffered_bytes < settings.max_body_bytes:
        yield Conflict(
            ("max_buffered_bytes", "max_body_bytes"),
            "PROXY_MAX_BUFFERED_BYTES is less than PROXY_MAX_BODY_BYTES: "
            "a body of the permitted size could never be read",
        )
    if settings.max_output_tokens < settings.max_choices:
        yield Conflict(
            ("max_output_tokens", "max_choices"),
            "PROXY_MAX_OUTPUT_TOKENS is less than PROXY_MAX_CHOICES: "
            "each sequence needs at least one token",
        )
    for name in ("max_prompt_chars", "max_output_tokens"):
        ceiling = getattr(settings, f"{name}_ceiling")
        if 0 < ceiling < getattr(settings, name):
            yield Conflict(
                (name, f"{name}_ceiling"),
                f"PROXY_{name.upper()}_CEILING is less than PROXY_{name.upper()}: nobody could be "
                "given what everybody has",
            )
    if settings.key_max_inflight > settings.max_inflight:
        yield Conflict(
            ("key_max_inflight", "max_inflight"),
            "PROXY_KEY_MAX_INFLIGHT is more than PROXY_MAX_INFLIGHT: there are not so many places",
        )
    if bool(settings.client_ip_header) != bool(settings.trusted_proxies):
        yield Conflict(
            ("client_ip_header", "trusted_proxies"),
            "PROXY_CLIENT_IP_HEADER and PROXY_TRUSTED_PROXIES go together: who may say where a client "
            "is, and in which header",
        )
    if set(settings.allow_fields) & set(settings.deny_fields):
        yield Conflict(
            ("allow_fields", "deny_fields"),
            "PROXY_ALLOW_FIELDS and PROXY_DENY_FIELDS name the same field",
        )
