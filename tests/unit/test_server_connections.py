"""Who has a place, who gives way, and who is told why."""

import pytest

from proxy.errors import ConnectionsExhausted, Reason, Refusal, TooManyConnections
from proxy.server.connections import ConnectionLimits, Connections


class Peer:
    """A connection that notes that it gave way."""

    def __init__(self) -> None:
        self.gave_way = 0
        self.taking = False

    def is_taking(self) -> bool:
        """Whether its last answer is not all out."""
        return self.taking

    def give_way(self) -> None:
        """Its place is gone."""
        self.gave_way += 1


class Room:
    """Connections under small limits, and what they said."""

    def __init__(self, **limits: int) -> None:
        self.events: list[str] = []
        self.connections = Connections(
            ConnectionLimits(**limits),
            address_of=lambda peer: None if peer.startswith("trusted") else peer[:4],
            on_event=self.events.append,
        )

    def come(self, count: int = 1, peer: str | None = "here", *, busy: bool = False) -> list[Peer]:
        """So many that get a place."""
        come = [Peer() for _ in range(count)]
        for each in come:
            assert self.connections.opened(each, peer) is None
            if busy:
                self.connections.answers(each)
        return come

    def refuse(self, peer: str | None = "here") -> Refusal:
        """One more that gets none."""
        refusal = self.connections.opened(Peer(), peer)
        assert refusal is not None
        return refusal


def test_one_more_than_all_places_is_refused_where_all_are_busy() -> None:
    """And served again once one has left."""
    room = Room(open=2, idle=2)
    first, _ = room.come(2, busy=True)
    refusal = room.refuse()
    assert isinstance(refusal, ConnectionsExhausted)
    assert refusal.retry_after_seconds
    assert room.events == [Reason.CONNECTIONS_EXHAUSTED]
    assert (room.connections.open, room.connections.idle) == (2, 0)
    room.connections.closed(first)
    room.come(busy=True)
    assert len(room.events) == 1


def test_one_more_than_all_places_takes_that_of_an_idle_one() -> None:
    """Whoever asks for nothing must not keep out whoever does."""
    room = Room(open=2, idle=2)
    room.come(busy=True)
    (idle,) = room.come()
    room.come()
    assert idle.gave_way == 1
    assert room.events == ["idle"]
    assert (room.connections.open, room.connections.idle) == (2, 1)


def test_the_one_that_is_idle_for_the_longest_gives_way() -> None:
    """Counted from its last answer; one at the cap displaces nobody."""
    room = Room(open=9, idle=2)
    first, second = room.come(2)
    room.connections.answers(first)
    room.connections.rests(first)
    assert room.events == []
    (third,) = room.come()
    assert [each.gave_way for each in (first, second, third)] == [0, 1, 0]
    room.come()
    assert [each.gave_way for each in (first, second, third)] == [1, 1, 0]
    assert room.connections.open == room.connections.idle == 2


def test_a_busy_one_that_rests_displaces_the_longest_idle() -> None:
    """Never itself."""
    room = Room(open=9, idle=1)
    (busy,) = room.come(busy=True)
    (idle,) = room.come()
    room.connections.rests(busy)
    assert (busy.gave_way, idle.gave_way) == (0, 1)
    room.connections.rests(busy)
    assert busy.gave_way == 0


def test_who_still_takes_its_answer_gives_way_last() -> None:
    """Whoever comes and says nothing only takes the places of others who say nothing."""
    room = Room(open=9, idle=3)
    first, second = room.come(2)
    first.taking = second.taking = True
    (silent,) = room.come()
    for _ in range(9):
        (last,) = room.come()
        assert silent.gave_way == 1
        silent = last
        assert room.connections.idle == 3
    assert (first.gave_way, second.gave_way) == (0, 0)
    silent.taking = True
    (another,) = room.come()
    assert [each.gave_way for each in (first, second, silent)] == [1, 0, 0]
    another.taking = True
    room.connections.closed(second)
    assert room.connections.idle == 2
    room.come(2)
    assert [each.gave_way for each in (silent, another)] == [0, 0]


