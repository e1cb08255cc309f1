"""What can be reached and what cannot, as rows: for the recording upstream and for real engines."""

import pytest

from tests.harness.running import CHAT

MODELS = "/v1/models"
BODIES = {
    "completions": b'{"model":"m","prompt":"hi","max_tokens":16}',
    "responses": b'{"model":"m","input":"hi","max_output_tokens":16}',
    "embeddings": b'{"model":"m","input":"hi"}',
    "rerank": b'{"model":"m","query":"hi","documents":["a"]}',
    "score": b'{"model":"m","text_1":"hi","text_2":"a"}',
}

ELSEWHERE = [
    pytest.param("/", id="the root"),
    pytest.param("/v1", id="the base URL"),
    pytest.param("/v1/", id="the base URL with a slash"),
    pytest.param("/v1/models/", id="a slash behind"),
    pytest.param("//v1/chat/completions", id="a slash before"),
    pytest.param("/v1//chat/completions", id="a slash within"),
    pytest.param("/v1/v1/chat/completions", id="the prefix twice"),
    pytest.param("/chat/completions", id="no prefix"),
    pytest.param("/v1%2Fmodels", id="an encoded slash"),
    pytest.param("/v1/%6dodels", id="an encoded letter"),
    pytest.param("/v1/../metrics", id="dots to the metrics"),
    pytest.param("/v1/models/../../metrics", id="dots behind an endpoint"),
    pytest.param("/v1/models;a=b", id="a path parameter"),
    pytest.param("/v1/models/m", id="one model"),
    pytest.param("/v1/models/org%2Fname", id="one model, encoded"),
    pytest.param("/v1/rerank", id="an endpoint that is off by default"),
    pytest.param("/v1/audio/transcriptions", id="audio"),
    pytest.param("/metrics", id="metrics"),
    pytest.param("//metrics", id="metrics with two slashes"),
    pytest.param("/docs", id="documentation"),
    pytest.param("/redoc", id="more documentation"),
    pytest.param("/openapi.json", id="the schema"),
    pytest.param("/readyz", id="the admin listener's readiness"),
    pytest.param("/status", id="the admin listener's status"),
    pytest.param("/healthz/", id="the probe with a slash"),
    pytest.param("/health", id="the upstream's health"),
    pytest.param("/tokenize", id="a control endpoint"),
    pytest.param("/sleep", id="another"),
    pytest.param("/collective_rpc", id="a third"),
    pytest.param("/api/tags", id="another product's"),
]

OTHER_METHODS = [
    pytest.param("GET", CHAT, b"POST", id="GET where POST is"),
    pytest.param("DELETE", CHAT, b"POST", id="DELETE"),
    pytest.param("OPTIONS", CHAT, b"POST", id="OPTIONS while CORS is off"),
    pytest.param("PATCH", CHAT, b"POST", id="PATCH"),
    pytest.param("TRACE", MODELS, b"GET", id="TRACE"),
    pytest.param("POST", MODELS, b"GET", id="POST where GET is"),
    pytest.param("HEAD", MODELS, b"GET", id="HEAD where GET is"),
    pytest.param("PROPFIND", MODELS, b"GET", id="a method of WebDAV"),
]

QUERIES = [
    "api-version=2024-10-21&x=a%2Bb&x=2&empty=&sp=a+b",
    "q='%27\"&a[]=1&b={}|^`",
    "?",
    "..%2f..%2fmetrics",
]

QUERIES_WITH_KEYS = ["api_key=canary-1", "token=canary-1", "x=sk-canary-1", "x=%73k-canary-1"]
