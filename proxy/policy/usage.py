"""Asks the engine for the usage of a stream whose client did not ask for it.

OpenAI's dialect states it in an event of its own, and only where ``stream_options`` says so; the
others always do. The event that our asking brings is taken out again (``proxy.telemetry.usage``).
"""

from collections.abc import Mapping
from typing import Any

from proxy.endpoints import BodyKind
from proxy.errors import InvalidValue
from proxy.policy.edit import Edit

_MUST_BE_ASKED = frozenset({BodyKind.CHAT, BodyKind.COMPLETIONS})


def ask_for_usage(kind: BodyKind, members: Mapping[str, Any]) -> tuple[Edit, ...]:
    """The edits that ask; none where the client has asked, or the engine tells anyway.

    Raises:
        InvalidValue: Nobody can tell what the client has asked: vLLM reads ``1`` and ``"true"`` as
            true, ``0`` and ``"off"`` as false, and others do not.
    """
    if "stream" not in members and "stream_options" not in members:
        return ()
    stream = _governed(members, "stream", bool)
    options = _governed(members, "stream_options", dict)
    include = continuous = None
    if options:
        include = _governed(options, "include_usage", bool, "stream_options.")
        continuous = _governed(options, "continuous_usage_stats", bool, "stream_options.")
    if kind not in _MUST_BE_ASKED or not stream or include:
        return ()
    if options is None:
        absent = "stream_options" not in members
        return (Edit(("stream_options",), b'{"include_usage":true}', absent=absent),)
    ask = Edit(("stream_options", "include_usage"), b"true")
    if not continuous:
        return (ask,)
    # It means nothing without the other. With it, the client would find figures in each event.
    return (ask, Edit(("stream_options", "continuous_usage_stats"), b"false"))


def _governed(
    members: Mapping[str, Any],
    name: str,
    expected: type[bool] | type[dict[str, Any]],
    where: str = "",
) -> Any:
    """A value of this very type, or None where it is absent or null."""
    value = members.get(name)
    if value is None or type(value) is expected:
        return value
    what = "true or false" if expected is bool else "a JSON object"
    raise InvalidValue(
        f"{where}{name} must be {what} where tokens are counted.", param=where + name
    )