@pytest.mark.parametrize("rests", [1, 2], ids=["once", "and is told of twice"])
def test_who_has_taken_its_answer_and_asks_again_is_as_any_other(rests: int) -> None:
    """It is counted once, and gives way when it has been idle for the longest."""
    room = Room(open=9, idle=2)
    (taking,) = room.come()
    taking.taking = True
    room.come(2)
    taking.taking = False
    room.connections.answers(taking)
    assert room.connections.idle == 1
    for _ in range(rests):
        room.connections.rests(taking)
    assert room.connections.idle == 2
    room.come(2)
    assert taking.gave_way == 1
    assert room.connections.open == room.connections.idle == 2


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "behind one that takes for longer"])
def test_who_has_taken_its_answer_and_says_nothing_is_idle_as_any_other(others: int) -> None:
    """Those that were idle after it stay, once it is seen that it takes nothing any more."""
    room = Room(open=9, idle=2 + others)
    stuck = room.come(others)
    (slow,) = room.come()
    for each in (*stuck, slow):
        each.taking = True
    (silent,) = room.come()
    (later,) = room.come()
    assert (slow.gave_way, silent.gave_way) == (0, 1)
    slow.taking = False
    room.come()
    assert (slow.gave_way, later.gave_way) == (1, 0)
    room.come()
    assert later.gave_way == 1
    assert [each.gave_way for each in stuck] == [0] * others


def test_all_places_are_taken_by_answers_that_are_still_taken() -> None:
    """Then who has taken the longest gives way: nobody is kept out."""
    room = Room(open=2, idle=2)
    first, second = room.come(2)
    first.taking = second.taking = True
    room.come()
    assert (first.gave_way, second.gave_way) == (1, 0)


def test_who_gave_way_has_no_place_any_more() -> None:
    """It is not counted twice as gone, nor idle again."""
    room = Room(open=9, idle=1, per_address=2)
    (gone,) = room.come()
    room.come()
    room.connections.rests(gone)
    room.connections.answers(gone)
    room.connections.closed(gone)
    assert (room.connections.open, room.connections.idle) == (1, 1)
    assert room.events == ["idle"]


def test_one_address_has_so_many() -> None:
    """Another one has as many; who leaves makes room, also by giving way."""
    room = Room(open=9, idle=9, per_address=2)
    first, _ = room.come(2)
    refusal = room.refuse()
    assert isinstance(refusal, TooManyConnections)
    assert refusal.retry_after_seconds
    assert room.events == [Reason.TOO_MANY_CONNECTIONS]
    room.come(2, "there")
    room.connections.closed(first)
    room.come()
    room.refuse()
    assert room.connections.open == 4


def test_a_refused_one_is_not_counted_of_its_address() -> None:
    """Where all places are taken."""
    room = Room(open=1, idle=1, per_address=1)
    (busy,) = room.come(peer="there", busy=True)
    assert isinstance(room.refuse(), ConnectionsExhausted)
    room.connections.closed(busy)
    room.come()


@pytest.mark.parametrize(
    ("peer", "per_address"),
    [
        pytest.param("trusted proxy", 1, id="a trusted proxy"),
        pytest.param(None, 1, id="a Unix socket has no address"),
        pytest.param("here", 0, id="no limit"),
    ],
)
def test_who_is_not_counted(peer: str | None, per_address: int) -> None:
    """By its address."""
    room = Room(open=9, idle=9, per_address=per_address)
    room.come(9, peer)
    assert room.connections.open == 9


def tell(room: Room, peer: str | None = "here") -> Peer | None:
    """One more that has no place, if it may be told why."""
    member = Peer()
    return member if room.connections.may_be_told(member, peer) else None


def test_so_many_are_told_why() -> None:
    """One more is not, until one of them has left."""
    room = Room(told=2)
    told = tell(room)
    assert told is not None
    assert tell(room) is not None
    assert tell(room) is None
    room.connections.closed(Peer())
    assert tell(room) is None
    room.connections.closed(told)
    assert tell(room) is not None
    assert room.connections.open == 0


