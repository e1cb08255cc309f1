"""Figures as most engines state them are read a short way, which says what the long one does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.telemetry.usage import said
from proxy.telemetry.usage.said import MAX_BELIEVED, Figures, Said

figure = st.sampled_from([None, 0, 1, 7, MAX_BELIEVED, MAX_BELIEVED + 1, -1, 2.0, True, "3", [1]])
usual = st.fixed_dictionaries(
    dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), st.integers(0, 99))
)
usage = st.one_of(
    usual,
    usual,
    st.dictionaries(
        st.sampled_from(
            [
                *("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens"),
                *("output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
            ]
        ),
        figure,
    ),
    st.builds(
        lambda plain, name, value: {**plain, name: value},
        usual,
        st.sampled_from(
            [
                "prompt_tokens",
                "completion_tokens",
                "total_tokens",
                "input_tokens",
                "cache_read_input_tokens",
            ]
        ),
        figure,
    ),
    st.none(),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("total"), usage),
        st.tuples(st.just("of_choice"), usage),
        st.tuples(st.just("ended"), st.integers(0, 2)),
        st.tuples(st.just("share"), st.sampled_from([(1, 1), (2, 5)])),
    ),
    max_size=4,
)


def told(sequences: int, steps: list[tuple[str, Any]]) -> Figures:
    """What is made of it."""
    heard = Said(sequences, lambda: 1.0)
    heard.share = (1, 1)
    for what, value in steps:
        match what:
            case "total":
                heard.total(json.dumps(value).encode())
            case "of_choice":
                heard.of_choice(0, json.dumps(value).encode())
            case "ended":
                heard.choice_ended(value)
            case _:
                heard.share = value
    return heard.figures()


@given(sequences=st.integers(0, 2), steps=steps)
def test_both_ways_say_the_same(sequences: int, steps: list[tuple[str, Any]]) -> None:
    """Whatever is stated, and in whatever words."""
    short = told(sequences, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(said, "_plain", lambda _counts: None)
        patch.setattr(said, "_WHOLE", None)  # equal to no share
        assert told(sequences, steps) == short
