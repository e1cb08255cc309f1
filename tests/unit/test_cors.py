"""Which pages may read, and what a browser that asks beforehand is told."""

import pytest

from proxy.cors import Cors
from proxy.errors import RawHeaders

PAGE, OTHER = b"https://a.example", b"http://[::1]:3000"
CORS = Cors([PAGE.decode(), OTHER.decode()], relayed=["x-served-by"])
VARY = (b"vary", b"Origin")
ASKS = (b"access-control-request-method", b"POST")
NAMES = (b"access-control-request-headers", b"authorization,x-a")


@pytest.mark.parametrize("page", [PAGE, OTHER])
@pytest.mark.parametrize("name", [b"origin", b"Origin"])
def test_a_page_that_is_listed(page: bytes, name: bytes) -> None:
    """It alone is named, and what it may see besides."""
    allow, exposed, vary = CORS.fields([(b"x", b"y"), (name, page + b" ")])
    assert allow == (b"access-control-allow-origin", page)
    assert exposed[1].endswith(b", x-served-by")
    assert vary == VARY


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param([], id="no origin"),
        pytest.param([(b"origin", b"")], id="an empty one"),
        pytest.param([(b"origin", b"null")], id="a page without one"),
        pytest.param([(b"origin", b"https://A.example")], id="another case"),
        pytest.param([(b"origin", PAGE + b"/")], id="more behind it"),
        pytest.param([(b"origin", PAGE), (b"origin", PAGE)], id="two of them"),
        pytest.param([(b"x-origin", PAGE)], id="another field"),
    ],
)
def test_a_page_that_is_not(request_: RawHeaders) -> None:
    """Nothing, but that it depends on the page; nor anything beforehand."""
    assert CORS.fields(request_) == (VARY,)
    assert CORS.preflight([*request_, ASKS]) is None


def test_no_page_is_listed() -> None:
    """No field at all."""
    none = Cors()
    assert not none
    assert none.fields([(b"origin", PAGE)]) == ()
    assert none.preflight([(b"origin", b""), ASKS]) is None
    assert CORS


@pytest.mark.parametrize(
    ("more", "named"),
    [
        pytest.param([ASKS, NAMES], [NAMES[1]], id="for fields"),
        pytest.param([ASKS], [], id="for none"),
        pytest.param([ASKS, NAMES, NAMES], [], id="for fields twice"),
    ],
)
def test_a_page_asks_beforehand(more: RawHeaders, named: list[bytes]) -> None:
    """It may send what it names: what crosses is decided elsewhere."""
    told = CORS.preflight([(b"origin", PAGE), *more])
    assert told is not None
    fields = dict(told)
    assert fields[b"access-control-allow-methods"] == b"GET, POST"
    assert fields[b"access-control-max-age"] == b"600"
    assert [v for n, v in told if n == b"access-control-allow-headers"] == named


def test_an_options_that_is_no_preflight() -> None:
    """A request like any other."""
    assert CORS.preflight([(b"origin", PAGE)]) is None
