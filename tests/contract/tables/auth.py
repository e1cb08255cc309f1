"""Who gets in, as rows: for the recording upstream and for real engines."""

import hashlib

import pytest

from proxy.auth.keys import generate
from proxy.endpoints import ENDPOINTS
from tests.harness.running import BEARER, KEY

OTHER = "sk-other-" + "o" * 40

# A stranger learns from none of them what is there.
PATHS = [
    *[row.path.decode() for row in ENDPOINTS],
    "/",
    "/nope",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/readyz",
    "/status",
    "/healthz/",
    "/health",
    "/invocations",
    "/tokenize",
    "/pooling",
    "/sleep",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/v1/load_lora_adapter",
    "/server_info",
    "/version",
    "//v1/chat/completions",
    "/v1/../metrics",
]

NO_CREDENTIAL = [
    pytest.param([], id="nothing"),
    pytest.param([("Authorization", KEY)], id="a key without a scheme"),
    pytest.param([("Authorization", "Bearer")], id="a scheme without a key"),
    pytest.param([("Authorization", f"Basic {KEY}")], id="another scheme"),
    pytest.param([("Authorization", f"Bearer{KEY}")], id="no space"),
    pytest.param([("Authorization", "Bearer caf\xe9")], id="Latin-1"),
    pytest.param([("Authorization", "Bearer cl\xc3\xa9")], id="UTF-8"),
    pytest.param([("Authorization", f"Bearer {KEY}, Bearer {KEY}")], id="joined by a comma"),
    pytest.param([("Authorization", f"Bearer {OTHER}"), *BEARER.items()], id="bad, then good"),
    pytest.param([*BEARER.items(), ("Authorization", f"Bearer {OTHER}")], id="good, then bad"),
    pytest.param([*BEARER.items(), *BEARER.items()], id="the good one twice"),
    pytest.param([("x-api-key", KEY)], id="Anthropic's field on an OpenAI route"),
    pytest.param([("Cookie", f"key={KEY}"), ("api-key", KEY)], id="fields of other services"),
]

WRONG_KEYS = [
    pytest.param(OTHER, id="unknown"),
    pytest.param(KEY[:-1], id="one character short"),
    pytest.param(KEY + "k", id="one character long"),
    pytest.param(KEY.upper(), id="another case"),
    pytest.param("x", id="one character"),
    pytest.param("x" * 20_000, id="20,000 characters"),
    pytest.param(generate(), id="of our own form"),
    pytest.param(hashlib.sha256(KEY.encode()).hexdigest(), id="the digest for the key"),
]

GOOD_BEARERS = [
    f"Bearer {KEY}",
    f"bearer {KEY}",
    f"BEARER {KEY}",
    f"Bearer   {KEY}",
    f"Bearer {KEY} ",
]

ANTHROPIC = [
    pytest.param([("x-api-key", KEY)], 200, id="x-api-key"),
    pytest.param([("Authorization", f"Bearer {KEY}")], 200, id="a bearer"),
    pytest.param([("x-api-key", KEY), *BEARER.items()], 200, id="both, the same"),
    pytest.param([("x-api-key", OTHER)], 403, id="a wrong x-api-key"),
    pytest.param([("x-api-key", OTHER), *BEARER.items()], 401, id="wrong beside a good bearer"),
    pytest.param(
        [("x-api-key", KEY), ("Authorization", f"Bearer {OTHER}")],
        401,
        id="good beside a wrong bearer",
    ),
    pytest.param([("x-api-key", KEY), ("x-api-key", KEY)], 401, id="twice"),
    pytest.param([], 401, id="nothing"),
]

HOSTS = ["x/healthz?a=", "x#", "x/metrics", "healthz", "127.0.0.1", "localhost:9090"]
