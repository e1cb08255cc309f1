"""Who asks. The contract of every authenticator; today's one is ``keys.KeyStore``."""

from typing import Protocol

from proxy.principal import Principal


class Authenticator(Protocol):
    """Decides whose credential this is."""

    def authenticate(self, credential: bytes | None) -> Principal:
        """The owner of a credential; None means that the client sent none.

        Runs on the event loop and must neither block nor take longer for a wrong credential than
        for a right one.

        Raises:
            MissingApiKey: There is none, and one is needed.
            InvalidApiKey: It is unknown, expired or disabled; outside, the three look alike.
        """
        ...
