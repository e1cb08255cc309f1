"""The four things that every refusal must be: said, not forwarded, logged and counted."""

from tests.harness.client import RawResponse
from tests.harness.running import Running


async def expect_refusal(
    proxy: Running, response: RawResponse, *, status: int, code: str, endpoint: str
) -> str:
    """Asserts all four for the one request that this proxy has seen; gives the message.

    Args:
        proxy: A proxy that has answered nothing else.
        response: Its answer.
        status: What it should be.
        code: The reason, the same word everywhere.
        endpoint: The label of the log line and the metric.
    """
    error = response.json()["error"]
    assert (response.status, error.get("code", code)) == (status, code), error
    assert response.header(b"content-type") == b"application/json"
    assert len(response.header(b"x-request-id") or b"") == 32
    assert proxy.upstream.requests == []
    line = await proxy.line()
    assert (line["outcome"], line["status"], line["level"]) == (code, status, "warning")
    assert proxy.metric("bulwark_refusals_total", endpoint=endpoint, reason=code) == 1
    assert (
        proxy.metric("bulwark_requests_total", endpoint=endpoint, status=str(status), outcome=code)
        == 1
    )
    message: str = error["message"]
    return message
