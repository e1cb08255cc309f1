"""The terms of principals: made once for each, and only for as many as are remembered."""

from typing import Any

import pytest

from proxy.forward.terms import TermsOfPrincipals
from proxy.principal import ANONYMOUS, Allowance, Principal

REMEMBERED = 1024


def principal(number: int, chars: int = 1) -> Principal:
    """One that a key file has, whose prompts may have so many characters."""
    return Principal(f"key-{number}", "salt", Allowance(max_prompt_chars=chars))


def test_terms_are_made_once() -> None:
    """For as long as it is the same principal, of whom there may be several."""
    terms = TermsOfPrincipals()
    several = [principal(number, number) for number in range(1, 4)]
    first = [terms.of(each) for each in several]
    assert [each.max_prompt_chars for each in first] == [1, 2, 3]
    assert all(terms.of(each) is made for each, made in zip(several, first, strict=True))


def test_a_key_that_was_read_again_has_new_terms() -> None:
    """Though its id is the one that it had."""
    terms = TermsOfPrincipals()
    assert terms.of(principal(1, 7)).max_prompt_chars == 7
    assert terms.of(principal(1, 8)).max_prompt_chars == 8


def test_keys_come_and_go() -> None:
    """A file that is written again and again does not make this one grow."""
    terms = TermsOfPrincipals()
    first = principal(0)
    made = terms.of(first)
    for number in range(1, REMEMBERED):
        terms.of(principal(number))
    assert terms.of(first) is made
    terms.of(principal(REMEMBERED))
    assert terms.of(first) is not made


@pytest.mark.parametrize(
    ("key_id", "limits", "recorded", "wanted"),
    [
        pytest.param("k", {}, False, False, id="no limit, and nobody keeps it"),
        pytest.param("k", {}, True, True, id="no limit, and somebody keeps it"),
        pytest.param("k", {"tokens_per_day": 9}, False, True, id="a limit of a day"),
        pytest.param("k", {"tokens_per_minute": 9}, False, True, id="a limit of a minute"),
        pytest.param("k", {"requests_per_minute": 9}, False, False, id="a limit of requests"),
        pytest.param(ANONYMOUS, {}, True, False, id="no key, of which nothing is kept"),
        pytest.param(ANONYMOUS, {"tokens_per_day": 9}, True, True, id="no key, and a limit"),
    ],
)
def test_whose_usage_the_engine_is_asked_for(
    key_id: str, limits: dict[str, Any], recorded: bool, wanted: bool
) -> None:
    """That of whoever has a limit on tokens, and of every key where it is kept."""
    terms = TermsOfPrincipals(recorded=recorded)
    assert terms.of(Principal(key_id, "salt", Allowance(**limits))).want_usage is wanted
