"""What is known of a request when it is over."""

import pytest

from proxy.context import RequestContext
from proxy.errors import Reason


@pytest.mark.parametrize(
    ("sent", "told", "outcome", "final"),
    [
        pytest.param(200, 0, None, 200, id="what was sent"),
        pytest.param(200, 404, None, 404, id="what was told in an event"),
        pytest.param(200, 0, Reason.UPSTREAM_ERROR, 200, id="an event that tells of a failure"),
        pytest.param(200, 404, Reason.SHUTTING_DOWN, 200, id="one that came in its place"),
        pytest.param(200, 404, Reason.CLIENT_DISCONNECTED, 499, id="nobody was there"),
        pytest.param(0, 0, Reason.CLIENT_DISCONNECTED, 499, id="nobody was there for a status"),
        pytest.param(503, 0, Reason.OVERLOADED, 503, id="a refusal"),
    ],
)
def test_the_status_of_the_line_and_the_count(
    sent: int, told: int, outcome: Reason | None, final: int
) -> None:
    """What the client was told at last."""
    context = RequestContext(request_id="r", method="POST", client="c", headers=[], started=0.0)
    context.status, context.told_status, context.outcome = sent, told, outcome
    assert context.final_status == final
