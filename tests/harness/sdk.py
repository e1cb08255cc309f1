"""openai-python as people set it up: a base URL, a key, and its own retries."""

from typing import Any

import openai

from tests.harness.running import KEY


def openai_client(port: int, **options: Any) -> openai.AsyncOpenAI:
    """A client of the proxy at this port, with its key unless told otherwise."""
    usual = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": KEY}
    return openai.AsyncOpenAI(**{**usual, **options})


async def say(client: openai.AsyncOpenAI, content: str = "hi", **options: Any) -> Any:
    """A chat of one message."""
    return await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": content}], **options
    )
