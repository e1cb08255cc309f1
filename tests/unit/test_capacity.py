"""What an engine says that it holds, what follows from it, and how the command says so."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from proxy import standin
from proxy.cli.arithmetic import Capacity, work_out
from proxy.cli.capacity import capacity
from proxy.config import Settings
from proxy.upstream import target as targets
from proxy.upstream.exposition import Sample, samples
from proxy.upstream.readings import Reading
from proxy.upstream.survey import CannotTell, Facts, median, survey

PAGES = Path(__file__).parent / "pages"
VLLM = (PAGES / "vllm.txt").read_bytes()
LLAMACPP = (PAGES / "llamacpp.txt").read_bytes()
SGLANG = (
    b'sglang:num_running_reqs{tp_rank="0"} 0\nsglang:max_total_num_tokens{tp_rank="0"} 186624\n'
)
ALIVE = b"vllm:num_requests_running 0\n"

TARGET = targets.parse("http://engine:8000")


class Engine(httpx.AsyncBaseTransport):
    """An engine that has these pages, and knows who asked for them."""

    def __init__(self, pages: Mapping[str, bytes | int | Exception]) -> None:
        self._pages = pages
        self.keys: set[str | None] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answers."""
        self.keys.add(request.headers.get("authorization"))
        page = self._pages.get(request.url.path, 404)
        if isinstance(page, Exception):
            raise page
        return (
            httpx.Response(200, content=page) if isinstance(page, bytes) else httpx.Response(page)
        )


async def ask(
    pages: Mapping[str, bytes | int | Exception], api_key: bytes | None = None
) -> tuple[Facts, Engine]:
    """The facts, and the engine that told them."""
    engine = Engine(pages)
    return await survey(engine, TARGET, api_key), engine


MODELS = b'{"data":[{"id":"a","max_model_len":131072},{"id":"lora","max_model_len":131072}]}'


async def test_a_real_vllm() -> None:
    """Its pool, its context and what it has answered; how much it runs at once it never tells."""
    facts, engine = await ask({"/metrics": VLLM, "/v1/models": MODELS}, b"engine-key")
    assert (facts.pool_tokens, facts.context_tokens, facts.seats) == (1_048_576, 131_072, None)
    # Of three prompts of 22 tokens and answers of 40: all that is told is 20 to 50.
    assert (facts.median_prompt_tokens, facts.median_output_tokens) == (35, 35)
    assert engine.keys == {"Bearer engine-key"}


async def test_a_llamacpp() -> None:
    """Its slots and the context of each; it tells no pool."""
    props = b'{"total_slots":4,"default_generation_settings":{"n_ctx":32768}}'
    models = b'{"data":[{"id":"a","meta":{"n_ctx":32768}}]}'
    for page in (LLAMACPP, 501):
        facts, engine = await ask({"/metrics": page, "/props": props, "/v1/models": models})
        assert (facts.pool_tokens, facts.context_tokens, facts.seats) == (None, 32_768, 4)
        assert facts.median_prompt_tokens is None
        assert engine.keys == {None}


@pytest.mark.parametrize(
    ("info", "seats"),
    [
        pytest.param(b'{"max_running_requests":48}', 48, id="as it was started"),
        pytest.param(b'{"max_running_requests":null}', None, id="started without"),
        pytest.param(
            b'{"max_running_requests":99,"internal_states":['
            b'{"effective_max_running_requests_per_dp":24},'
            b'{"effective_max_running_requests_per_dp":24}]}',
            48,
            id="as each of its ranks has it",
        ),
        pytest.param(b'{"max_running_requests":true}', None, id="no number"),
        pytest.param(b'{"max_running_requests":0}', None, id="none at all"),
        pytest.param(b'{"max_running_requests":-1}', None, id="less than none"),
        pytest.param(b'{"internal_states":7}', None, id="no list"),
        pytest.param(b'{"internal_states":[7]}', None, id="a list of something else"),
        pytest.param(b"[]", None, id="no object"),
        pytest.param(b"[" * 100_000, None, id="no end of lists"),
        pytest.param(404, None, id="an older one"),
    ],
)
async def test_an_sglang(info: bytes | int, seats: int | None) -> None:
    """It tells all of it."""
    facts, _ = await ask({"/metrics": SGLANG, "/v1/models": MODELS, "/server_info": info})
    assert (facts.pool_tokens, facts.context_tokens, facts.seats) == (186_624, 131_072, seats)


