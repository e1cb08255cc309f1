"""What a key is given, as a command line says it: what is understood, and what is not."""

from datetime import UTC, datetime, timedelta

import pytest

from proxy.cli import terms
from proxy.config import Settings

NOW = datetime(2026, 6, 1, 12, 0, 0, 500_000, tzinfo=UTC)
WHOLE = NOW.replace(microsecond=0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("90d", WHOLE + timedelta(days=90), id="days"),
        pytest.param("24h", WHOLE + timedelta(hours=24), id="hours"),
        pytest.param("30m", WHOLE + timedelta(minutes=30), id="minutes"),
        pytest.param("45s", WHOLE + timedelta(seconds=45), id="seconds"),
        pytest.param("2w", WHOLE + timedelta(weeks=2), id="weeks"),
        pytest.param(
            "2026-06-02", datetime(2026, 6, 2, tzinfo=UTC), id="a date is its first moment"
        ),
        pytest.param("2026-06-01", None, id="today began before now"),
        pytest.param("2026-06-01T12:00:01Z", WHOLE + timedelta(seconds=1), id="a second from now"),
        pytest.param("2026-06-01T12:00:00Z", None, id="a moment ago"),
        pytest.param(
            "2026-06-01T14:00:01+02:00", WHOLE + timedelta(seconds=1), id="in another zone"
        ),
        pytest.param("2026-06-02T00:00:00", None, id="a time without a zone"),
        pytest.param("0", None, id="now"),
        pytest.param("0d", None, id="no days"),
        pytest.param("1", None, id="no unit"),
        pytest.param("1y", None, id="an unknown unit"),
        pytest.param("1 d", None, id="a space"),
        pytest.param("-1d", None, id="a day ago"),
        pytest.param("1.5d", None, id="a fraction"),
        pytest.param("1d12h", None, id="two durations"),
        pytest.param("٣d", None, id="other digits"),
        pytest.param("999999999d", None, id="after the last year"),
        pytest.param("9999999999d", None, id="a number without end"),
        pytest.param("9999-12-31T23:59:59-01:00", None, id="the year 10000"),
        pytest.param("36525d", WHOLE + timedelta(days=36_525), id="a hundred years"),
        pytest.param("36526d", None, id="a day more"),
        pytest.param("2126-06-03", None, id="a date in more than a hundred years"),
        pytest.param("2026-02-30", None, id="no day of any month"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_moments(text: str, found: datetime | None) -> None:
    """A duration from now, or a date; a whole second, and in the future."""
    if found is not None:
        assert terms.moment(text, NOW) == found
        return
    with pytest.raises(ValueError, match=r"such as 90d|in the future|100 years"):
        terms.moment(text, NOW)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("24h", timedelta(hours=24), id="a day"),
        pytest.param("0", timedelta(0), id="nothing"),
        pytest.param("0s", timedelta(0), id="nothing, with a unit"),
        pytest.param("1", None, id="no unit"),
        pytest.param("", None, id="no number"),
        pytest.param("2027-01-01", None, id="a date"),
    ],
)
def test_durations(text: str, found: timedelta | None) -> None:
    """A number and a unit."""
    if found is not None:
        assert terms.duration(text) == found
        return
    with pytest.raises(ValueError, match="a duration such as"):
        terms.duration(text)


def test_two_keys_in_place_of_one_have_an_end() -> None:
    """A year of both."""
    assert terms.overlap("366d") == timedelta(days=366)
    with pytest.raises(ValueError, match="at most 366d"):
        terms.overlap("367d")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        pytest.param({}, False, id="no limit of tokens"),
        pytest.param({"tokens_per_minute": 8192}, False, id="half of it is the default"),
        pytest.param({"tokens_per_minute": 8191}, True, id="half of it is less"),
        pytest.param({"tokens_per_day": 1000}, True, id="of a day"),
        pytest.param(
            {"tokens_per_minute": 8192, "tokens_per_day": 8191}, True, id="the less of two"
        ),
        pytest.param(
            {"tokens_per_minute": 1000, "max_output_tokens": 500}, False, id="an output that fits"
        ),
    ],
)
def test_a_limit_that_the_usual_output_does_not_fit_into(
    fields: dict[str, object], told: bool
) -> None:
    """Most clients name no max_tokens, and half of the limit is put in then."""
    assert bool(terms.hint(fields)) is told


def test_the_usual_output_is_that_of_the_settings() -> None:
    """Which the command does not read, for that takes long."""
    assert Settings.model_fields["max_output_tokens"].default == terms.DEFAULT_OUTPUT_TOKENS
