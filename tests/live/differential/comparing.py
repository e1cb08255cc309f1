"""One run: seeded bodies through the proxy to an engine, and what came of each."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.endpoints import ENDPOINTS, BodyKind
from proxy.errors import Refusal
from proxy.policy import Cost, Limits, Policy, Terms
from tests.harness.client import RawResponse
from tests.harness.running import Running
from tests.harness.tap import tap_of
from tests.harness.upstream import ReceivedRequest
from tests.live.differential import oracle
from tests.live.differential.bodies import Body
from tests.live.differential.draws import Draw
from tests.live.differential.oracle import SHAPES, Pool, Rendered, Shape, Usage

PATHS = {row.name: row.path.decode() for row in ENDPOINTS}
KINDS: dict[str, BodyKind] = {row.name: row.body for row in ENDPOINTS if row.body}
GENERATING = {BodyKind.CHAT, BodyKind.COMPLETIONS, BodyKind.RESPONSES, BodyKind.MESSAGES}
WORKERS = 12

_ANSWER = re.compile(rb"HTTP/1\.1 [2-5][0-9]{2} ")


class Renderer(Protocol):
    """What tells the prompt that an engine makes of a body."""

    async def render(self, path: str, body: bytes, shape: Shape) -> Rendered | None:
        """None where the engine refuses the body, or does not tell."""
        ...


@dataclass(slots=True)
class Compared:
    """One body and what came of it.

    Attributes:
        cost: What the policy says of it; None where it refuses.
        received: What reached the tap; None if nothing did.
        outcome: What the proxy's line says of it: not every API's errors have a code.
        rendered: The prompts, by the names of the shapes.
        findings: What the engine did more than the proxy counted, or the proxy did wrong.
        excess: The most that it was over what is allowed, in characters or tokens.
    """

    body: Body
    response: RawResponse
    cost: Cost | None
    received: bytes | None
    outcome: str = ""
    usage: Usage | None = None
    rendered: dict[str, Rendered] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    excess: float = 0

    @property
    def request_id(self) -> str:
        """The proxy's."""
        return (self.response.header(b"x-request-id") or b"").decode()

    def hold(self, what: str, did: float, may: float) -> None:
        """Notes it if the engine did more than it may."""
        if did > may:
            self.excess = max(self.excess, did - may)
            self.findings.append(f"{what}: {did:,.0f}, and {may:,.0f} are allowed")

    def __str__(self) -> str:
        same = self.received == self.body.data
        lines = [
            *self.findings,
            f"  POST {PATHS[self.body.endpoint]} -> {self.response.status}; {self.cost}",
            f"  sent     {self.body.data!r}",
            f"  received {'the same' if same else repr(self.received)}",
        ]
        return "\n".join(lines)