async def test_the_context_is_that_of_the_longest() -> None:
    """Whatever else the list holds."""
    models = (
        b'{"data":[{"max_model_len":4096},{"max_model_len":131072},{"max_model_len":8192},'
        b'{"max_model_len":-1},{"max_model_len":true},{"max_model_len":1e308},null,7]}'
    )
    facts, _ = await ask({"/metrics": SGLANG, "/v1/models": models})
    assert facts.context_tokens == 131_072


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        pytest.param({"/metrics": 404}, "--enable-metrics", id="no page"),
        pytest.param({"/metrics": 401}, "PROXY_UPSTREAM_API_KEY", id="a key is wanted"),
        pytest.param({"/metrics": 500}, "answers 500", id="a page that fails"),
        pytest.param({"/metrics": b"python_info 1\n"}, "--disable-log-stats", id="an empty page"),
        pytest.param({"/metrics": ALIVE}, "size of its KV cache", id="no pool"),
        pytest.param({"/metrics": ALIVE * 2_001}, "more lines", id="too much of a page"),
        pytest.param({"/metrics": LLAMACPP}, "size of its KV cache", id="llama.cpp without /props"),
        pytest.param({"/metrics": httpx.ConnectError("")}, "accepts connections", id="refused"),
        pytest.param({"/metrics": TimeoutError()}, "within 10 s", id="silent"),
        pytest.param({"/metrics": httpx.ReadError("")}, "broke off", id="it breaks off"),
    ],
)
async def test_what_cannot_be_told(pages: Mapping[str, bytes | int | Exception], why: str) -> None:
    """And why."""
    with pytest.raises(CannotTell, match=why):
        await ask(pages)


@pytest.mark.parametrize(
    ("models", "health", "doubtful"),
    [
        pytest.param(404, 404, True, id="neither page"),
        pytest.param(b"<html>", b"<html>", True, id="a page for every path"),
        pytest.param(b"[]", b"ok", True, id="other pages by these names"),
        pytest.param(MODELS, 404, False, id="models"),
        pytest.param(401, 404, False, id="models for those who have a key"),
        pytest.param(404, b"", False, id="health, as vLLM has it"),
        pytest.param(404, b'{"status":"ok"}', False, id="health, as llama.cpp has it"),
        pytest.param(404, 503, False, id="it still loads"),
    ],
)
async def test_what_is_perhaps_no_engine(
    models: bytes | int, health: bytes | int, doubtful: bool
) -> None:
    """Without figures, by the pages that every engine has."""
    with pytest.raises(CannotTell, match="--enable-metrics") as told:
        await ask({"/v1/models": models, "/health": health})
    assert ("perhaps this is no engine" in str(told.value)) is doubtful


def buckets(**counts: float) -> list[Sample]:
    """A histogram's; ``_10=3`` are three up to ten."""
    return [Sample({b"le": name[1:].encode()}, count) for name, count in counts.items()]


@pytest.mark.parametrize(
    ("histogram", "found"),
    [
        pytest.param([], None, id="none"),
        pytest.param(buckets(_10=0, _20=0), None, id="an empty one"),
        pytest.param(buckets(_10=4), 5, id="the middle of the first bucket"),
        pytest.param(buckets(_10=1, _20=3), 12, id="a quarter into the second"),
        pytest.param(buckets(_10=2, _20=4), 10, id="just at a bound"),
        pytest.param([*buckets(_10=1, _20=1), Sample({b"le": b"+Inf"}, 9)], 20, id="beyond all"),
        pytest.param(buckets(_20=3, _10=1), 12, id="out of order"),
        pytest.param(buckets(_10=1, _20=3) * 2, 12, id="two engines"),
        pytest.param([*buckets(_10=4), Sample({b"le": b"x"}, 9), Sample({}, 9)], 5, id="no bounds"),
        pytest.param(
            [*buckets(_10=4), Sample({b"le": b"NaN"}, 9), Sample({b"le": b"-Inf"}, 9)],
            5,
            id="bounds that cannot be",
        ),
        pytest.param(
            [*buckets(_10=4), Sample({b"le": b"1e308"}, 9)], 10, id="a bound beyond belief"
        ),
        pytest.param(buckets(_10=1.7e308) * 3, 5, id="more than can be counted"),
    ],
)
def test_the_median(histogram: list[Sample], found: int | None) -> None:
    """As even as its buckets let it be."""
    assert median(histogram) == found


def test_the_medians_of_a_real_page() -> None:
    """By the names that vLLM has for them."""
    name = b"vllm:request_prompt_tokens_bucket"
    assert median(samples(VLLM, [name])[name]) == 35


def facts_of(pool: int | None, **known: int | None) -> Facts:
    """An engine with this pool."""
    return Facts(reading=Reading(engine="vllm", pool_tokens=pool, running=0, waiting=0), **known)


