"""What may be reached: one table, matched exactly, everything else denied.

The match is on the raw bytes of the request target. A decoded path must never decide
(``/v1%2Fmodels`` decodes to ``/v1/models``), nor the Host header (CVE-2026-48710).
"""

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.errors import Dialect, MethodNotAllowed, NotFound, Refusal


class BodyKind(StrEnum):
    """What a request body asks for; each kind has its own governed fields."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the table.

    Attributes:
        name: The label in logs, metrics and ``PROXY_ENDPOINTS``.
        method: The only method served.
        path: The exact raw path, here and at the upstream.
        body: The kind of its request body; None where there is none.
        dialect: Whose errors its clients parse.
        streams: Whether ``stream: true`` is answered with an event stream.
        default: Whether it is served unless ``PROXY_ENDPOINTS`` says otherwise.
    """

    name: str
    method: str
    path: bytes
    body: BodyKind | None = None
    dialect: Dialect = Dialect.OPENAI
    streams: bool = False
    default: bool = True


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("models", "GET", b"/v1/models"),
    Endpoint("chat.completions", "POST", b"/v1/chat/completions", BodyKind.CHAT, streams=True),
    Endpoint("completions", "POST", b"/v1/completions", BodyKind.COMPLETIONS, streams=True),
    Endpoint(
        "responses", "POST", b"/v1/responses", BodyKind.RESPONSES, Dialect.RESPONSES, streams=True
    ),
    Endpoint(
        "messages", "POST", b"/v1/messages", BodyKind.MESSAGES, Dialect.ANTHROPIC, streams=True
    ),
    Endpoint(
        "messages.count_tokens",
        "POST",
        b"/v1/messages/count_tokens",
        BodyKind.COUNT_TOKENS,
        Dialect.ANTHROPIC,
    ),
    Endpoint("embeddings", "POST", b"/v1/embeddings", BodyKind.EMBEDDINGS),
    Endpoint("rerank", "POST", b"/v1/rerank", BodyKind.RERANK, default=False),
    Endpoint("score", "POST", b"/v1/score", BodyKind.SCORE, default=False),
)


@dataclass(frozen=True, slots=True)
class Route:
    """The table's answer. ``endpoint`` is the path's row even when ``refusal`` denies the method."""

    endpoint: Endpoint | None
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class EndpointTable:
    """The rows that this server serves."""

    served: tuple[Endpoint, ...]
    _by_path: dict[bytes, Endpoint] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_path", {row.path: row for row in self.served})

    @classmethod
    def named(cls, names: tuple[str, ...]) -> "EndpointTable":
        """The rows with these names, in the table's order; no names means the default rows.

        Raises:
            ValueError: A name that no row has.
        """
        if unknown := sorted(set(names) - {row.name for row in ENDPOINTS}):
            known = ", ".join(row.name for row in ENDPOINTS)
            raise ValueError(f"unknown endpoint {', '.join(unknown)}; known are {known}")
        return cls(tuple(row for row in ENDPOINTS if (row.name in names if names else row.default)))

    def match(self, method: str, raw_path: bytes) -> Route:
        """The row for a request, or why there is none. Exact bytes, deny by default."""
        endpoint = self._by_path.get(raw_path)
        if endpoint is None:
            known = ", ".join(f"{row.method} {row.path.decode()}" for row in self.served)
            return Route(
                None,
                NotFound(
                    "There is nothing at this path. The base URL of this server ends in /v1, "
                    f"without a trailing slash; it answers {known}."
                ),
            )
        if method != endpoint.method:
            refusal = MethodNotAllowed(
                f"{endpoint.path.decode()} answers {endpoint.method} only.",
                headers=[(b"allow", endpoint.method.encode())],
            )
            return Route(endpoint, refusal)
        return Route(endpoint)
