"""The query string: as received, unless it is long or carries a key."""

import pytest

from proxy.errors import KeyInQuery, TargetTooLong
from proxy.policy.query import MAX_QUERY_BYTES, check_query


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(b"", id="none"),
        pytest.param(b"api-version=2024-10-21&x=a%2Bb&x=2&empty=&sp=a+b", id="an ordinary one"),
        pytest.param(b"id=task-5&desk-1", id="a word that ends in sk-"),
        pytest.param(b"monkey=1&tokens=2&keyboard=3", id="names that only contain a key's name"),
        pytest.param(b"q=%zz%", id="broken escapes"),
        pytest.param(b"q=%2525252541", id="escapes of escapes of escapes"),
        pytest.param(b"x=" + b"a" * (MAX_QUERY_BYTES - 2), id="2,048 bytes"),
    ],
)
def test_a_query_passes(query: bytes) -> None:
    """No exception is the answer."""
    check_query(query)
    assert len(query) <= MAX_QUERY_BYTES


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(b"key=abc", id="key"),
        pytest.param(b"a=1&api_key=abc", id="api_key"),
        pytest.param(b"api-key=abc", id="api-key"),
        pytest.param(b"API_KEY=abc", id="in capitals"),
        pytest.param(b"access_token=abc", id="access_token"),
        pytest.param(b"token=", id="token, even empty"),
        pytest.param(b"token", id="token without a value"),
        pytest.param(b"%6bey=abc", id="an encoded name"),
        pytest.param(b"%256bey=abc", id="a name encoded twice"),
        pytest.param(b"x=sk-bw-abcdefgh-xyz", id="a key as any value"),
        pytest.param(b"x=%73k-abc", id="an encoded key"),
        pytest.param(b"x=%2573k-abc", id="a key encoded twice"),
        pytest.param(b"sk-abc", id="a key alone"),
        pytest.param(b"a=1;key=2", id="another separator"),
    ],
)
def test_a_key_in_the_query_is_refused_and_not_repeated(query: bytes) -> None:
    """Valid or not: query strings end up in logs."""
    with pytest.raises(KeyInQuery) as caught:
        check_query(query)
    assert "abc" not in caught.value.message


def test_a_long_query_is_refused() -> None:
    """One byte over."""
    with pytest.raises(TargetTooLong, match="2,049 bytes"):
        check_query(b"x=" + b"a" * (MAX_QUERY_BYTES - 1))
