"""LlamaIndex through its OpenAI classes: prints what it saw as JSON.

Its first argument says which of the programs below to run.
"""
# mypy: disable-error-code="import-not-found, misc, untyped-decorator, no-any-return"

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

BASE_URL = os.environ["BULWARK_URL"] + "/v1"
KEY = os.environ["BULWARK_KEY"]
MODEL = os.environ["BULWARK_MODEL"]
HELLO = [ChatMessage(role="user", content="hello there")]


class City(BaseModel):
    """A place."""

    name: str
    people: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def model_of(**options: Any) -> OpenAILike:
    """The class for servers that are like OpenAI's."""
    usual = {"is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(api_base=BASE_URL, api_key=KEY, model=MODEL, **{**usual, **options})


async def answers() -> dict[str, Any]:
    """Asked in every way: completed, chatted with, as a stream, by three classes."""
    model = model_of(max_tokens=32_000)
    chat = model.chat(HELLO)
    pieces = [str(piece.delta) for piece in model.stream_chat(HELLO)]
    completions = model_of(is_chat_model=False)
    # Knows the context of OpenAI's models only, so that it wants one of their names.
    theirs = OpenAI(api_base=BASE_URL, api_key=KEY, model="gpt-4o-mini")
    responses = OpenAIResponses(api_base=BASE_URL, api_key=KEY, model="gpt-4o-mini")
    return {
        "complete": model.complete("hello there").text,
        "chat": chat.message.content,
        "usage": chat.raw.usage.completion_tokens,
        "pieces": pieces,
        "async_pieces": len([p async for p in await model.astream_chat(HELLO)]),
        "async_complete": (await model.acomplete("hello there")).text,
        "completions": completions.complete("hello there").text,
        "completions_pieces": len(list(completions.stream_complete("hello there"))),
        "openai": (await theirs.achat(HELLO)).message.content,
        "openai_pieces": len(list(theirs.stream_chat(HELLO))),
        "responses": (await responses.achat(HELLO)).message.content,
        "responses_pieces": len([p async for p in await responses.astream_chat(HELLO)]),
    }


async def tools() -> dict[str, Any]:
    """Offered, called, run; streamed as well."""
    model, tool = model_of(), FunctionTool.from_defaults(fn=get_weather)
    asked = {"tools": [tool], "user_msg": "weather in Paris?"}
    called = model.chat_with_tools(**asked)
    (call,) = model.get_tool_calls_from_response(called)
    streamed = [each async for each in await model.astream_chat_with_tools(**asked)]
    (again,) = model.get_tool_calls_from_response(streamed[-1])
    return {
        "call": {"name": call.tool_name, "args": call.tool_kwargs},
        "streamed": {"name": again.tool_name, "args": again.tool_kwargs},
        "fragments": len(streamed),
        "ran": str(model.predict_and_call([tool], user_msg="weather in Paris?")),
    }


async def structured() -> dict[str, Any]:
    """A class in, an object of it out: by a tool, and by the schema of an answer."""
    prompt = PromptTemplate("Where is {what}?")
    by_tool = await model_of().astructured_predict(City, prompt, what="the tower")
    by_schema = model_of(should_use_structured_outputs=True).as_structured_llm(City)
    return {
        "by_tool": by_tool.model_dump(),
        "by_schema": by_schema.complete("Where is it?").raw.model_dump(),
    }


async def embeddings() -> dict[str, Any]:
    """Of several texts and of one."""
    model = OpenAILikeEmbedding(api_base=BASE_URL, api_key=KEY, model_name=MODEL)
    vectors = model.get_text_embedding_batch(["a", "b"])
    return {
        "sizes": [len(vector) for vector in vectors],
        "same": vectors[0] == await model.aget_query_embedding("a"),
    }


async def refused() -> dict[str, Any]:
    """A prompt that is too long, sent by a model with its three retries."""
    try:
        await model_of().acomplete("x" * 10_001)
    except Exception as error:  # noqa: BLE001 - it is what is asked about
        return {"classes": [cls.__name__ for cls in type(error).__mro__], "message": str(error)}
    return {}


async def dying() -> dict[str, Any]:
    """A stream that is read to an end which may not be its end."""
    try:
        pieces = [piece.delta async for piece in await model_of().astream_chat(HELLO)]
    except Exception as error:  # noqa: BLE001 - it is what is asked about
        return {"raised": [cls.__name__ for cls in type(error).__mro__]}
    return {"pieces": pieces}


async def abandoned() -> dict[str, Any]:
    """A stream whose reader is cancelled after its first piece, and a program that goes on.

    Closing the generator would not do: LlamaIndex's own generator keeps the SDK's stream open.
    """
    pieces: asyncio.Queue[str] = asyncio.Queue()

    async def read() -> None:
        async for piece in await model_of().astream_chat(HELLO):
            pieces.put_nowait(piece.delta)

    reader = asyncio.create_task(read())
    first = await pieces.get()
    reader.cancel()
    return {"first": first, "then": (await model_of().achat(HELLO)).message.content}


PROGRAMS: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]] = {
    program.__name__: program
    for program in (answers, tools, structured, embeddings, refused, dying, abandoned)
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(PROGRAMS[sys.argv[1]]())))  # noqa: T201 - that is its answer
