"""What a key is given, as a command line says it: durations, dates, limits, models."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

from proxy.auth import keyfields

OPTIONS = {
    "--name": "name",
    "--expires": "expires",
    "--models": "models",
    "--rpm": "requests_per_minute",
    "--tpm": "tokens_per_minute",
    "--tokens-per-day": "tokens_per_day",
    "--concurrency": "concurrency",
    "--max-prompt-chars": "max_prompt_chars",
    "--max-output-tokens": "max_output_tokens",
}
"""Each option's field in the key file."""

_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_NUMBER = re.compile(r"[0-9]{1,20}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_MAX_OVERLAP = timedelta(days=366)
_MAX_LIFE = timedelta(days=36_525)
DEFAULT_OUTPUT_TOKENS = 4_096
"""That of PROXY_MAX_OUTPUT_TOKENS: it takes long to ask the settings."""

_MOMENT = "such as 90d, 24h, 30m or 45s from now, or a date such as 2027-01-31 (of UTC)"


class TermsError(Exception):
    """Options that are not taken. ``problems`` has a sentence for each thing wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def entry(options: Mapping[str, str | None], now: datetime) -> dict[str, object]:
    """The fields of the file that these options ask for; those that are None are left out.

    Raises:
        TermsError: With everything that is wrong, and no value.
    """
    fields: dict[str, object] = {}
    problems = []
    for option, text in options.items():
        name = OPTIONS[option]
        if text is None:
            continue
        try:
            value = _value(name, text, now)
        except ValueError as exc:
            problems.append(f"{option} must be {exc}")
            continue
        if keyfields.FIELDS[name].accepts(value):
            fields[name] = value
        else:
            problems.append(f"{option} must be {keyfields.FIELDS[name].expected}")
    if "name" in fields and not str(fields["name"]).strip():
        problems.append("--name must not be empty")
    if problems:
        raise TermsError(problems)
    return fields


def duration(text: str) -> timedelta:
    """What ``24h`` means; ``0`` needs no unit.

    Raises:
        ValueError: It means nothing.
    """
    match = _DURATION.fullmatch("0s" if text == "0" else text)
    if match is None:
        raise ValueError("a duration such as 24h, 30m, 45s or 0")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def overlap(text: str) -> timedelta:
    """A duration for which two keys in place of one can be meant.

    Raises:
        ValueError: It is none.
    """
    found = duration(text)
    if found > _MAX_OVERLAP:
        raise ValueError("at most 366d; a key that is to stay needs no rotation")
    return found


def hint(fields: Mapping[str, object]) -> str:
    """What whoever gives a key these fields may not have thought of; empty if there is nothing."""
    limits = [
        limit
        for name in ("tokens_per_minute", "tokens_per_day")
        if isinstance(limit := fields.get(name), int)
    ]
    if not limits or "max_output_tokens" in fields:
        return ""
    half = max(1, min(limits) // 2)
    if half >= DEFAULT_OUTPUT_TOKENS:
        return ""
    return (
        f"A request that names no max_tokens gets {half:,} tokens of output, half of the limit: "
        "--max-output-tokens says another number."
    )


def moment(text: str, now: datetime) -> datetime:
    """The moment that a duration from now, a date or a time with a zone means.

    Raises:
        ValueError: It means none, or one that is over.
    """
    try:
        if _DURATION.fullmatch(text):
            found = (now + duration(text)).replace(microsecond=0)
        elif _DATE.fullmatch(text):
            day = date.fromisoformat(text)
            found = datetime(day.year, day.month, day.day, tzinfo=UTC)
        else:
            found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError  # noqa: TRY301 - as what fromisoformat says
        found = found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(_MOMENT) from None
    if found <= now:
        raise ValueError("in the future")
    if found - now > _MAX_LIFE:
        raise ValueError("within 100 years; leave it out for a key that does not expire")
    return found


def _value(name: str, text: str, now: datetime) -> object:
    """A text as TOML would have it; where it is none, the text, which no field will accept."""
    if name == "expires":
        return moment(text, now)
    if name == "models":
        return [model.strip() for model in text.split(",")]
    if name in keyfields.LIMITS:
        return int(text) if _NUMBER.fullmatch(text) else text
    return text
