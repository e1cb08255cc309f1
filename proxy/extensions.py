"""What our server offers an application past ASGI: names of entries of a scope's ``extensions``.

They are ``server.protocol``'s own, which alone fills them in, and stand here because whoever uses them
must not depend on it. The third one is ``pipe.CLIENT``, beside what it can do.
"""

ABORT = "bulwark.abort"
"""A mapping whose ``abort`` is to be called to break the response off: nobody can take it for complete."""

KNOWN = "bulwark.known"
"""To be called where a request has shown a valid key: until the next one, its connection gives its
place up after those of strangers, as long as these are not fewer than a quarter of all that wait."""
