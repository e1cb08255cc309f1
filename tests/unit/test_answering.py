"""Responses of our transport are httpx's, for anybody's eyes."""

import httpx
import pytest

from proxy.upstream.transport.answering import Answer, fields_of

PAIRS = [
    (b"content-type", b"application/json"),
    (b"set-cookie", b"a=\xe9"),
    (b"set-cookie", b""),
    (b"x", b"y"),
]


class Body(httpx.AsyncByteStream):
    """Counts how often it is closed."""

    closed = 0

    async def aclose(self) -> None:
        """Closed."""
        self.closed += 1


@pytest.mark.parametrize("pairs", [[], PAIRS[:1], PAIRS], ids=["none", "one", "some"])
def test_the_fields_are_those_that_httpx_makes(pairs: list[tuple[bytes, bytes]]) -> None:
    """In each way in which they can be asked for, and kept, changed and copied."""
    theirs = httpx.Response(200, headers=pairs, stream=Body()).headers
    ours = Answer(200, headers=fields_of(pairs), stream=Body()).headers
    assert type(ours) is httpx.Headers
    assert vars(ours) == vars(theirs)
    assert (ours, ours.raw, ours.multi_items()) == (theirs, theirs.raw, theirs.multi_items())
    assert dict(ours) == dict(theirs)
    assert (repr(ours), ours.encoding) == (repr(theirs), theirs.encoding)
    assert ours.get("Set-Cookie") == theirs.get("Set-Cookie")
    ours["X"] = theirs["X"] = "z"
    assert vars(ours) == vars(theirs)


def test_the_pairs_are_not_changed_with_the_fields() -> None:
    """A response is its owner's."""
    pairs = PAIRS[:]
    fields = fields_of(pairs)
    response = Answer(200, headers=fields, stream=Body())
    del response.headers["set-cookie"]
    assert (pairs, fields.raw) == (PAIRS, PAIRS)


async def test_a_response_is_closed_once() -> None:
    """As httpx's own."""
    for kind in (Answer, httpx.Response):
        body = Body()
        response = kind(200, headers=PAIRS, stream=body)
        assert isinstance(response, httpx.Response)
        for _ in range(2):
            await response.aclose()
            assert (response.is_closed, body.closed) == (True, 1)
