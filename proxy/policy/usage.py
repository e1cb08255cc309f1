"""Asks the engine for the usage of a stream whose client did not ask for it.

OpenAI's dialect states it in an event of its own, and only where ``stream_options`` says so; the
others always do. The event that our asking brings is taken out again (``proxy.telemetry.usage``).
"""

from collections.abc import Mapping
from typing import Any

from proxy.endpoints import BodyKind
from proxy.policy.edit import Edit

_MUST_BE_ASKED = frozenset({BodyKind.CHAT, BodyKind.COMPLETIONS})


def ask_for_usage(kind: BodyKind, members: Mapping[str, Any]) -> tuple[Edit, ...]:
    """The edits that ask; none where the client has asked, or the engine tells anyway.

    None either where a value is of a type that it should not be: engines refuse it, or make of it
    what they like, and the one that reads ``"true"`` as true has been asked.
    """
    if kind not in _MUST_BE_ASKED or members.get("stream") is not True:
        return ()
    options = members.get("stream_options")
    if options is None:
        return (Edit(("stream_options",), b'{"include_usage":true}'),)
    if type(options) is not dict or not _absent(options.get("include_usage")):
        return ()
    ask = Edit(("stream_options", "include_usage"), b"true")
    if _absent(options.get("continuous_usage_stats")):
        return (ask,)
    # It means nothing without the other. With it, the client would find figures in each event.
    return (ask, Edit(("stream_options", "continuous_usage_stats"), b"false"))


def _absent(value: object) -> bool:
    return value is None or value is False  # 0 is neither
