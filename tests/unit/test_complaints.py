"""What engines say when something is wrong, in every shape that they say it in."""

import pytest

from proxy.upstream.complaints import told


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            b'{"error":{"message":"no","type":"t","param":null,"code":404}}',
            {"message": "no", "type": "t", "param": None, "code": 404},
            id="vLLM, llama.cpp: OpenAI's",
        ),
        pytest.param(
            b'{"object":"error","message":"no","code":400}',
            {"object": "error", "message": "no", "code": 400},
            id="SGLang: without an envelope",
        ),
        pytest.param(b'{"error":"no"}', {"message": "no"}, id="a bare string"),
        pytest.param(b'{"detail":"no"}', {"message": "no"}, id="FastAPI: a sentence"),
        pytest.param(
            '{"detail":[{"loc":["body","é"],"msg":"no"}]}'.encode(),
            {"message": '[{"loc": ["body", "é"], "msg": "no"}]'},
            id="FastAPI: what it does not like",
        ),
        pytest.param(b'{"detail":[]}', None, id="FastAPI: nothing that it does not like"),
        pytest.param(b'{"detail":7}', None, id="a detail that is no text"),
        pytest.param(b'{"detail":""}', None, id="an empty detail"),
        pytest.param(
            b'{"error":{"message":"no"},"detail":"yes"}', {"message": "no"}, id="both: the error"
        ),
        pytest.param(
            b'{"message":"no","detail":"yes"}',
            {"message": "no", "detail": "yes"},
            id="a message beside a detail",
        ),
        pytest.param(b'{"error":{"message":7}}', None, id="a message that is no text"),
        pytest.param(b'{"error":{"message":""}}', None, id="an empty message"),
        pytest.param(b'{"error":""}', None, id="an empty error"),
        pytest.param(b'{"error":null}', None, id="no error"),
        pytest.param(b"{}", None, id="nothing"),
        pytest.param(b'["error"]', None, id="a list"),
        pytest.param(b'"error"', None, id="a string"),
        pytest.param(b"", None, id="no body"),
        pytest.param(b"Internal Server Error", None, id="no JSON"),
        pytest.param(b'{"error":"\\ud800"}', None, id="text that cannot be written"),
        pytest.param(b'{"error":{"message":"no","code":1e999}}', None, id="no number of JSON's"),
    ],
)
def test_what_is_told(body: bytes, expected: dict[str, object] | None) -> None:
    """The error object, with a message that is one; or nothing."""
    assert told(body) == expected
