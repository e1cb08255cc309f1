"""What a ``[[key]]`` may hold: each field, what is accepted in it, and what it becomes.

One table, which the file and the command line are both held to.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from proxy.auth.keys import KeyRecord, is_public_id
from proxy.principal import MOST, Allowance

_MAX_NAME_CHARS = 100
_MAX_MODELS = 100
_MAX_MODEL_CHARS = 256

_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        accepts: Whether a value, as TOML has it, is right.
        expected: What it must be; the end of a sentence.
    """

    accepts: Callable[[object], bool]
    expected: str
    required: bool = False


def wrong(entry: Mapping[str, object]) -> list[tuple[str, str]]:
    """The known fields of a ``[[key]]`` that are wrong, each with why; no value is repeated."""
    problems = []
    for name, field in FIELDS.items():
        if name not in entry:
            if field.required:
                problems.append((name, f"{name} is missing"))
        elif not field.accepts(entry[name]):
            problems.append((name, f"{name} must be {field.expected}"))
    return problems


def record(entry: Mapping[str, object]) -> KeyRecord:
    """The key of an entry with which nothing is wrong."""
    expires, replaced_by, models = (
        entry.get("expires"),
        entry.get("replaced_by"),
        entry.get("models"),
    )
    limits = {name: value for name in LIMITS if isinstance(value := entry.get(name), int)}
    return KeyRecord(
        key_id=str(entry["id"]),
        sha256=bytes.fromhex(str(entry["sha256"])),
        name=str(entry.get("name", "")),
        expires=expires if isinstance(expires, datetime) else None,
        disabled=entry.get("disabled") is True,
        replaced_by=replaced_by if isinstance(replaced_by, str) else None,
        allowance=Allowance(
            models=frozenset(map(str, models)) if isinstance(models, list) else None, **limits
        ),
    )


def _is_id(value: object) -> bool:
    return isinstance(value, str) and is_public_id(value)


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME_CHARS and value.isprintable()


def _is_moment(value: object) -> bool:
    # A local time would expire at another moment on another machine.
    if not isinstance(value, datetime) or value.tzinfo is None:
        return False
    try:
        value.astimezone(UTC)
    except OverflowError:
        return False  # in the year 0 or 10000
    return True


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _are_models(value: object) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= _MAX_MODELS and all(map(_is_model, value))


def _is_model(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= _MAX_MODEL_CHARS and value.isprintable()


LIMITS = tuple(field.name for field in fields(Allowance) if field.name != "models")
"""The fields that are numbers."""


def _limit(most: int) -> Field:
    def accepts(value: object) -> bool:
        # A boolean is an int to Python, and a float may be one only by accident.
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most

    return Field(accepts, f"a whole number from 1 to {most}; leave it out for the default")


FIELDS = {
    "id": Field(
        _is_id, "the 8 lower-case letters and digits that follow sk-bw- in the key", required=True
    ),
    "name": Field(_is_name, f"at most {_MAX_NAME_CHARS} printable characters"),
    "sha256": Field(
        _is_sha256, "the SHA-256 of the whole key as 64 hexadecimal digits", required=True
    ),
    "expires": Field(_is_moment, "a date and time with a zone, such as 2027-01-31T00:00:00Z"),
    "disabled": Field(_is_boolean, "true or false"),
    "replaced_by": Field(_is_id, "the id of the key that came in its place"),
    **{name: _limit(MOST[name]) for name in LIMITS},
    "models": Field(
        _are_models,
        f"a list of 1 to {_MAX_MODELS} names of at most {_MAX_MODEL_CHARS} printable characters",
    ),
}
"""By name, in the order in which they are written."""
