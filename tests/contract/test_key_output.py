"""The output of a request that names no bound, of a key that has few tokens."""

import json
from pathlib import Path

import pytest

from tests.harness import upstream as upstreams
from tests.harness.keys import bearer, key_file
from tests.harness.running import Launch

UNBOUNDED = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(
    ("terms", "output"),
    [
        pytest.param("", 4096, id="no limit"),
        pytest.param("tokens_per_minute = 1000", 500, id="half of a limit"),
        pytest.param("tokens_per_day = 1000\ntokens_per_minute = 9000", 500, id="of the least"),
        pytest.param("tokens_per_minute = 9000", 4096, id="half of it is more than the default"),
        pytest.param(
            "tokens_per_minute = 1000\nmax_output_tokens = 900", 900, id="its own cap stands"
        ),
    ],
)
async def test_it_is_served(proxy: Launch, tmp_path: Path, terms: str, output: int) -> None:
    """With a bound that leaves room for the prompt; the whole default could never be reserved."""
    path, (key,) = key_file(tmp_path, terms)
    front = await proxy(keys_file=path)
    front.upstream.reply = [upstreams.response(b"{}")]
    answer = await front.chat(UNBOUNDED, **bearer(key))
    assert answer.status == 200
    assert json.loads(front.upstream.requests[0].body)["max_tokens"] == output
