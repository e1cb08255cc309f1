"""How ``bulwark keys list`` shows keys: their ids and terms, never a key or a hash."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from proxy.auth import keyfields
from proxy.auth.keys import KeyRecord
from proxy.cli import columns
from proxy.cli.columns import Column

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
# An id that is cut off is of no use, nor is a date.
_COLUMNS = (
    Column("id", whole=True),
    Column("name"),
    Column("status", least=len("rotating,")),
    Column("expires", whole=True),
    Column("limits", least=len("tokens/day")),
    Column("models"),
)


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


def table(
    records: Iterable[KeyRecord], now: datetime, *, width: int, only_ascii: bool = False
) -> Iterator[str]:
    """The same for people, line by line; where it is narrow, of a moment only the date."""
    rows = []
    for record in records:
        models = _sorted(record.allowance.models)
        rows.append(
            (
                record.key_id,
                record.name,
                status(record, now) + (f", now {record.replaced_by}" if record.replaced_by else ""),
                (shown(record.expires) or "never")[: None if width >= _WIDE else _DATE_CHARS],
                _limits(record) or "default",
                ", ".join(models) if models is not None else "default",
            )
        )
    return columns.lines(_COLUMNS, rows, width=width, only_ascii=only_ascii)


def _limits(record: KeyRecord) -> str:
    given = ((_SHORT[name], getattr(record.allowance, name)) for name in keyfields.LIMITS)
    return ", ".join(f"{name} {value}" for name, value in given if value is not None)


def shown(moment: datetime | None) -> str | None:
    """A moment as the key file has it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z") if moment else None


def _sorted(models: frozenset[str] | None) -> list[str] | None:
    return None if models is None else sorted(models)