def worked_out(facts: Facts, **settings: Any) -> Capacity:
    """What follows for these settings."""
    return work_out(facts, Settings(**{"allow_anonymous": True, **settings}))


def test_the_arithmetic() -> None:
    """Two cards with 186,624 tokens: one request of the whole context fits, alone."""
    facts = facts_of(
        186_624, context_tokens=180_000, median_prompt_tokens=3_000, median_output_tokens=700
    )
    found = worked_out(facts)
    assert found.budget_tokens == 167_961
    assert [(row.kind, row.tokens, row.fit, row.admitted) for row in found.rows] == [
        ("at the caps", 3_334 + 4_096, 25, 22),
        ("at the caps, with all the tools", 24_667 + 4_096, 6, 5),
        ("at the caps, in Chinese", 10_000 + 4_096, 13, 11),
        ("at the median seen", 3_700, 50, 32),
        ("at its full context", 180_000, 1, 1),
    ]
    (alone,) = found.findings
    assert alone.startswith("A request at its full context may need 180,000 tokens of the 167,961")
    assert found.set == {}


@pytest.mark.parametrize(
    ("facts", "settings", "change", "finding"),
    [
        pytest.param(
            facts_of(10**6, seats=4), {}, {"PROXY_MAX_INFLIGHT": "4"}, "more than the 4", id="seats"
        ),
        pytest.param(
            facts_of(10**6, seats=64),
            {},
            {"PROXY_MAX_INFLIGHT": "64"},
            "leaves places empty",
            id="more seats than are used",
        ),
        pytest.param(facts_of(10**6, seats=32), {}, {}, "", id="as many seats as are used"),
        pytest.param(facts_of(10**6), {}, {}, "", id="seats that are not known"),
        pytest.param(
            facts_of(50_000),
            {},
            {"PROXY_MAX_INFLIGHT": "6"},
            "holds 6 requests at the caps, not 32; the others wait",
            id="a small pool",
        ),
        pytest.param(
            facts_of(50_000, seats=256),
            {},
            {"PROXY_MAX_INFLIGHT": "6"},
            "--max-num-seqs 6",
            id="more seats than the pool holds",
        ),
        pytest.param(
            facts_of(50_000, median_prompt_tokens=1_000, median_output_tokens=500, seats=256),
            {},
            {"PROXY_MAX_INFLIGHT": "30"},
            "holds 30",
            id="by what was seen, not by the caps",
        ),
        pytest.param(
            facts_of(5_000),
            {},
            {"PROXY_MAX_INFLIGHT": "1"},
            "at the caps is refused",
            id="a pool for less than one request",
        ),
        pytest.param(
            facts_of(50_000),
            {"kv_budget_tokens": "off"},
            {"PROXY_MAX_INFLIGHT": "6", "PROXY_KV_BUDGET_TOKENS": "auto"},
            "PROXY_KV_BUDGET_TOKENS=off",
            id="no budget",
        ),
        pytest.param(
            facts_of(50_000),
            {"kv_budget_tokens": 60_000, "max_inflight": 6},
            {"PROXY_KV_BUDGET_TOKENS": "auto"},
            "=60000 is more",
            id="a budget over the pool",
        ),
        pytest.param(
            facts_of(50_000),
            {"kv_budget_tokens": 40_000, "max_inflight": 5},
            {},
            "",
            id="a budget within the pool",
        ),
        pytest.param(
            facts_of(None, seats=4, context_tokens=4_096),
            {"max_inflight": 4},
            {},
            "more than the model's context of 4,096",
            id="no pool, and caps over the context",
        ),
        pytest.param(
            Facts(reading=None, seats=4), {"kv_budget_tokens": "off", "max_inflight": 4}, {}, "",
            id="no page at all",
        ),
    ],
)  # fmt: skip
def test_what_does_not_agree(
    facts: Facts, settings: dict[str, Any], change: dict[str, str], finding: str
) -> None:
    """Is said, with what to set instead."""
    found = worked_out(facts, max_schema_chars=1, **settings)
    assert found.set == change
    assert finding in " ".join(found.findings)
    assert bool(found.findings) is bool(finding)


def test_a_median_of_nothing() -> None:
    """Of an engine that has answered next to nothing: one token, of which the pool has so many."""
    found = worked_out(facts_of(50_000, median_prompt_tokens=0, median_output_tokens=0))
    (seen,) = (row for row in found.rows if row.kind == "at the median seen")
    assert (seen.tokens, seen.fit) == (1, 50_000)


