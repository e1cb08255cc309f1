"""LangChain through its OpenAI classes: prints what it saw as JSON.

Its first argument says which of the programs below to run.
"""
# mypy: disable-error-code="import-not-found, misc, untyped-decorator, no-any-return"

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

BASE_URL = os.environ["BULWARK_URL"] + "/v1"
KEY = os.environ["BULWARK_KEY"]
MODEL = os.environ["BULWARK_MODEL"]


class City(BaseModel):
    """A place."""

    name: str = Field(description="what it is called")
    people: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def model_of(**options: Any) -> ChatOpenAI:
    """The model as people set it up: a base URL, a key and a name."""
    return ChatOpenAI(base_url=BASE_URL, api_key=KEY, model=MODEL, **options)


async def answers() -> dict[str, Any]:
    """Asked in every way: at once, as a stream, in a batch, by the other API."""
    model = model_of(max_tokens=32_000, include_response_headers=True)
    whole = model.invoke("hello there")
    pieces = [str(piece.content) for piece in model_of(stream_usage=True).stream("hello there")]
    chunks = [chunk async for chunk in model_of().astream("hello there")]
    batch = await model_of().abatch(["one", "two", "three"])
    other = model_of(use_responses_api=True)
    return {
        "text": whole.content,
        "usage": whole.usage_metadata["output_tokens"],
        "clamped": whole.response_metadata["headers"]["x-bulwark-clamped"],
        "pieces": pieces,
        "async_pieces": len(chunks),
        "batch": [answer.text for answer in batch],
        "responses": (await other.ainvoke("hello there")).text,
        "responses_pieces": len([chunk async for chunk in other.astream("hello there")]),
    }


async def tools() -> dict[str, Any]:
    """Bound, called, answered; streamed as well."""
    model = model_of().bind_tools([get_weather])
    called = model.invoke("weather in Paris?")
    (call,) = called.tool_calls
    result = get_weather.invoke(call)
    told = model.invoke([HumanMessage("weather?"), called, result])
    streamed: Any = None
    fragments = 0
    async for chunk in model.astream("weather in Paris?"):
        streamed = chunk if streamed is None else streamed + chunk
        fragments += len(chunk.tool_call_chunks)
    named = model_of().bind_tools([get_weather], tool_choice="get_weather").invoke("weather?")
    return {
        "call": {"name": call["name"], "args": call["args"]},
        "result": isinstance(result, ToolMessage) and result.content,
        "told": told.content,
        "streamed": [(each["name"], each["args"]) for each in streamed.tool_calls],
        "fragments": fragments,
        "named": named.tool_calls[0]["name"],
    }


async def structured() -> dict[str, Any]:
    """A class in, an object of it out, in the three ways that there are."""
    seen = {}
    for method in ("json_schema", "function_calling"):
        model = model_of().with_structured_output(City, method=method)
        seen[method] = (await model.ainvoke("Paris?")).model_dump()
    model = model_of().with_structured_output(None, method="json_mode")
    seen["json_mode"] = await model.ainvoke("Paris, as JSON?")
    return seen


async def embeddings() -> dict[str, Any]:
    """Of several texts and of one; without counting, which fetches a tokenizer from elsewhere."""
    model = OpenAIEmbeddings(
        base_url=BASE_URL, api_key=KEY, model=MODEL, check_embedding_ctx_length=False
    )
    vectors = model.embed_documents(["a", "b"])
    return {
        "sizes": [len(vector) for vector in vectors],
        "same": vectors[0] == await model.aembed_query("a"),
    }


async def refused() -> dict[str, Any]:
    """A prompt that is too long, sent by a model with retries."""
    try:
        await model_of(max_retries=2).ainvoke("x" * 10_001)
    except Exception as error:  # noqa: BLE001 - it is what is asked about
        return {"classes": [cls.__name__ for cls in type(error).__mro__], "message": str(error)}
    return {}


async def dying() -> dict[str, Any]:
    """A stream that is read to an end which may not be its end."""
    try:
        pieces = [piece.text async for piece in model_of().astream("hello")]
    except Exception as error:  # noqa: BLE001 - it is what is asked about
        return {"raised": [cls.__name__ for cls in type(error).__mro__]}
    return {"pieces": pieces}


async def abandoned() -> dict[str, Any]:
    """A stream that is left after its first piece, and a program that goes on."""
    stream = model_of().astream("hello")
    first = await anext(stream)
    await stream.aclose()
    return {"first": first.content, "then": (await model_of().ainvoke("go on")).content}


PROGRAMS: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]] = {
    program.__name__: program
    for program in (answers, tools, structured, embeddings, refused, dying, abandoned)
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(PROGRAMS[sys.argv[1]]())))  # noqa: T201 - that is its answer
