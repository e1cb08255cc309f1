"""Fields of requests that cross, and such that do not: for the recording upstream and for real engines."""

from tests.harness.running import BEARER

CROSSING = [
    ("Accept", "text/event-stream, */*;q=0.1"),
    ("User-Agent", "OpenAI/Python 3.57.0"),
    ("anthropic-beta", "a,b"),
    ("anthropic-version", "2023-06-01"),
    ("anthropic-beta", "c"),
    ("OpenAI-Organization", "org-\xe9"),
]

# Every field that may carry a secret, and every field that an engine must not believe.
STAYING = [
    *BEARER.items(),
    ("x-api-key", "canary"),
    ("api-key", "canary"),
    ("x-goog-api-key", "canary"),
    ("Cookie", "canary"),
    ("Proxy-Authorization", "Bearer canary"),
    ("X-Request-Id", "canary"),
    ("X-data-parallel-rank", "canary"),
    ("X-Vllm-Priority", "canary"),
    ("X-Session-ID", "canary"),
    ("X-Forwarded-For", "canary"),
    ("Forwarded", "for=canary"),
    ("traceparent", "canary"),
    ("X-Unknown", "canary"),
    ("Connection", "keep-alive, X-Hop"),
    ("X-Hop", "canary"),
    ("Keep-Alive", "canary"),
    ("TE", "trailers"),
    ("Proxy-Connection", "canary"),
    ("Accept-Encoding", "gzip, br"),
]
