"""How many file descriptors there may be, and what is done about it."""

import resource
import subprocess
import sys

import pytest

from proxy.server.descriptors import Descriptors, allow, needed

# In a process of its own: a hard limit that was lowered stays lowered.
ALLOW = """
import resource
from proxy.server.descriptors import allow
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allowed = allow({wanted})
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(allowed.needed, allowed.limit, allowed.suffice, soft, hard)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "expected"),
    [
        pytest.param(100, 200, 100, "100 100 True 100 200", id="enough stays as it is"),
        pytest.param(100, 200, 101, "101 200 True 200 200", id="one too few is raised to the most"),
        pytest.param(100, 200, 200, "200 200 True 200 200", id="as many as there can be"),
        pytest.param(100, 200, 201, "201 200 False 200 200", id="more than there can be"),
    ],
)
def test_the_soft_limit_is_raised(soft: int, hard: int, wanted: int, expected: str) -> None:
    """To the hard one, where it is too low, and never lowered."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", ALLOW.format(soft=soft, hard=hard, wanted=wanted)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stdout.strip() == expected


def test_what_is_there_suffices_for_nothing_more() -> None:
    """Of this process nothing is changed."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allow(1).suffice
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_what_is_possible() -> None:
    """Beside the upstream's, and what the process needs itself."""
    all_of_them = needed(clients=100, upstream=10)
    assert Descriptors(all_of_them, all_of_them).connections(upstream=10) == 100
    assert Descriptors(all_of_them, 10).connections(upstream=10) == 0
