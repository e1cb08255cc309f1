"""A request to the upstream, as any transport of httpx's interface takes it."""

from functools import cached_property
from typing import Any

import httpx

FIELDS = "bulwark.fields"
"""The extension of a request that has its fields as they are sent, names lowercase: the same as
``headers``, before anybody has made httpx's of them."""


class Request(httpx.Request):
    """As httpx's own, of what is in order already.

    That one looks at each argument for what else it may be, and at each field twice: as much as
    sending it takes. Here the fields become httpx's when somebody asks for them, which our transport
    does not.
    """

    def __init__(  # the base's is not called: all that it sets is here
        self,
        method: str,
        url: httpx.URL,
        fields: list[tuple[bytes, bytes]],
        body: bytes,
        extensions: dict[str, Any],
    ) -> None:
        self.method = method
        self.url = url
        self.stream = httpx.ByteStream(body)
        self.extensions = {**extensions, FIELDS: fields}
        self._fields = fields

    @cached_property
    def headers(self) -> httpx.Headers:  # type: ignore[override] # an attribute of the base's objects
        """The fields."""
        return httpx.Headers(self._fields)
