"""The stand-in's routes: those that Bulwark serves, and the engine's own ``/health`` and ``/metrics``."""

import asyncio
import base64
import hashlib
import json
import struct
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.standin.chat import Chat, Completions
from proxy.standin.dialect import DEFAULT_MODEL, Dialect
from proxy.standin.figures import Figures
from proxy.standin.messages import Messages
from proxy.standin.model import answer, count
from proxy.standin.responses import Responses

MAX_MODEL_LEN = 131_072
_DIMENSIONS = 8
_MAX_DIMENSIONS = 4096


def build(word_seconds: float = 0.02) -> Starlette:
    """The application.

    Args:
        word_seconds: How long the model thinks about each word, streamed or not.
    """
    server = _Server(word_seconds)
    return Starlette(
        routes=[
            Route("/v1/models", server.models),
            Route("/v1/chat/completions", server.generate(Chat()), methods=["POST"]),
            Route("/v1/completions", server.generate(Completions()), methods=["POST"]),
            Route("/v1/responses", server.generate(Responses()), methods=["POST"]),
            Route("/v1/messages", server.generate(Messages()), methods=["POST"]),
            Route("/v1/messages/count_tokens", server.count_tokens, methods=["POST"]),
            Route("/v1/embeddings", server.embeddings, methods=["POST"]),
            Route("/health", server.health),
            Route("/metrics", server.metrics),
        ]
    )


class _Server:
    """The handlers, and the figures of what they do."""

    def __init__(self, word_seconds: float) -> None:
        self._word_seconds = word_seconds
        self._figures = Figures()

    def generate(self, dialect: Dialect) -> Any:
        """The handler of a route that generates."""

        async def handler(request: Request) -> Response:
            body = await _json(request)
            if body is None:
                return _bad_request()
            question = dialect.question(body)
            said = answer(question)
            created = int(datetime.now(UTC).timestamp())
            tokens = said.prompt_tokens, said.completion_tokens
            if question.stream:
                events = self._paced(dialect.events(question, said, created), tokens)
                return StreamingResponse(events, media_type="text/event-stream")
            with self._figures.request(*tokens):
                for _ in range(said.completion_tokens):
                    await asyncio.sleep(self._word_seconds)
                    self._figures.word()
            return JSONResponse(dialect.whole(question, said, created))

        return handler

    async def _paced(
        self, events: Iterator[bytes], tokens: tuple[int, int]
    ) -> AsyncIterator[bytes]:
        with self._figures.request(*tokens):
            yield next(events)
            self._figures.word()
            for event in events:
                # Before each and not behind it: engines end the body with the last.
                await asyncio.sleep(self._word_seconds)
                yield event
                # Each event is a word, but for a few around them.
                self._figures.word()

    async def models(self, _: Request) -> Response:
        """GET ``/v1/models``."""
        model = {
            "id": DEFAULT_MODEL,
            "object": "model",
            "created": 0,
            "owned_by": "bulwark",
            "root": f"/models/{DEFAULT_MODEL}",
            "max_model_len": MAX_MODEL_LEN,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def count_tokens(self, request: Request) -> Response:
        """POST ``/v1/messages/count_tokens``."""
        body = await _json(request)
        if body is None:
            return _bad_request()
        return JSONResponse({"input_tokens": count(Messages().question(body).prompt)})

    async def embeddings(self, request: Request) -> Response:
        """POST ``/v1/embeddings``: vectors out of a hash, the same for the same text or tokens."""
        body = await _json(request)
        if body is None:
            return _bad_request()
        given: Any = body.get("input")
        # A list of numbers is one input as tokens.
        many = isinstance(given, list) and not all(isinstance(item, int) for item in given)
        items: list[Any] = given if many else [given]
        in_base64 = body.get("encoding_format") == "base64"
        dimensions = min(body.get("dimensions") or _DIMENSIONS, _MAX_DIMENSIONS)
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _embed(item, dimensions, in_base64=in_base64),
            }
            for index, item in enumerate(items)
        ]
        tokens = sum(count(str(item)) for item in items)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        model = str(body.get("model") or DEFAULT_MODEL)
        return JSONResponse({"object": "list", "data": data, "model": model, "usage": usage})

    async def health(self, _: Request) -> Response:
        """GET ``/health``, as vLLM has it: 200 and nothing more."""
        return Response()

    async def metrics(self, _: Request) -> Response:
        """GET ``/metrics``."""
        return Response(self._figures.page(), media_type=CONTENT_TYPE_LATEST)


async def _json(request: Request) -> dict[str, Any] | None:
    """The body, if it is a JSON object."""
    try:
        body = json.loads(await request.body())
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _bad_request() -> Response:
    error = {"message": "not a JSON object", "type": "BadRequestError", "param": None, "code": 400}
    return JSONResponse({"error": error}, status_code=400)


def _embed(item: object, dimensions: int, *, in_base64: bool) -> list[float] | str:
    digest = hashlib.shake_256(str(item).encode()).digest(dimensions)
    vector = [byte / 255 for byte in digest]
    if in_base64:
        return base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
    return vector
