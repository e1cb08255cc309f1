"""Estimates: from bytes, by what the account's prompts came to, rising at once and falling slowly."""

import pytest

from proxy.admission.estimates import Estimates


@pytest.mark.parametrize(
    ("text_bytes", "media_parts", "tokens"),
    [
        pytest.param(0, 0, 0, id="nothing"),
        pytest.param(1, 0, 1, id="rounded up"),
        pytest.param(3_000, 0, 1_000, id="three bytes a token"),
        pytest.param(3_000, 2, 5_000, id="and two images"),
    ],
)
def test_before_anything_is_known(text_bytes: int, media_parts: int, tokens: int) -> None:
    """A third of the bytes, and so much an image."""
    estimates = Estimates(media_tokens=2_000)
    assert estimates.prompt_tokens("a", text_bytes, media_parts) == tokens
    assert estimates.least_tokens(text_bytes) == -(-text_bytes // 6)


@pytest.mark.parametrize(
    ("prompt_tokens", "times", "low", "high"),
    [
        pytest.param(9_000, 1, 9_000, 9_000, id="dearer: at once"),
        pytest.param(2_500, 1, 3_333 - 60, 3_333 - 50, id="cheaper: by a sixteenth of the way"),
        pytest.param(2_500, 100, 2_500, 2_505, id="cheaper for long: there"),
        pytest.param(100, 1_000, 1_667, 1_667, id="never below a sixth"),
        pytest.param(20_001, 1, 20_000, 20_000, id="never over two a byte"),
        pytest.param(100_000, 1, 20_000, 20_000, id="ten a byte: a template's own text"),
        pytest.param(100_001, 1, 3_334, 3_334, id="more than ten: nonsense"),
        pytest.param(0, 1, 3_334, 3_334, id="nothing: nonsense"),
        pytest.param(-5, 1, 3_334, 3_334, id="less than nothing: nonsense"),
    ],
)
def test_learning(prompt_tokens: int, times: int, low: int, high: int) -> None:
    """What 10,000 bytes are taken for after they have come to so many."""
    estimates = Estimates(media_tokens=2_000)
    for _ in range(times):
        estimates.learn("a", 10_000, 0, prompt_tokens)
    assert low <= estimates.prompt_tokens("a", 10_000, 0) <= high
    assert estimates.prompt_tokens("b", 10_000, 0) == 3_334


@pytest.mark.parametrize(
    ("text_bytes", "media_parts", "learnt"),
    [
        pytest.param(1_000, 0, True, id="long enough"),
        pytest.param(999, 0, False, id="too short: the template's tokens would pass for its own"),
        pytest.param(0, 0, False, id="no text at all"),
        pytest.param(5_000, 1, False, id="with an image: its tokens would"),
    ],
)
def test_what_teaches_nothing(text_bytes: int, media_parts: int, learnt: bool) -> None:
    """Only what is mostly text, and mostly the client's."""
    estimates = Estimates(media_tokens=2_000)
    estimates.learn("a", text_bytes, media_parts, text_bytes or 1)
    assert (estimates.prompt_tokens("a", 3_000, 0) > 1_000) is learnt
    assert len(estimates) == learnt


def test_it_rises_again_at_once() -> None:
    """One dear prompt after many cheap ones."""
    estimates = Estimates(media_tokens=0)
    for _ in range(50):
        estimates.learn("a", 6_000, 0, 1_200)
    estimates.learn("a", 6_000, 0, 3_000)
    assert estimates.prompt_tokens("a", 6_000, 0) == 3_000


def test_the_table_is_bounded() -> None:
    """The accounts that were answered last are remembered."""
    estimates = Estimates(media_tokens=0, max_accounts=2)
    for account in ["a", "b", "a", "c"]:
        estimates.learn(account, 1_000, 0, 900)
    assert len(estimates) == 2
    asked = {account: estimates.prompt_tokens(account, 1_000, 0) for account in "abc"}
    assert asked == {"a": 900, "b": 334, "c": 900}
