"""Who gives way first, of those that wait."""

from collections.abc import Sequence

import pytest

from proxy.server.waiting import Waiting


class Peer:
    """A connection with a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_taking(self) -> bool:
        """Whether it still takes its last answer."""
        return self.name.endswith("taking")

    def give_way(self) -> None:
        """Nobody makes it."""


def order(*names: str) -> list[str]:
    """In which order they give way, none coming after; the names of strangers begin so."""
    waiting = Waiting()
    for name in names:
        waiting.add(Peer(name), known=not name.startswith("stranger"))
    gone = []
    while waiting:
        member = waiting.next()
        waiting.remove(member)
        assert member not in waiting
        assert isinstance(member, Peer)
        gone.append(member.name)
    return gone


@pytest.mark.parametrize(
    ("waiting", "first"),
    [
        pytest.param(
            ["known", "stranger a", "stranger b"],
            ["stranger a", "stranger b", "known"],
            id="strangers before one with a key, however long that has waited",
        ),
        pytest.param(
            ["stranger taking", "stranger", "known", "known b"],
            ["stranger", "stranger taking", "known", "known b"],
            id="a stranger that does not read, after those that do",
        ),
        pytest.param(
            ["known taking", "stranger a taking", "stranger b taking", "known"],
            ["stranger a taking", "stranger b taking", "known", "known taking"],
            id="who reads with a key, after every stranger that does not",
        ),
        pytest.param(
            ["stranger", "known a", "known b", "known c", "known d"],
            ["known a", "stranger", "known b", "known c", "known d"],
            id="one stranger among five stays: it may have come to show a key",
        ),
        pytest.param(
            ["stranger", "known a", "known b", "known c"],
            ["stranger", "known a", "known b", "known c"],
            id="one among four does not",
        ),
        pytest.param(["known a", "known b"], ["known a", "known b"], id="no stranger"),
        pytest.param(["stranger a", "stranger b"], ["stranger a", "stranger b"], id="strangers"),
    ],
)
def test_the_order(waiting: Sequence[str], first: Sequence[str]) -> None:
    """Until nobody is left."""
    assert order(*waiting) == first


def test_strangers_without_end_leave_three_quarters_to_keys() -> None:
    """However many come, and even if none of them reads."""
    waiting = Waiting()
    known = [Peer("known taking") for _ in range(100)]
    for each in known:
        waiting.add(each, known=True)
    for _ in range(1_000):
        waiting.remove(waiting.next())
        waiting.add(Peer("stranger taking"), known=False)
    assert len(waiting) == 100
    assert sum(each in waiting for each in known) == 75
