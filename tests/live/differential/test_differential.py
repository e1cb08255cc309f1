"""The policy differential: what an engine does is never more than what the proxy counted.

Thousands of generated bodies go through the proxy to an engine; what the engine generated, and what
it rendered, is held against the caps and against what the proxy says that it counted. The seed is
in the figures, and in what is printed when it fails; ``BULWARK_SEED`` sets it.
"""

import faulthandler
import os
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.policy import Limits
from tests.harness.engines import Engine, Engines
from tests.harness.figures import Figures
from tests.harness.running import BEARER
from tests.live.conftest import Live, available
from tests.live.differential import bodies
from tests.live.differential.bodies import Body
from tests.live.differential.comparing import PATHS, Compared, Renderer, Run
from tests.live.differential.draws import Draw
from tests.live.differential.oracle import SHAPES, LlamaCpp, Pool, Vllm, usage_of
from tests.live.differential.shrinking import smallest

TITLE = "Policy differential"
SEED = int(os.environ.get("BULWARK_SEED") or secrets.randbelow(2**31))
TEMPLATE = str(Path(__file__).with_name("shapes.jinja"))
LIMITS = {
    "max_prompt_chars": bodies.PROMPT_CAP,
    "max_schema_chars": bodies.SCHEMA_CAP,
    "max_output_tokens": bodies.OUTPUT_CAP,
    "max_choices": bodies.CHOICES_CAP,
    "max_media_parts": bodies.MEDIA_CAP,
}

