"""`PROXY_UPSTREAM_URL`: a place and nothing else."""

import pytest

from proxy.upstream.target import Target, parse


@pytest.mark.parametrize(
    ("text", "expected", "authority", "url"),
    [
        pytest.param(
            "http://127.0.0.1:8000",
            Target("http", "127.0.0.1", 8000),
            b"127.0.0.1:8000",
            "http://127.0.0.1:8000",
            id="an address and a port",
        ),
        pytest.param(
            "http://vllm:8000/",
            Target("http", "vllm", 8000),
            b"vllm:8000",
            "http://vllm:8000",
            id="the slash at the end is no path",
        ),
        pytest.param(
            "HTTP://GPU_box.Example",
            Target("http", "gpu_box.example", 80),
            b"gpu_box.example",
            "http://gpu_box.example",
            id="the default port is not named in Host",
        ),
        pytest.param(
            "https://gpu.example",
            Target("https", "gpu.example", 443),
            b"gpu.example",
            "https://gpu.example",
            id="https has its own default port",
        ),
        pytest.param(
            "https://gpu.example:80",
            Target("https", "gpu.example", 80),
            b"gpu.example:80",
            "https://gpu.example:80",
            id="the other scheme's default port is named",
        ),
        pytest.param(
            "http://[::1]:8000",
            Target("http", "::1", 8000),
            b"[::1]:8000",
            "http://[::1]:8000",
            id="IPv6 in brackets",
        ),
        pytest.param(
            "http://127.0.0.1:65535",
            Target("http", "127.0.0.1", 65535),
            b"127.0.0.1:65535",
            "http://127.0.0.1:65535",
            id="the highest port",
        ),
        pytest.param(
            "unix:///run/vllm/vllm.sock",
            Target("http", "localhost", 80, uds="/run/vllm/vllm.sock"),
            b"localhost",
            "http://localhost",
            id="a Unix socket",
        ),
        pytest.param(
            "unix:///" + "x" * 106,
            Target("http", "localhost", 80, uds="/" + "x" * 106),
            b"localhost",
            "http://localhost",
            id="the longest path that a socket can have",
        ),
    ],
)
def test_places(text: str, expected: Target, authority: bytes, url: str) -> None:
    """A place is understood, and says how it is to be addressed."""
    target = parse(text)
    assert target == expected
    assert target.authority == authority
    assert target.url == url


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "scheme", id="nothing"),
        pytest.param("127.0.0.1:8000", "scheme", id="no scheme"),
        pytest.param("ftp://gpu:21", "scheme", id="a scheme that is not served"),
        pytest.param("http://", "host", id="no host"),
        pytest.param("http://:8000", "host", id="a port only"),
        pytest.param("http://-x:8000", "host", id="no name of a host"),
        pytest.param("http://a%20b:8000", "host", id="an encoded name"),
        pytest.param("http://[::g]:8000", "not a URL|IPv6", id="no IPv6 address"),
        pytest.param("http://[v1.a]:8000", "not a URL|not an IPv6", id="a future address"),
        pytest.param("http://[fe80::1%eth0]:8000", "zone", id="an IPv6 zone"),
        pytest.param("http://[::1:8000", "not a URL", id="an open bracket"),
        pytest.param("http://gpu:0", "port", id="port zero"),
        pytest.param("http://gpu:65536", "port", id="a port too high"),
        pytest.param("http://gpu:http", "port", id="a port in words"),
        pytest.param("http://gpu:8000/v1", "leave away the /v1", id="a path"),
        pytest.param("http://gpu:8000?a=b", "query", id="a query"),
        pytest.param("http://gpu:8000/?", "query", id="an empty query"),
        pytest.param("http://gpu:8000#x", "fragment", id="a fragment"),
        pytest.param("http://user:hunter2@gpu:8000", "user or password", id="a password"),
        pytest.param("http://gpu:8000\n", "control", id="a line end"),
        pytest.param("http://g\tpu:8000", "control", id="a tab that urlsplit would drop"),
        pytest.param("http://gpu :8000", "spaces", id="a space"),
        pytest.param("http://gpü:8000", "non-ASCII", id="not ASCII"),
        pytest.param("unix://run/vllm.sock", "three slashes", id="two slashes"),
        pytest.param("unix:vllm.sock", "must name", id="a relative path"),
        pytest.param("unix:///", "must name", id="no file"),
        pytest.param("unix:///run/", "must name", id="a directory"),
        pytest.param("unix:///run/a.sock?x", "query", id="a socket with a query"),
        pytest.param("unix:///" + "x" * 107, "107 bytes", id="a path that no socket can have"),
    ],
)
def test_what_is_not_a_place(text: str, complaint: str) -> None:
    """Anything else is refused, and what was given is never repeated."""
    with pytest.raises(ValueError, match=complaint) as refused:
        parse(text)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