@pytest.mark.parametrize("budget", ["auto", "off", 2_000, 50_000, 500_000])
@pytest.mark.parametrize("pool", [None, 1_024, 8_000, 50_000, 186_624])
@pytest.mark.parametrize("seats", [None, 1, 16, 64])
def test_what_was_set_needs_no_other_setting(
    pool: int | None, seats: int | None, budget: int | str
) -> None:
    """Whoever does as he is told is not told another number the next time."""
    facts = facts_of(pool, seats=seats)
    now: dict[str, Any] = {"max_inflight": 32, "kv_budget_tokens": budget}
    told = worked_out(facts, **now).set
    names = {name.removeprefix("PROXY_").lower(): value for name, value in told.items()}
    assert worked_out(facts, **(now | names)).set == {}


def test_a_queue_in_the_engine_hints_at_its_seats() -> None:
    """They are not known otherwise."""
    reading = Reading(engine="vllm", pool_tokens=10**6, running=4, waiting=9)
    found = worked_out(Facts(reading=reading), max_schema_chars=1)
    assert "It runs 4 requests now and lets 9 wait" in " ".join(found.findings)


async def run(*arguments: str, **settings: str) -> tuple[int, str, str]:
    """The command's status and what it printed; it has a loop of its own, and so a thread."""
    commands = typer.Typer()
    commands.command()(capacity)
    environment: dict[str, str | None] = dict.fromkeys(
        name for name in os.environ if name.startswith("PROXY_")
    )
    environment |= {f"PROXY_{name.upper()}": value for name, value in settings.items()}
    result = await asyncio.to_thread(
        CliRunner().invoke, commands, arguments, env=environment, catch_exceptions=False
    )
    return result.exit_code, result.stdout, result.stderr


def test_it_is_a_command_of_the_program() -> None:
    """With help; tried in a process of its own."""
    command = [sys.executable, "-m", "proxy", "capacity", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    for word in ("--max-num-seqs", "exit status", '"ok"', "median seen", "Fit", "let in"):
        assert word in run.stdout


async def test_the_command() -> None:
    """In front of the stand-in, without a key of ours: a table, and lines to copy."""
    async with standin.serving(word_seconds=0) as url:
        status, said, complained = await run("--max-num-seqs", "8", upstream_url=url)
        assert (status, complained) == (0, "")
        assert "1,048,576 tokens" in said
        assert "10,000 bytes / 3 + 4,096" in said
        assert "not seen yet" in said
        assert said.endswith("\nTo set:\n\nPROXY_MAX_INFLIGHT=8\n")
        status, said, _ = await run("--upstream", url, "--json", upstream_url="http://nobody:1")
    told = json.loads(said)
    assert (status, told["ok"], told["engine"]) == (0, True, "vllm")
    assert (told["pool_tokens"], told["budget_tokens"]) == (1_048_576, 943_718)
    assert (told["context_tokens"], told["max_num_seqs"], told["set"]) == (131_072, None, {})
    assert told["requests"][0]["kind"] == "at the caps"


async def test_the_command_where_nobody_is_there() -> None:
    """Status 1, and why; in JSON too."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        status, said, complained = await run("--upstream", url)
        assert (status, said) == (1, "")
        problem = f"{url} (--upstream): nobody accepts connections there"
        assert problem in complained
        status, said, complained = await run("--upstream", url, "--json")
        assert (status, complained, json.loads(said)["ok"]) == (1, "", False)
        assert problem in json.loads(said)["problem"]
        status, said, complained = await run(upstream_url=url)
        assert f"{url} (PROXY_UPSTREAM_URL): nobody" in complained
        status, said, complained = await run("--upstream", "unix:///nowhere.sock")
        assert "unix:///nowhere.sock (--upstream): nobody" in complained


@pytest.mark.parametrize(
    ("arguments", "settings", "why"),
    [
        pytest.param(["--upstream", "http://h/v1"], {}, "must not have a path", id="a path"),
        pytest.param(["--upstream", "http://u:canary@h"], {}, "password", id="a password"),
        *(
            pytest.param(
                ["--max-num-seqs", given], {}, "'--max-num-seqs': a whole number", id=given
            )
            for given in ("0", "-1", "x", "", "1.5", "1000001", "9" * 5_000, "\u0663")
        ),
        pytest.param([], {"max_inflights": "canary"}, "PROXY_MAX_INFLIGHTS", id="a typo"),
    ],
)
async def test_the_command_line_is_wrong(
    arguments: list[str], settings: dict[str, str], why: str
) -> None:
    """Status 2, without a traceback or the value."""
    status, said, complained = await run(*arguments, **settings)
    assert (status, said) == (2, "")
    assert why in complained
    assert "Traceback" not in complained
    assert "canary" not in complained