GENERATING = {
    "chat.completions": 5,
    "completions": 2,
    "responses": 3,
    "messages": 3,
    "messages.count_tokens": 1,
}
SHOWN = 3
ENOUGH = 1_000
"""Bodies, of which more than half have to reach the engine: the refused ones compare nothing."""
# All that can be counted within the cap of a prompt without tools, and the markup of 64 items.
MOST_CHARS = bodies.PROMPT_CAP + 64 * 32


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine and what it is asked.

    Attributes:
        count: How many bodies, if the time suffices.
        seconds: The time.
        least: How many have to be compared, and how many of them answered, even on a machine with
            much else to do: a run that compared next to nothing is no pass.
        renderer: Tells what the engine renders; None where it does not.
        without: Fields that are left out of the bodies.
    """

    kind: str
    count: int
    seconds: float
    least: tuple[int, int]
    endpoints: Mapping[str, int] = field(default_factory=lambda: GENERATING)
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    renderer: Callable[[Pool], Renderer] | None = None
    without: tuple[str, ...] = ()

    def start(self, engines: Engines) -> Engine:
        """The engine, ready."""
        available(self.kind)
        if not self.arguments:
            return engines.shared(self.kind)
        engine = engines.new(self.kind, *self.arguments, **self.environment)
        engine.start()
        return engine


STUB = Setup(
    "vllm-stub",
    count=5_000,
    seconds=60,
    least=(1_000, 300),
    arguments=(
        *("--enable-scale-out", "--disable-uvicorn-access-log"),
        *("--chat-template", TEMPLATE, "--chat-template-content-format", "openai"),
    ),
    environment={
        "BULWARK_STUB_FIRST_SECONDS": "0",
        "BULWARK_STUB_NEXT_SECONDS": "0",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
    },
    renderer=Vllm,
    without=("logprobs", "top_logprobs"),  # the stub has none, and vLLM fails on that
)


@pytest.fixture(scope="module")
def stub(engines: Engines) -> Engine:
    """The server of vLLM that also tells what it renders, for both tests that want it."""
    return STUB.start(engines)


@pytest.mark.within(900)  # each run has bounds of its own
@pytest.mark.parametrize(
    "setup",
    [
        pytest.param(STUB, id="vllm-stub"),
        pytest.param(
            # A seed and a prompt of more than one batch end vLLM 0.32.0 on a CPU ("CPU Generator
            # does not use offset"); where there is a GPU they do not.
            Setup("vllm-cpu", count=400, seconds=20, least=(50, 15), without=("seed",)),
            id="vllm-cpu",
        ),
        pytest.param(
            Setup(
                "llamacpp",
                count=1_500,
                seconds=20,
                least=(100, 40),
                arguments=("--chat-template-file", TEMPLATE),
                settings={"engine": "llamacpp"},
                renderer=LlamaCpp,
            ),
            id="llamacpp",
        ),
        pytest.param(
            Setup(
                "llamacpp",
                count=300,
                seconds=5,
                least=(50, 20),
                endpoints={"embeddings": 1},
                arguments=(
                    *("--embeddings", "--pooling", "mean"),
                    *("--batch-size", "8192", "--ubatch-size", "8192"),
                ),
                settings={"engine": "llamacpp"},
            ),
            id="llamacpp, embeddings",
        ),
    ],
)
async def test_an_engine_never_does_more_than_the_proxy_counted(
    setup: Setup,
    request: pytest.FixtureRequest,
    live: Live,
    engines: Engines,
    figures: Figures,
) -> None:
    """Output, choices and rendered prompt stay within what was counted; edits change one value."""
    engine = request.getfixturevalue("stub") if setup is STUB else setup.start(engines)
    faulthandler.cancel_dump_traceback_later()  # as above
    running = await live(behind=engine, **LIMITS, **setup.settings)
    with Pool(running.port, BEARER) as proxy, Pool(engine.port, {}) as direct:
        renderer = setup.renderer(direct) if setup.renderer else None
        run = Run(running, Limits(**LIMITS), proxy, renderer, Draw(SEED))  # type: ignore[arg-type] # all are numbers
        generated = bodies.bodies(SEED, setup.count, setup.endpoints, setup.without)
        await run.all(generated, setup.seconds)
        name = request.node.callspec.id
        show(figures, name, run)
        faults = [f"{fault.response.body!r:.300}\n{fault!s:.3000}" for fault in run.faults()]
        # Shown where it fails, and with -rP.
        request.node.add_report_section("call", "faults of the engine", "\n\n".join(faults))
        if found := run.findings:
            report = [f"seed {SEED}, {len(found)} of {len(run.compared)} bodies:"]
            for each in found[:SHOWN]:
                report += [f"{'; '.join(each.findings)}; smaller:", str(await shrunk(run, each))]
            pytest.fail("\n\n".join(report), pytrace=False)
    compared, answered = setup.least
    assert len(run.compared) >= compared
    assert run.outcomes()["passed: 200"] >= answered
    if compared >= ENOUGH:  # of fewer, chance may have refused more
        assert passed(run) > len(run.compared) / 2


async def shrunk(run: Run, compared: Compared) -> Compared:
    """The same finding with the smallest body that still has it."""
    kinds = {finding.partition(":")[0] for finding in compared.findings}

    async def found(body: Body) -> bool:
        again = await run.compare(body)
        return bool(kinds & {finding.partition(":")[0] for finding in again.findings})

    return await run.compare(await smallest(compared.body, found))


def passed(run: Run) -> int:
    """How many bodies reached the engine."""
    return sum(each.received is not None for each in run.compared)


def show(figures: Figures, name: str, run: Run) -> None:
    """What a run has measured."""
    outcomes = run.outcomes()
    reached = passed(run)
    figures.add(
        TITLE,
        name,
        bodies=len(run.compared),
        passed=reached,
        answered=outcomes["passed: 200"],
        refused=len(run.compared) - reached,
        engine_faults=len(run.faults()),
        prompts_rendered=sum(len(each.rendered) for each in run.compared),
        largest_excess_over_what_is_allowed=max((each.excess for each in run.compared), default=0),
        seconds=run.seconds,
        seed=str(SEED),
    )
    for outcome, count in sorted(outcomes.items()):
        if outcome.startswith("refused"):
            figures.add(f"{TITLE}: refused", outcome.partition(" ")[2], **{name: count})
    for shape in SHAPES:
        for what, table in (("", run.ratios), (" schemas alone", run.schema_factors)):
            if shape.name in table:
                row = f"{shape.name}{what}"
                figures.add(
                    f"{TITLE}: rendered / counted, at most", row, **{name: table[shape.name][0]}
                )
    faults = Counter(fault.response.body.decode(errors="replace") for fault in run.faults())
    for body, count in faults.items():
        figures.add(f"{TITLE}: faults of engines", f"{body[:100]!a}", **{name: count})


async def test_past_the_proxy_an_engine_does_more(stub: Engine, figures: Figures) -> None:
    """The control: the same bodies show excesses where nothing stands before the engine."""
    output = prompt = rendered = generated = 0
    with Pool(stub.port, {}) as pool:
        vllm = Vllm(pool)
        for body in bodies.bodies(SEED, 600, GENERATING, long=0.1):
            done = await vllm.render(PATHS[body.endpoint], body.data, SHAPES[0])
            if done is None:  # the engine refuses it itself
                continue
            rendered += 1
            output += done.output_tokens > bodies.OUTPUT_CAP
            prompt += done.chars > MOST_CHARS and b'"tools"' not in body.data
            if bodies.OUTPUT_CAP < done.output_tokens < 500 and generated < SHOWN:
                usage = usage_of(await pool.post(PATHS[body.endpoint], body.data))
                generated += usage is not None and usage.output_tokens > bodies.OUTPUT_CAP
    figures.add(
        f"{TITLE}: past the proxy",
        stub.name,
        rendered=rendered,
        over_the_output_cap=output,
        over_the_prompt_cap=prompt,
    )
    assert output > 0
    assert prompt > 0
    assert generated > 0
