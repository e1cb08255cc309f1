"""How ``bulwark keys list`` shows keys: their ids and terms, never a key or a hash."""

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from proxy.auth import keyfields
from proxy.auth.keys import KeyRecord

_SHORT = {
    "requests_per_minute": "rpm",
    "tokens_per_minute": "tpm",
    "tokens_per_day": "tokens/day",
    "concurrency": "concurrency",
    "max_prompt_chars": "prompt chars",
    "max_output_tokens": "output tokens",
}

_WIDE = 120
_DATE_CHARS = len("2027-01-31")
_WIDTHS = {"id": 8, "status": len("rotating,"), "expires": _DATE_CHARS}


def status(record: KeyRecord, now: datetime) -> str:
    """``disabled``, ``expired``, ``rotating`` (another is in its place already) or ``active``."""
    if record.disabled:
        return "disabled"
    if not record.is_valid(now):
        return "expired"
    return "rotating" if record.replaced_by is not None else "active"


def rows(records: Iterable[KeyRecord], now: datetime) -> list[dict[str, object]]:
    """All there is to say of each key, for JSON; null is what it was not given."""
    return [
        {
            "id": record.key_id,
            "name": record.name,
            "status": status(record, now),
            "expires": shown(record.expires),
            "replaced_by": record.replaced_by,
            **{name: getattr(record.allowance, name) for name in keyfields.LIMITS},
            "models": _sorted(record.allowance.models),
        }
        for record in records
    ]


def table(records: Iterable[KeyRecord], now: datetime, *, width: int) -> Table:
    """The same for people; where it is narrow, of a moment only the date."""
    made = Table()
    for column in ("id", "name", "status", "expires", "limits", "models"):
        # An id that is cut off is of no use, nor is a date.
        whole = column in ("id", "expires")
        made.add_column(column, no_wrap=whole, min_width=_WIDTHS.get(column), overflow="fold")
    for record in records:
        models = _sorted(record.allowance.models)
        cells = [
            record.key_id,
            record.name,
            status(record, now) + (f", now {record.replaced_by}" if record.replaced_by else ""),
            (shown(record.expires) or "never")[: None if width >= _WIDE else _DATE_CHARS],
            _limits(record) or "default",
            ", ".join(models) if models is not None else "default",
        ]
        # As text: a name in brackets is no markup.
        made.add_row(*map(Text, cells))
    return made


def _limits(record: KeyRecord) -> str:
    given = ((_SHORT[name], getattr(record.allowance, name)) for name in keyfields.LIMITS)
    return ", ".join(f"{name} {value}" for name, value in given if value is not None)


def shown(moment: datetime | None) -> str | None:
    """A moment as the key file has it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z") if moment else None


def _sorted(models: frozenset[str] | None) -> list[str] | None:
    return None if models is None else sorted(models)
