"""A simulated engine as a server: OpenAI's chat route in front of a ``Scheduler`` that real time drives.

``python -m bench.engine --port 8000``. It behaves as vLLM does where an admission control would notice:
the head of a stream comes at once and its first event after the prefill, a client that leaves frees
its place, ``/metrics`` has the series of vLLM's by which the pool and the load are known. What it says
is filler. A prompt that ends in "count to 200" is answered with 200 tokens, if ``max_tokens`` allows.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from time import monotonic
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.scheduler import Machine, Scheduler, Sequence
from proxy.server.listeners import bind

MODEL = "simulated"
BYTES_PER_TOKEN = 4
TICK_SECONDS = 0.05
"""Coarse: four sequences are 80 events a second, and the simulation takes next to no CPU."""

_COUNT = re.compile(r"count to (\d{1,6})\W*\Z")
_DEFAULT_OUTPUT_TOKENS = 200


class Engine:
    """A scheduler, and the requests that wait for its steps."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.scheduler = Scheduler(machine)
        self._progress: dict[Sequence, asyncio.Event] = {}

    async def run(self) -> None:
        """Steps as time passes, until cancelled.

        By as much as has passed, not by a tick: a busy machine makes the steps longer, and the
        engine no slower.
        """
        last = monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = monotonic()
            for sequence in self.scheduler.step(now - last):
                self._progress[sequence].set()
            last = now

    @contextmanager
    def sequence(self, prompt_tokens: int, output_tokens: int) -> Iterator[Sequence]:
        """A request for the block; at its end it is gone from the engine, finished or not."""
        sequence = Sequence(prompt_tokens, output_tokens)
        self._progress[sequence] = asyncio.Event()
        self.scheduler.submit(sequence)
        try:
            yield sequence
        finally:
            self.scheduler.abort(sequence)
            del self._progress[sequence]

    async def progress(self, sequence: Sequence) -> AsyncIterator[int]:
        """How many tokens each step has added, until there are all."""
        said = 0
        while said < sequence.output_tokens:
            await self._progress[sequence].wait()
            self._progress[sequence].clear()
            yield sequence.generated - said
            said = sequence.generated


def build(machine: Machine) -> Starlette:
    """The application."""
    engine = Engine(machine)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        steps = asyncio.create_task(engine.run())
        yield
        steps.cancel()

    routes = _Routes(engine)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
        ],
        lifespan=lifespan,
    )


class _Routes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def chat(self, request: Request) -> Response:
        """POST ``/v1/chat/completions``."""
        body = json.loads(await request.body())
        prompt_tokens, output_tokens = measure(body)
        most = self._engine.machine.max_model_len
        if prompt_tokens + output_tokens > most:
            message = f"This model's maximum context length is {most} tokens."
            error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
            return JSONResponse({"error": error}, status_code=400)
        if body.get("stream") is True:
            usage = (body.get("stream_options") or {}).get("include_usage") is True
            events = self._events(prompt_tokens, output_tokens, usage=usage)
            return StreamingResponse(events, media_type="text/event-stream")
        whole = asyncio.create_task(self._whole(prompt_tokens, output_tokens))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({whole, gone}, return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(whole.result()) if whole.done() else Response(status_code=499)
        finally:
            whole.cancel()
            gone.cancel()

    async def _events(
        self, prompt_tokens: int, output_tokens: int, *, usage: bool
    ) -> AsyncIterator[bytes]:
        with self._engine.sequence(prompt_tokens, output_tokens) as sequence:
            delta: dict[str, object] = {"role": "assistant", "content": ""}
            async for tokens in self._engine.progress(sequence):
                if delta:
                    yield _event(delta)
                    delta = {}
                yield _event({"content": "word " * tokens})
        yield _event({}, finish="stop")
        if usage:
            yield _data({"choices": [], "usage": _usage(prompt_tokens, output_tokens)})
        yield b"data: [DONE]\n\n"

    async def _whole(self, prompt_tokens: int, output_tokens: int) -> dict[str, object]:
        with self._engine.sequence(prompt_tokens, output_tokens) as sequence:
            async for _ in self._engine.progress(sequence):
                pass
        message = {"role": "assistant", "content": "word " * output_tokens}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [choice],
            "usage": _usage(prompt_tokens, output_tokens),
        }

    async def models(self, _: Request) -> Response:
        """GET ``/v1/models``."""
        model = {
            "id": MODEL,
            "object": "model",
            "created": 0,
            "owned_by": "bench",
            "max_model_len": self._engine.machine.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _: Request) -> Response:
        """GET ``/health``, as vLLM has it: 200 and nothing more."""
        return Response()

    async def metrics(self, _: Request) -> Response:
        """GET ``/metrics``: those of vLLM's series that tell the pool and the load."""
        return PlainTextResponse(exposition(self._engine.machine, self._engine.scheduler))


def measure(body: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, by its bytes, and of the answer to it."""
    texts = [str(message.get("content") or "") for message in body.get("messages") or []]
    prompt_tokens = sum(-(-len(text.encode()) // BYTES_PER_TOKEN) for text in texts)
    asked = _COUNT.search(texts[-1]) if texts else None
    output_tokens = int(asked[1]) if asked else _DEFAULT_OUTPUT_TOKENS
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    return max(1, prompt_tokens), max(1, min(output_tokens, most or output_tokens))


def exposition(machine: Machine, scheduler: Scheduler) -> str:
    """The metrics page, in the classic text format."""
    blocks = machine.pool_tokens // machine.block_tokens
    config = (
        f'block_size="{machine.block_tokens}",num_gpu_blocks="{blocks}",'
        f'kv_cache_size_tokens="{machine.pool_tokens}",enable_prefix_caching="False",engine="0"'
    )
    model = f'engine="0",model_name="{MODEL}"'
    series = [
        ("cache_config_info", "gauge", config, 1.0),
        ("num_requests_running", "gauge", model, float(scheduler.running)),
        ("num_requests_waiting", "gauge", model, float(scheduler.waiting)),
        ("kv_cache_usage_perc", "gauge", model, scheduler.usage),
        ("num_preemptions_total", "counter", model, float(scheduler.preemptions)),
        ("prompt_tokens_total", "counter", model, float(scheduler.prompt_tokens)),
        ("generation_tokens_total", "counter", model, float(scheduler.generated_tokens)),
    ]
    lines = []
    for name, kind, labels, value in series:
        lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {value}"]
    return "\n".join(lines) + "\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _usage(prompt_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


def _event(delta: Mapping[str, object], finish: str | None = None) -> bytes:
    return _data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _data(members: Mapping[str, object]) -> bytes:
    frame = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    return f"data: {json.dumps(frame | dict(members))}\n\n".encode()


def main() -> None:
    """Serves until it is told to stop; its first line says where."""
    parser = argparse.ArgumentParser(description="A simulated engine.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    for field in fields(Machine):
        name = "--" + field.name.replace("_", "-")
        kind = _truth if isinstance(field.default, bool) else type(field.default)
        parser.add_argument(name, type=kind, default=field.default)
    given = vars(parser.parse_args())
    listener = bind("127.0.0.1", given.pop("port"), "--port")
    # Longer than the kernel's usual: whom that refused would be counted as the proxy's fault.
    listener.listen(4096)
    app = build(Machine(**given))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    host, port = listener.getsockname()
    sys.stdout.write(json.dumps({"url": f"http://{host}:{port}"}) + "\n")
    sys.stdout.flush()
    server.run(sockets=[listener])


def _truth(text: str) -> bool:
    return {"True": True, "False": False}[text]


if __name__ == "__main__":
    main()
