"""From the environment to ``Settings``, or to the list of everything that is wrong with it.

pydantic-settings ignores a variable that is nobody's name, even with ``extra="forbid"``: the source
here hands over every ``PROXY_*`` variable, so that unknown, unreadable and invalid ones come as one
list. A cap with a typo in its name must not silently stay at its default.
"""

import difflib
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from proxy.auth.keyfile import why_unreadable
from proxy.config.describe import FILE_SUFFIX, PREFIX, Description, descriptions, is_secret
from proxy.config.settings import CONFLICT, Conflict, Settings
from proxy.config.values import Unusable

_MAX_SECRET_FILE_BYTES = 64 * 1024
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")

# What Kubernetes adds to every pod for a Service whose name is proxy or begins with proxy-.
# Source: Kubernetes, "Accessing the Service", environment variables.
_SERVICE_LINK = re.compile(
    r"PROXY_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)"
    r"(?:_(?:PROTO|PORT|ADDR))?)"
)
_LINK_URL = re.compile(r"(?:tcp|udp|sctp)://")


class ConfigError(Exception):
    """A configuration that is not run with. ``problems`` has a sentence for each thing wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def load(environ: Mapping[str, str]) -> Settings:
    """The settings of an environment.

    Raises:
        ConfigError: With every problem at once, and no value in any of them.
    """
    values = StrictEnvironment(Settings, environ)()
    try:
        return Settings(**values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = list(_problems(details, values))
        wrong = {str(detail["loc"][0]) for detail in details if detail["loc"]}
    # Raised outside the handler: the chain of a traceback would show the values.
    if wrong:
        problems += _conflicts_beside(wrong, values)
    raise ConfigError(problems)


class StrictEnvironment(PydanticBaseSettingsSource):
    """Every ``PROXY_*`` variable: a field, the file of a secret field, or an error.

    What cannot be handed over is replaced by its reason, an ``Unusable``, under the field's name or,
    where there is no such field, under the variable's.
    """

    def __init__(self, settings_cls: type[BaseSettings], environ: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        self._environ = environ

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value for one field, None where the environment says nothing."""
        name = PREFIX + field_name.upper()
        value: str | Unusable | None = self._environ.get(name)
        path = self._environ.get(name + FILE_SUFFIX) if is_secret(field) else None
        if path is not None:
            if value is None:
                value = _read_secret(Path(path), name + FILE_SUFFIX)
            else:
                value = Unusable(f"is set, and so is {name}{FILE_SUFFIX}; keep one of them")
        return value, name, False

    def __call__(self) -> dict[str, Any]:
        """The values by field name, and one entry for each variable that is nobody's."""
        values: dict[str, Any] = {}
        known: set[str] = set()
        for field_name, field in self.settings_cls.model_fields.items():
            value, name, _ = self.get_field_value(field, field_name)
            known |= {name, name + FILE_SUFFIX} if is_secret(field) else {name}
            if value is not None:
                values[field_name] = value
        if links := sorted(filter(self._is_service_link, self._environ)):
            values["port"] = Unusable(
                f"Kubernetes added {len(links)} variable(s) (tcp://…) for a Service named proxy, or "
                "proxy-something: say enableServiceLinks: false in the pod, or rename the Service"
            )
        for name in self._environ:
            if name.startswith(PREFIX) and name not in known and name not in links:
                values[name] = Unusable(_unknown(name, known))
        return values

    def _is_service_link(self, name: str) -> bool:
        if _SERVICE_LINK.fullmatch(name):
            return True
        return name.startswith(PREFIX) and bool(
            name.endswith("_PORT") and _LINK_URL.match(self._environ[name])
        )


def _unknown(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.8)
    return f"is not a setting; did you mean {close[0]}?" if close else "is not a setting"


def _read_secret(path: Path, name: str) -> str | Unusable:
    """The content of a secret's file, without the line break that editors leave at its end.

    The path is not repeated: it might be the secret itself, given to the wrong variable.
    """
    try:
        # A FIFO would block the start for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            return Unusable(f"the path in {name} is not a regular file")
        with path.open("rb") as file:
            content = file.read(_MAX_SECRET_FILE_BYTES + 1)
        if len(content) > _MAX_SECRET_FILE_BYTES:
            return Unusable(f"the file in {name} is over {_MAX_SECRET_FILE_BYTES} bytes")
        text = content.decode("utf-8-sig").strip()
    except OSError as exc:
        return Unusable(f"the file in {name} cannot be read: {why_unreadable(exc)}")
    except ValueError:
        # Not UTF-8, or a path with a null byte in it.
        return Unusable(f"the file in {name} is not UTF-8 text")
    return text or Unusable(f"the file in {name} is empty")


def _problems(details: list[ErrorDetails], values: Mapping[str, Any]) -> Iterator[str]:
    rows = {row.field: row for row in descriptions()}
    for detail in details:
        if detail["type"] == CONFLICT:
            yield from (conflict.message for conflict in _conflicts_of(detail))
            continue
        name = str(detail["loc"][0])
        row = rows.get(name)
        if row is None:
            yield f"{_shown_name(name)}: {values[name].reason}"
        else:
            yield f"{row.name}: {_reason(detail, row)}"


def _reason(detail: ErrorDetails, row: Description) -> str:
    """Why a value is refused: a sentence of ours, never pydantic's."""
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if row.unit:
        kind = "number" if row.unit == "seconds" else "whole number"
        return f"must be a {kind} of {row.unit}, {row.bound}"
    return f"must be {row.bound}"


def _conflicts_beside(wrong: set[str], values: Mapping[str, Any]) -> list[str]:
    """How the other settings disagree with each other, so that one more start need not tell it."""
    others = {name: value for name, value in values.items() if name not in wrong}
    try:
        Settings(**others)
    except ValidationError as error:
        return [
            conflict.message
            for detail in error.errors(include_url=False, include_input=False)
            for conflict in _conflicts_of(detail)
            if not wrong.intersection(conflict.fields)
        ]
    return []


def _conflicts_of(detail: ErrorDetails) -> tuple[Conflict, ...]:
    conflicts: tuple[Conflict, ...] = detail["ctx"]["conflicts"]
    return conflicts


def _shown_name(name: str) -> str:
    return name if _PRINTABLE_NAME.fullmatch(name) else "a PROXY_ variable with a strange name"