@pytest.mark.parametrize("per_address", [0, 9], ids=["no limit of connections", "a limit"])
def test_so_many_of_one_address_are_told_why(per_address: int) -> None:
    """Others are all the same; who leaves makes room; a trusted proxy has no limit of its own."""
    room = Room(told=99, told_per_address=2, per_address=per_address)
    told = tell(room)
    assert told is not None
    assert tell(room) is not None
    assert tell(room) is None
    assert all([tell(room, "there"), tell(room, "there"), not tell(room, "there")])
    assert all(tell(room, "trusted proxy") for _ in range(9))
    assert all(tell(room, None) for _ in range(9))
    room.connections.closed(told)
    assert tell(room) is not None
    assert tell(room) is None


def test_who_has_shown_a_key_gives_way_after_strangers() -> None:
    """From its next rest on, until it asks again."""
    room = Room(open=9, idle=3)
    (known,) = room.come(busy=True)
    room.connections.known(known)
    known.taking = True
    room.connections.rests(known)
    strangers = room.come(9)
    assert known.gave_way == 0
    assert [each.gave_way for each in strangers] == [1] * 7 + [0] * 2
    room.connections.closed(known)
    assert room.connections.open == room.connections.idle == 2


@pytest.mark.parametrize("shown", [False, True], ids=["without its key", "with it"])
def test_a_key_counts_until_the_next_request(*, shown: bool) -> None:
    """It may have been revoked since; who is known is who has shown it last."""
    room = Room(open=9, idle=2)
    (client,) = room.come(busy=True)
    for shows in (True, shown):
        room.connections.answers(client)
        if shows:
            room.connections.known(client)
        room.connections.rests(client)
    room.come(2)
    assert client.gave_way == (not shown)


@pytest.mark.parametrize("late", [False, True], ids=["while it is open", "when it is gone"])
def test_a_key_is_forgotten_with_its_connection(*, late: bool) -> None:
    """Nothing is left of it, whenever it was shown."""
    room = Room(open=9, idle=2)
    (once,) = room.come()
    if not late:
        room.connections.known(once)
    room.connections.closed(once)
    if late:
        room.connections.known(once)
    assert room.connections.opened(once, None) is None
    room.come(2)
    assert once.gave_way == 1


def test_a_key_gives_no_place() -> None:
    """Whoever has none because its place was needed has none all the same."""
    room = Room(open=9, idle=1)
    (gone,) = room.come()
    room.come()
    room.connections.known(gone)
    room.connections.rests(gone)
    assert gone.gave_way == 1
    assert room.connections.open == room.connections.idle == 1


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        pytest.param(1_100, (1_000, 500, 100), id="all fit"),
        pytest.param(1_099, (999, 500, 100), id="all but one"),
        pytest.param(400, (350, 350, 50), id="some"),
        pytest.param(0, (8, 8, 1), id="none: a few are tried"),
        pytest.param(-9, (8, 8, 1), id="less than none"),
    ],
)
def test_no_more_places_than_there_are(most: int, expected: tuple[int, int, int]) -> None:
    """So that the idle give way before the system has no more."""
    limits = ConnectionLimits(open=1_000, idle=500, told=100, per_address=7).within(most)
    assert (limits.open, limits.idle, limits.told) == expected
    assert limits.per_address == 7


def test_what_fits_exactly_is_not_lowered() -> None:
    """However many of it are for those who are told: that share is for where there is too little."""
    limits = ConnectionLimits(open=64, idle=32, told=64)
    assert limits.within(128) == limits
    assert limits.within(127).told == 15


def test_a_limit_is_never_raised() -> None:
    """Where few are allowed, few there are."""
    limits = ConnectionLimits(open=2, idle=1, told=256).within(9)
    assert (limits.open, limits.idle, limits.told) == (2, 1, 1)
