"""Why Redis does not answer, in words that are fit for the log: no address, no text of the server."""

import asyncio
import re
import socket
import ssl

from redis.exceptions import AuthenticationError, InvalidResponse, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

BROKEN = (RedisError, OSError, EOFError, ValueError, RecursionError, asyncio.LimitOverrunError)
"""What comes of a broken connection, or of a server that does not speak as it should."""

NOT_REDIS = "it does not speak as Redis does"

# The first that one of the causes is.
_WORDS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((AuthenticationError,), "AUTH refused"),
    ((socket.gaierror,), "no such name"),
    ((ConnectionRefusedError, FileNotFoundError), "refused"),
    ((ssl.SSLCertVerificationError,), "its certificate is not believed"),
    ((ssl.SSLError,), "TLS failed"),
    ((TimeoutError, RedisTimeoutError), "timed out"),
    ((ConnectionError, EOFError), "it ended the connection"),
    ((PermissionError,), "no right to connect"),
    ((OSError,), "unreachable"),
    ((InvalidResponse, ValueError, RecursionError, asyncio.LimitOverrunError), NOT_REDIS),
    ((RedisConnectionError,), "it ended the connection"),
)
_PASSWORD = {
    "NOAUTH": "AUTH refused: it wants a password (NOAUTH)",
    "WRONGPASS": "AUTH refused: another password (WRONGPASS)",
}
_CODE = re.compile("[A-Za-z]{1,32}")


def answered(code: str) -> str:
    """What an answer says that is an error, by its first word."""
    return _PASSWORD.get(code, f"it answered {code}" if _CODE.fullmatch(code) else NOT_REDIS)


def told(exc: BaseException) -> str:
    """What went wrong."""
    if isinstance(exc, RedisError) and exc.status_code:
        return answered(exc.status_code)
    causes = []
    cause: BaseException | None = exc
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for kinds, words in _WORDS:
        if any(isinstance(cause, kinds) for cause in causes):
            return words
    return type(exc).__name__
