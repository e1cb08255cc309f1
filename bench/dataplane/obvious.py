"""The baseline: the proxy that one writes first, with FastAPI and httpx.

A bearer key, a model of the request that lets unknown fields pass, a client that streams, an answer
that streams. It is here to be measured against, and does nothing wrong that people do not do: one
client for all requests, no bound on its connections, no middleware, no log of its own. What it leaves
out is all the rest of what this project is.

Runs as ``python -m bench.dataplane.obvious PORT UPSTREAM_PORT KEY``, with uvloop and httptools.
"""

import hmac
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict

_HOP_BY_HOP = {"connection", "content-length", "keep-alive", "transfer-encoding"}


class ChatRequest(BaseModel):
    """What is known of a request; the rest passes."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    max_tokens: int | None = None
    temperature: float | None = None


def app(upstream_url: str, key: str) -> FastAPI:
    """The whole program."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(
            base_url=upstream_url, timeout=600, limits=limits, trust_env=False
        ) as client:
            app.state.client = client
            yield

    api = FastAPI(lifespan=lifespan)
    bearer = HTTPBearer()

    def authorised(given: Annotated[HTTPAuthorizationCredentials, Depends(bearer)]) -> None:
        if not hmac.compare_digest(given.credentials, key):
            raise HTTPException(403, "Invalid API key")

    @api.post("/v1/chat/completions", dependencies=[Depends(authorised)])
    async def chat(asked: ChatRequest, request: Request) -> StreamingResponse:
        client: httpx.AsyncClient = request.app.state.client
        response = await client.send(
            client.build_request(
                "POST", "/v1/chat/completions", json=asked.model_dump(exclude_unset=True)
            ),
            stream=True,
        )

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in response.aiter_raw():
                    yield chunk
            finally:
                await response.aclose()

        headers = {
            name: value
            for name, value in response.headers.items()
            if name.lower() not in _HOP_BY_HOP
        }
        return StreamingResponse(chunks(), response.status_code, headers)

    return api


def main() -> None:
    """Serves."""
    port, upstream_port, key = sys.argv[1:]
    uvicorn.run(
        app(f"http://127.0.0.1:{upstream_port}", key),
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
