"""What is said of an application that failed."""

import logging
import traceback
from collections.abc import MutableMapping
from typing import Any, cast


def crash_log() -> logging.Logger:
    """What a cycle logs to, where its application fails."""
    return cast("logging.Logger", CrashLog(logging.getLogger("proxy.server")))


class CrashLog(logging.LoggerAdapter[logging.Logger]):
    """Says where an application failed and with what type, and nothing that a client sent.

    The text of an exception may quote a request, so it is left out; a traceback's source lines
    cannot.
    """

    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Replaces the exception by its type and the places it went through."""
        exception = kwargs.pop("exc_info", None)
        if exception is None:
            return msg, kwargs
        places = "".join(traceback.format_tb(exception.__traceback__)).rstrip()
        return f"{msg.rstrip()}: {type(exception).__qualname__}\n{places}", kwargs
