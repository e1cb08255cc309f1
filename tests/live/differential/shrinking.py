"""Makes a body that was found smaller, as long as it is still found."""

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tests.live.differential.bodies import Body

MOST_TRIES = 400


async def smallest(body: Body, found: Callable[[Body], Awaitable[bool]]) -> Body:
    """The smallest body like this for which it holds, within some hundred tries."""
    tries = 0
    try:
        value = json.loads(body.data)
    except ValueError:
        return body
    progress = True
    while progress and tries < MOST_TRIES:
        progress = False
        for smaller in _smaller(value):
            tries += 1
            candidate = Body(body.endpoint, json.dumps(smaller).encode())
            if await found(candidate):
                body, value, progress = candidate, smaller, True
                break
            if tries >= MOST_TRIES:
                break
    return body


def _smaller(value: Any) -> Iterator[Any]:
    """The value with one thing left out, the largest first; or with half of one text."""
    if type(value) is dict:
        keys = sorted(value, key=lambda key: -len(json.dumps(value[key])))
        for key in keys:
            yield {other: value[other] for other in value if other != key}
        for key in keys:
            yield from ({**value, key: smaller} for smaller in _smaller(value[key]))
    elif type(value) is list:
        yield from _shorter(value)
    elif type(value) is str and len(value) > 1:
        yield value[: len(value) // 2]
        yield value[len(value) // 2 :]


def _shorter(value: list[Any]) -> Iterator[Any]:
    if len(value) > 3:
        half = len(value) // 2
        yield value[:half]
        yield value[half:]
    first = range(min(len(value), 20))
    for index in first:
        yield value[:index] + value[index + 1 :]
    for index in first:
        for smaller in _smaller(value[index]):
            yield [*value[:index], smaller, *value[index + 1 :]]
