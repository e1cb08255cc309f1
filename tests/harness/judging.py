"""Bodies as the tests of the policy write them, and the verdict on them."""

import json
from typing import Any

from proxy.endpoints import BodyKind
from proxy.policy import Limits, Policy, Terms, Verdict

CAP = 10_000
INVISIBLE = "\U000e0001"  # one character, and ten as Python prints it
FREE = 64  # messages, items, parts and tool calls that count nothing themselves


def check(kind: BodyKind, body: dict[str, Any], **limits: Any) -> Verdict:
    """The policy's verdict on a body."""
    policy = Policy(Limits(**limits))
    return policy.check(kind, json.dumps(body).encode(), Terms(cache_salt="salt"))


def chat(*messages: object, **more: object) -> dict[str, Any]:
    """A chat body."""
    return {"model": "m", "messages": list(messages), **more}


def user(content: object) -> dict[str, object]:
    """A user's message."""
    return {"role": "user", "content": content}