@dataclass(slots=True)
class Run:
    """All that goes to one engine.

    Attributes:
        renderer: None for an engine that does not tell what it renders.
        compared: Every body, in the order in which their comparisons ended.
        ratios: For each shape the most that it rendered of what was counted, and of which body.
        schema_factors: The same of schemas alone.
    """

    running: Running
    limits: Limits
    to_proxy: Pool
    renderer: Renderer | None
    draw: Draw
    compared: list[Compared] = field(default_factory=list)
    ratios: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    schema_factors: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    seconds: float = 0.0
    _policy: Policy = field(init=False)
    _received: dict[bytes, list[ReceivedRequest]] = field(default_factory=dict)
    _seen: int = 0

    def __post_init__(self) -> None:
        self._policy = Policy(self.limits)

    async def all(self, bodies: Iterator[Body], seconds: float) -> None:
        """Compares them, several at once, until they or the time are over."""
        started = time.perf_counter()

        async def work() -> None:
            for body in bodies:
                self.compared.append(await self.compare(body))
                if time.perf_counter() - started > seconds:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(work())
        await self.running.idle()
        lines = {line["request_id"]: line for line in self.running.log.requests()}
        for compared in self.compared:
            _compare_line(compared, lines[compared.request_id])
        self.seconds = time.perf_counter() - started

    async def compare(self, body: Body) -> Compared:
        """One body through the proxy, and the same again past it, only to be rendered."""
        path = PATHS[body.endpoint]
        response = await self.to_proxy.post(path, body.data)
        compared = Compared(body, response, self._cost(body), None)
        arrived = self._arrived(compared.request_id)
        if len(arrived) != (compared.cost is not None):
            compared.findings.append(
                f"reached the engine {len(arrived)} times ({self._fates(compared.request_id)})"
            )
        if not arrived or compared.cost is None:
            return compared
        compared.received = arrived[0]
        if wrong := oracle.wrongly_edited(body.data, compared.received):
            compared.findings.append(f"the proxy {wrong}")
        if response.status == 200:
            compared.usage = oracle.usage_of(response)
            if compared.usage is not None:
                self._hold_usage(compared, compared.cost, compared.usage)
            elif b'"error"' not in response.body:
                compared.findings.append(f"no usage in {response.body!r}")
        if self.renderer is None or response.status != 200:
            return compared
        for shape in (SHAPES[0], self.draw.choice(SHAPES[1:])):
            rendered = await self.renderer.render(path, compared.received, shape)
            if rendered is not None:
                compared.rendered[shape.name] = rendered
                self._hold_rendered(compared, compared.cost, shape, rendered)
        return compared

    def _cost(self, body: Body) -> Cost | None:
        try:
            return self._policy.check(KINDS[body.endpoint], body.data, Terms()).cost
        except Refusal:
            return None

    def _arrived(self, request_id: str) -> list[bytes]:
        """The bodies that the engine was sent under this id, but for one that its close has crossed."""
        tap = tap_of(self.running)
        for request in tap.requests[self._seen :]:
            sent_as = request.header(b"x-request-id") or b""
            self._received.setdefault(sent_as, []).append(request)
        self._seen = len(tap.requests)
        arrived = self._received.get(request_id.encode(), [])
        if len(arrived) > 1 and self._was_crossed(arrived[0]):
            arrived = arrived[1:]
        return [request.body for request in arrived]

    def _was_crossed(self, request: ReceivedRequest) -> bool:
        """Whether an engine that closed an idle connection got it there, and said nothing to it.

        Only then may it be sent once more: see the transport's own tests.
        """
        tap = tap_of(self.running)
        there = [other for other in tap.requests if other.connection == request.connection]
        answered = _ANSWER.findall(tap.answers[request.connection])
        return there[-1] is request and len(there) > 1 and len(answered) == len(there) - 1

    def _fates(self, request_id: str) -> str:
        """What became of the connections on which it arrived."""
        tap = tap_of(self.running)
        fates = []
        for request in self._received.get(request_id.encode(), []):
            there = [other for other in tap.requests if other.connection == request.connection]
            answered = _ANSWER.findall(tap.answers[request.connection])
            closed = tap.connections[request.connection].closed.is_set()
            fates.append(
                f"number {there.index(request) + 1} of {len(there)} on connection "
                f"{request.connection}, {len(answered)} answered, {'closed' if closed else 'open'}"
            )
        return "; ".join(fates)

    # What is more than it may be.

    def _output(self, compared: Compared, cost: Cost) -> int:
        return min(cost.sequences * cost.output_tokens, self.limits.max_output_tokens)

    def _hold_usage(self, compared: Compared, cost: Cost, usage: Usage) -> None:
        if KINDS[compared.body.endpoint] in GENERATING:
            compared.hold("tokens of output", usage.output_tokens, self._output(compared, cost))
            compared.hold("choices", usage.choices, min(cost.sequences, self.limits.max_choices))
        data = compared.body.data
        bytes_a_char = 1 if data.isascii() and b"\\u" not in data else 4
        may = oracle.allowed(data, cost, SHAPES[0]) * bytes_a_char
        compared.hold("tokens of prompt", usage.prompt_tokens, may)

    def _hold_rendered(
        self, compared: Compared, cost: Cost, shape: Shape, rendered: Rendered
    ) -> None:
        usage, data = compared.usage, compared.body.data
        known = usage is not None and 0 not in (rendered.tokens, usage.prompt_tokens)
        if usage and known and shape is SHAPES[0] and rendered.tokens != usage.prompt_tokens:
            compared.findings.append(
                f"a blind oracle: {usage} of a prompt that was rendered as {rendered}"
            )
        may = oracle.allowed(data, cost, shape)
        compared.hold(f"characters in the shape {shape.name!r}", rendered.chars, may)
        if KINDS[compared.body.endpoint] in GENERATING:
            compared.hold("tokens to come", rendered.output_tokens, self._output(compared, cost))
        counted = cost.prompt_chars + cost.schema_chars
        if counted >= 500:
            _raise(self.ratios, shape.name, rendered.chars / counted, data)
        if cost.schema_chars >= 500:
            factor = (rendered.chars - cost.prompt_chars) / cost.schema_chars
            _raise(self.schema_factors, shape.name, factor, data)

    # What has come of it.

    @property
    def findings(self) -> list[Compared]:
        """Those in which the engine did more than the proxy counted, the largest excess first."""
        found = [each for each in self.compared if each.findings]
        return sorted(found, key=lambda each: -each.excess)

    def outcomes(self) -> Counter[str]:
        """Of what passed: how the engine answered. Of what did not: why."""
        counts: Counter[str] = Counter()
        for compared in self.compared:
            if compared.received is None:
                counts[f"refused: {compared.outcome}"] += 1
            else:
                counts[f"passed: {compared.response.status}"] += 1
        return counts

    def faults(self) -> list[Compared]:
        """Those which the engine answered with a 5xx."""
        return [each for each in self.compared if each.received and each.response.status >= 500]


def _compare_line(compared: Compared, line: dict[str, Any]) -> None:
    """What the proxy logged is what it did and what it counted."""
    compared.outcome = line["outcome"]
    refused = line["upstream_status"] is None
    if refused != (compared.received is None):
        compared.findings.append(f"its line says {line['outcome']}")
    elif cost := compared.cost:
        bound = cost.sequences * cost.output_tokens
        if (line["prompt_chars"], line["output_tokens_bound"]) != (cost.prompt_chars, bound):
            compared.findings.append(f"its line says {line}")


def _raise(table: dict[str, tuple[float, bytes]], name: str, value: float, data: bytes) -> None:
    if value > table.get(name, (0.0, b""))[0]:
        table[name] = value, data
