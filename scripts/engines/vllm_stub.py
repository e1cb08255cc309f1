"""vLLM's own HTTP server over an engine core that makes no model run.

Validation, chat templates, tokenizer, detokenizer, streams, metrics and aborts are vLLM's; only the
client of its engine core is replaced, in this process. It says a fixed text at a fixed pace, so
that a test can tell when a request runs, waits or was aborted. Logprobs and guided decoding are
what it cannot do.

A user message that begins with ``SAY:`` is answered with what follows, verbatim, and then an end.

``BULWARK_STUB_SEQUENCES`` (32) run at once and the rest wait; ``BULWARK_STUB_FIRST_SECONDS`` (0.02)
pass before the first token of each and ``BULWARK_STUB_NEXT_SECONDS`` (0.005) before the others.

Usage: ``vllm_stub.py`` and the arguments of ``vllm serve``, with vLLM's own Python.
"""

# ruff: noqa: D102 - the methods are vLLM's, and so is their meaning

import asyncio
import itertools
import os
from types import SimpleNamespace
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}

# The project's own environment has none of these.
import uvloop
from vllm.entrypoints.launchers.api_server.entry import (  # type: ignore[import-not-found]
    run_server,
)
from vllm.entrypoints.launchers.cli_args import (  # type: ignore[import-not-found]
    make_arg_parser,
    validate_parsed_serve_args,
)
from vllm.entrypoints.serve.utils.api_utils import (  # type: ignore[import-not-found]
    cli_env_setup,
)
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]
from vllm.v1.engine import (  # type: ignore[import-not-found]
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
)
from vllm.v1.engine.core_client import EngineCoreClient  # type: ignore[import-not-found]
from vllm.v1.metrics.stats import SchedulerStats  # type: ignore[import-not-found]

SEQUENCES = int(os.environ.get("BULWARK_STUB_SEQUENCES", "32"))
FIRST_SECONDS = float(os.environ.get("BULWARK_STUB_FIRST_SECONDS", "0.02"))
NEXT_SECONDS = float(os.environ.get("BULWARK_STUB_NEXT_SECONDS", "0.005"))
TEXT = "A door is as strong as its hinges, and its hinges are as strong as their screws. "
BLOCKS = 65_536


class StubCore:
    """What vLLM's front end takes for the client of an engine core."""

    def __init__(self, config: Any, renderer: Any) -> None:
        self.engine_ranks_managed = [0]
        self.resources = SimpleNamespace(engine_dead=False, validate_alive=lambda *_: None)
        self._tokenizer = renderer.tokenizer
        self._seats = asyncio.Semaphore(SEQUENCES)
        self._running = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()
        # What an engine reports once it has measured its memory.
        config.cache_config.num_gpu_blocks = config.cache_config.num_gpu_blocks or BLOCKS

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        self._tasks[request.request_id] = asyncio.create_task(self._run(request))

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if task := self._tasks.pop(request_id, None):
                task.cancel()

    async def get_output_async(self) -> Any:
        return await self._outputs.get()

    async def _run(self, request: Any) -> None:
        try:
            async with self._seats:
                self._running += 1
                try:
                    token, reason = await self._all_but_the_last(request)
                finally:
                    self._running -= 1
            self._tasks.pop(request.request_id, None)
            self._say(request.request_id, token, reason)
        except asyncio.CancelledError:
            self._report()
            raise

    async def _all_but_the_last(self, request: Any) -> tuple[int, Any]:
        parameters = request.sampling_params
        tokens, ends = self._text(request.prompt_token_ids or [])
        most = parameters.max_tokens or 16
        await asyncio.sleep(FIRST_SECONDS)
        for index in itertools.count():
            if ends and index == len(tokens) and not parameters.ignore_eos:
                return self._tokenizer.eos_token_id, FinishReason.STOP
            token = tokens[index % len(tokens)]
            if index == most - 1:
                return token, FinishReason.LENGTH
            self._say(request.request_id, token)
            await asyncio.sleep(NEXT_SECONDS)
        raise AssertionError

    def _text(self, prompt: list[int]) -> tuple[list[int], bool]:
        """The tokens to be said, and whether they are all."""
        _, said, after = self._tokenizer.decode(prompt).rpartition("SAY:")
        wanted = after.partition("<|im_end|>")[0] if said else ""
        return self._tokenizer.encode(wanted or TEXT, add_special_tokens=False), bool(wanted)

    def _say(self, request_id: str, token: int, reason: Any = None) -> None:
        output = EngineCoreOutput(
            request_id=request_id, new_token_ids=[token], finish_reason=reason
        )
        finished = None if reason is None else {request_id}
        self._report(outputs=[output], finished_requests=finished)

    def _report(self, **more: Any) -> None:
        waiting = max(0, len(self._tasks) - self._running)
        stats = SchedulerStats(
            num_running_reqs=self._running,
            num_waiting_reqs=waiting,
            kv_cache_usage=self._running / SEQUENCES,
        )
        self._outputs.put_nowait(EngineCoreOutputs(scheduler_stats=stats, **more))

    # The rest of what is asked of an engine core.

    async def reset_mm_cache_async(self) -> None: ...

    async def reset_prefix_cache_async(self, *_: Any, **__: Any) -> bool:
        return True

    async def is_sleeping_async(self) -> bool:
        return False

    async def is_scheduler_paused_async(self) -> bool:
        return False

    def dp_engines_running(self) -> bool:
        return self._running > 0

    def get_kv_event_sources(self) -> dict[str, Any]:
        return {}

    def shutdown(self, timeout: float | None = None) -> None:  # noqa: ARG002
        for task in self._tasks.values():
            task.cancel()


def core(vllm_config: Any, renderer: Any = None, **_: Any) -> StubCore:
    """In the place of a client that would start processes."""
    return StubCore(vllm_config, renderer)


if __name__ == "__main__":
    EngineCoreClient.make_async_mp_client = staticmethod(core)
    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(arguments)
    uvloop.run(run_server(arguments))
