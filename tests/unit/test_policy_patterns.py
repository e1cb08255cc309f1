"""The work of a pattern: never less than what it expands to, little for what people write."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.compiling import MAX_PATTERN_CHARS, MAX_WORK
from proxy.policy.patterns import MOST, work

LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
HEX = "[0-9a-fA-F]"
OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
DAY = r"(?:0[1-9]|[12]\d|3[01])"


def nested(inner: str, levels: int, times: int = 2) -> str:
    """A pattern in so many counts."""
    return "^" + "(" * levels + inner + f"){{{times}}}" * levels + "$"


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"^[\w.!#$%&'*+/=?^`{|}~-]+@" + LABEL + rf"(?:\.{LABEL})*$", id="HTML's mail"),
        pytest.param(r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$", id="a mail address"),
        pytest.param(
            r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+"
            r"[A-Za-z]{2,}$",
            id="a mail address with lookaheads",
        ),
        pytest.param(f"^{HEX}{{8}}-(?:{HEX}{{4}}-){{3}}{HEX}{{12}}$", id="a UUID"),
        pytest.param(rf"^\d{{4}}-(?:0[1-9]|1[0-2])-{DAY}$", id="a date"),
        pytest.param(
            rf"^\d{{4}}-\d\d-{DAY}T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)$",
            id="a time",
        ),
        pytest.param(
            r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
            r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+"
            r"(?:\.[0-9a-zA-Z-]+)*))?$",
            id="a semantic version",
        ),
        pytest.param(r"^https?://[^\s/$.?#].[^\s]*$", id="a URL"),
        pytest.param(r"^\+[1-9]\d{1,14}$", id="a telephone number"),
        pytest.param(rf"^(?:{OCTET}\.){{3}}{OCTET}$", id="an address of IPv4"),
        pytest.param(
            rf"^((?:{HEX}{{1,4}}:){{7}}{HEX}{{1,4}}|(?:{HEX}{{1,4}}:){{1,7}}:"
            rf"|(?:{HEX}{{1,4}}:){{1,4}}(?::{HEX}{{1,4}}){{1,3}})$",
            id="an address of IPv6",
        ),
        pytest.param(rf"^({LABEL}\.)+[a-z]{{2,63}}$", id="a name of a host"),
        pytest.param(r"^(?:[0-9a-zA-Z+/]{4})*(?:[0-9a-zA-Z+/]{2}==)?$", id="base64"),
        pytest.param(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", id="a decimal of pydantic"),
        pytest.param(r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$", id="emoji"),
        pytest.param(r"^[a-z0-9]+(?:-[a-z0-9]+)*$", id="a slug"),
        pytest.param(r"^[a-zA-Z0-9_-]{1,64}$", id="a name of up to 64"),
        pytest.param(r"^.{1,255}$", id="a line of up to 255"),
        pytest.param(r"^[\s\S]{1,1000}$", id="a text of up to 1,000"),
        pytest.param(r"^(/[^/ ]*)+/?$", id="a path"),
        pytest.param("^(" + "|".join(f"option-{i}" for i in range(200)) + ")$", id="200 options"),
    ],
)
def test_what_people_write_leaves_room_for_more(pattern: str) -> None:
    """No one pattern takes up half of the limit."""
    assert work(pattern) < MAX_WORK / 2


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        pytest.param(nested("a?a?", 12), MOST, id="what held vLLM, in 80 characters"),
        pytest.param("((((a?){40}){40}){40})", MOST, id="what held llama.cpp"),
        pytest.param(".*" * 1_500, MOST, id="stars behind each other"),
        pytest.param("a?" * 5_000, MOST, id="units that may be left out"),
        pytest.param("a?" * 89, 89 * 45, id="each of them leads to all behind it"),
        pytest.param(".?" * 52, MAX_WORK, id="and any character fits them"),
        pytest.param(".*" * 51, MAX_WORK, id="51 stars"),
        pytest.param("(([a-z]{1,6}){1,6}){1,6}", MAX_WORK, id="three short ranges in each other"),
        pytest.param("([a-z]{1,15}){1,15}", MAX_WORK, id="two ranges in each other"),
        pytest.param("a{9000}", 9_000, id="a count"),
        pytest.param("a{9000,}", 9_000, id="without an end"),
        pytest.param("a{0,9000}", 9_000, id="from nothing"),
        pytest.param("a{,9000}", 9_000, id="from what it does not say"),
        pytest.param("a{ 9000 , 9000 }", 9_000, id="with spaces, which one engine reads"),
        pytest.param("a{9000x}", 9_000, id="with a letter, which that one ignores"),
        pytest.param("a{9000,2}", 9_000, id="the wrong way around"),
        pytest.param("a{" + "0" * 99 + "9000}", 9_000, id="with zeros in front of it"),
        pytest.param("a{" + "9" * 4_000 + "}", MOST, id="of 4,000 digits"),
        pytest.param(r"\u{9000}", 9_000, id="of an escape that one dialect does not know"),
        pytest.param(r"\u0041{9000}", 9_000, id="of an escape"),
        pytest.param(r"\u0041?" * 300, 40_000, id="escapes that may be left out"),
        pytest.param(r"[\]a]{9000}", 9_000, id="of a set with a bracket in it"),
        pytest.param("[a-z", 4, id="a set that does not end"),
        pytest.param("[](a?){9000}]", MOST, id="a set that ends early in one dialect"),
        pytest.param("(?:" + "a?a?){99}", 15_000, id="a group that captures nothing"),
        pytest.param("(?P<n>a?a?){99}", 15_000, id="a group with a name"),
        pytest.param("(?=a?a?){99}", 15_000, id="a lookahead"),
        pytest.param("(?i)(a?a?){99}", 15_000, id="flags"),
        pytest.param("(a|b?){200}", 40_000, id="an alternative that may be left out"),
        pytest.param("(a||b){200}", 40_000, id="an empty alternative"),
        pytest.param(r"(a?$){200}", 40_000, id="an end in the middle"),
        pytest.param(r"(a?\b){200}", 40_000, id="an edge of a word"),
        pytest.param("(" * 500 + "a?a?", 2, id="groups that do not end"),
        pytest.param("ab)c)", 5, id="ends of no groups"),
        pytest.param("a{x}{y", 6, id="braces that are braces"),
        pytest.param("a?" * 89 + "{1}", 89 * 45, id="a count behind a mark"),
        pytest.param("\\", 1, id="a backslash"),
    ],
)
def test_what_expands_counts_what_it_expands_to(pattern: str, least: int) -> None:
    """In whatever dialect makes more of it."""
    assert work(pattern) >= least


@pytest.mark.parametrize(
    ("pattern", "exactly"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("^$", 0, id="an empty text"),
        pytest.param("^abc$", 3, id="a text"),
        pytest.param("a*", 2, id="a loop is a step"),
        pytest.param("(ab){3}", 6, id="a count"),
        pytest.param("(ab){2,4}c", 11, id="a range leads on from each of its ends"),
        pytest.param("a|bc", 3, id="alternatives"),
        pytest.param("a??", 1, id="a lazy mark"),
        pytest.param("(a*)*", 3, id="a loop in a loop"),
        pytest.param("*", 0, id="a mark for nothing"),
        pytest.param("{2}", 0, id="a count for nothing"),
        pytest.param("a{0}", 1, id="a count of none counts one"),
    ],
)
def test_the_steps_of_simple_patterns(pattern: str, exactly: int) -> None:
    """By hand."""
    assert work(pattern) == exactly


@given(st.text(max_size=200))
def test_a_text_counts_its_characters(text: str) -> None:
    """Escaped, it has no other meaning than those."""
    assert work(re.escape(text)) >= len(text)


@given(st.text(alphabet="ab.?*+|(){}[]^$\\0129,-:=!<>uxpP", max_size=300))
def test_every_text_has_its_work(pattern: str) -> None:
    """Whatever it means, and however little."""
    assert 0 <= work(pattern) <= MOST


@given(st.text(alphabet="ab.?*+|()[]\\", max_size=60), st.integers(1, 50))
def test_a_count_multiplies(pattern: str, times: int) -> None:
    """So many copies are never less work than one."""
    assert work(f"(?:{pattern}){{{times}}}") >= min(work(f"(?:{pattern})"), MOST)


@pytest.mark.parametrize(
    "piece",
    [
        "{",
        "(",
        "[",
        "[\\",
        "a?",
        "{1}",
        "\\",
        "[a",
        "{a",
        "(?<",
        "\\u{",
        "a{9",
        "(a)",
        ")",
        "|",
        "9",
    ],
)
def test_the_longest_hostile_patterns_are_read_at_once(piece: str) -> None:
    """In far less time than a quadratic look at them would take, which is minutes."""
    length = MAX_PATTERN_CHARS * 8
    started = time.process_time()
    work((piece * length)[:length])
    assert time.process_time() - started < 5
