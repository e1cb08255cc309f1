"""What there is to say about each setting, read off its field."""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from proxy.config.settings import Settings

PREFIX = "PROXY_"
FILE_SUFFIX = "_FILE"


@dataclass(frozen=True, slots=True)
class Description:
    """One row of the settings table.

    Attributes:
        field: The attribute of ``Settings``.
        name: The environment variable.
        unit: What a number counts; empty where there is nothing to count.
        default: The default as one would write it in the environment; empty for none.
        bound: What is accepted.
        meaning: One sentence.
        secret: Whether it is never shown, and has a ``_FILE`` form.
    """

    field: str
    name: str
    unit: str
    default: str
    bound: str
    meaning: str
    secret: bool


def descriptions() -> tuple[Description, ...]:
    """Every setting, in the order in which a reader meets them."""
    return tuple(_describe(name, field) for name, field in Settings.model_fields.items())


def shown(value: object) -> str:
    """A setting's value as one would write it in the environment. Secrets are only counted."""
    match value:
        case None:
            text = ""
        case SecretStr():
            text = "(set)"
        case bool():
            text = str(value).lower()
        case float():
            text = f"{value:.15g}"
        case [SecretStr(), *_]:
            text = f"({len(value)} set)"
        case tuple():
            text = ",".join(str(item) for item in value)
        case _:
            text = str(value)
    return text


def is_secret(field: FieldInfo) -> bool:
    """Whether a field's value is never shown and may come from a file."""
    return bool(_extra(field)["secret"])


def _describe(name: str, field: FieldInfo) -> Description:
    extra = _extra(field)
    return Description(
        field=name,
        name=PREFIX + name.upper(),
        unit=extra["unit"],
        default=shown(field.default),
        bound=extra["bound"] or _bound(field),
        meaning=field.description or "",
        secret=extra["secret"],
    )


def _extra(field: FieldInfo) -> dict[str, Any]:
    return dict(field.json_schema_extra) if isinstance(field.json_schema_extra, dict) else {}


def _bound(field: FieldInfo) -> str:
    if field.annotation is bool:
        return "true or false"
    if get_origin(field.annotation) is Literal:
        *words, last = get_args(field.annotation)
        return f"{', '.join(words)} or {last}"
    least = _limit(field, "ge")
    most = _limit(field, "le")
    return f"{shown(least)} to {shown(most)}"


def _limit(field: FieldInfo, name: str) -> float | None:
    for constraint in field.metadata:
        if (limit := getattr(constraint, name, None)) is not None:
            return float(limit)
    return None
