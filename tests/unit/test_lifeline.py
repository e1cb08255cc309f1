"""What may end a request, and how it ends then."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import anyio
import pytest

from proxy import lifeline as lifelines_
from proxy.errors import (
    ClientDisconnected,
    InvalidHttp,
    ProxyError,
    RequestTimeout,
    ShuttingDown,
    UpstreamError,
    UpstreamTimeout,
)
from proxy.lifeline import Deadline, Lifeline, Lifelines
from proxy.lifeline.scopes import TaskScope

LONG = Deadline(3600.0, lambda: UpstreamTimeout("total"))
SHORT = Deadline(0.02, lambda: UpstreamTimeout("phase"))


@pytest.fixture(autouse=True, params=[TaskScope, anyio.CancelScope])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a request is ended: as in front of our transport, and as in front of any other."""
    monkeypatch.setattr(lifelines_, "TaskScope", request.param)


async def forever() -> None:
    """Waits for something that does not come."""
    await asyncio.get_running_loop().create_future()


async def live(block: Callable[[Lifeline], Awaitable[None]], total: Deadline = LONG) -> None:
    """Runs a block as a request is run."""
    with Lifelines().hold(total) as lifeline:
        await block(lifeline)


def receiving(*messages: dict[str, Any] | ProxyError) -> Callable[[], Awaitable[dict[str, Any]]]:
    """An ASGI receive with these messages, and then none."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if not left:
            await forever()
        message = left.pop(0)
        if isinstance(message, ProxyError):
            raise message
        return message

    return receive


async def test_what_is_done_in_time_is_left_alone() -> None:
    """A block that ends by itself ends well, and is counted as long as it lasts."""
    lifelines = Lifelines()
    with lifelines.hold(LONG) as lifeline:
        lifeline.watch(receiving())
        assert lifelines.in_flight == 1
    assert lifelines.in_flight == 0


async def test_an_exception_of_its_own_passes_through() -> None:
    """What the block raises is nobody else's business."""
    lifelines = Lifelines()
    with pytest.raises(UpstreamError), lifelines.hold(LONG):
        raise UpstreamError("broken")
    assert lifelines.in_flight == 0


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        pytest.param([{"type": "http.disconnect"}], ClientDisconnected, id="the client leaves"),
        pytest.param(
            [{"type": "http.request"}, {"type": "http.disconnect"}],
            ClientDisconnected,
            id="it says something first that nobody reads",
        ),
        pytest.param([InvalidHttp("broken")], InvalidHttp, id="what it says cannot be read"),
    ],
)
async def test_the_client_ends_it(messages: list[Any], error: type[ProxyError]) -> None:
    """A block that waits for ever ends when its client leaves."""

    async def block(lifeline: Lifeline) -> None:
        lifeline.watch(receiving(*messages))
        await forever()

    with pytest.raises(error):
        await live(block)


async def test_the_end_of_all() -> None:
    """The server's end comes to every request, each with an error of its own."""
    lifelines = Lifelines()
    errors: list[ProxyError] = []

    async def serve() -> None:
        try:
            with lifelines.hold(LONG):
                await forever()
        except ProxyError as error:
            errors.append(error)

    tasks = [asyncio.create_task(serve()) for _ in range(3)]
    await asyncio.sleep(0)
    assert lifelines.in_flight == 3
    lifelines.end_all(lambda: ShuttingDown("drained"))
    await asyncio.gather(*tasks)
    assert [type(error) for error in errors] == [ShuttingDown] * 3
    assert len({id(error) for error in errors}) == 3
    assert lifelines.in_flight == 0


async def test_the_first_end_counts() -> None:
    """What happens to a request that is being ended changes nothing any more."""

    async def block(lifeline: Lifeline) -> None:
        lifeline.end(ClientDisconnected())
        lifeline.end(ShuttingDown("drained"))
        await forever()

    with pytest.raises(ClientDisconnected):
        await live(block)


async def test_an_error_on_the_way_out_does_not_hide_the_reason() -> None:
    """A transport that fails because it is called off is not the reason."""

    async def block(lifeline: Lifeline) -> None:
        lifeline.end(ClientDisconnected())
        try:
            await forever()
        except asyncio.CancelledError:
            raise UpstreamError("broken") from None

    with pytest.raises(ClientDisconnected) as ended:
        await live(block)
    assert isinstance(ended.value.__cause__, UpstreamError)


async def test_an_answer_that_was_complete_stays_so() -> None:
    """An end that comes after the last step is not told, and ends nothing that follows."""
    with Lifelines().hold(LONG) as lifeline:
        lifeline.end(ShuttingDown("drained"))
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_end_that_comes_too_late() -> None:
    """Whoever tells that a client has left may tell it when all is over."""
    with Lifelines().hold(LONG) as lifeline:
        pass
    lifeline.end(ClientDisconnected())
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_end_while_the_task_is_about_to_go_on() -> None:
    """What it waited for has come, and its client has left, in one turn of the loop."""
    loop = asyncio.get_running_loop()

    async def block(lifeline: Lifeline) -> None:
        came = loop.create_future()
        loop.call_soon(came.set_result, None)
        loop.call_soon(lifeline.end, ClientDisconnected())
        await came
        await forever()

    with pytest.raises(ClientDisconnected):
        await live(block)
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("ours_first", [True, False], ids=["the end first", "the end second"])
async def test_an_end_and_somebody_elses_cancellation(*, ours_first: bool) -> None:
    """Of both at once, that of the process counts: its task must end, and not go on with an answer."""
    begun: list[Lifeline] = []

    async def serve() -> None:
        with Lifelines().hold(LONG) as lifeline:
            begun.append(lifeline)
            await forever()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    if ours_first:
        begun[0].end(ClientDisconnected())
    task.cancel()
    if not ours_first:
        begun[0].end(ClientDisconnected())
    # anyio's takes the first for its own, whosever it was.
    ours = vars(lifelines_)["TaskScope"] is TaskScope
    with pytest.raises(asyncio.CancelledError if ours else BaseException) as ended:
        await task
    assert isinstance(ended.value, (asyncio.CancelledError, ClientDisconnected))
    assert task.done()


async def test_an_answer_that_went_nowhere_was_not_complete() -> None:
    """After its client has left, nothing that is sent waits: the block may be done at once."""
    with pytest.raises(ClientDisconnected), Lifelines().hold(LONG) as lifeline:
        lifeline.end(ClientDisconnected())


async def test_somebody_elses_cancellation_is_not_ours_to_answer() -> None:
    """When the process is torn down, a request does not turn it into an answer."""

    async def serve() -> None:
        with Lifelines().hold(LONG) as lifeline:
            lifeline.watch(receiving())
            await forever()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_left_behind() -> None:
    """Neither a watcher nor a pending cancellation outlives the block."""
    before = asyncio.all_tasks()

    async def block(lifeline: Lifeline) -> None:
        lifeline.watch(receiving({"type": "http.disconnect"}))
        await forever()

    with pytest.raises(ClientDisconnected):
        await live(block)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_whole_has_a_deadline() -> None:
    """A request that goes on and on ends all the same."""

    async def block(lifeline: Lifeline) -> None:
        while True:
            lifeline.expect(SHORT)
            await asyncio.sleep(0)

    with pytest.raises(UpstreamTimeout, match="total"):
        await live(block, Deadline(0.05, lambda: UpstreamTimeout("total")))


async def test_a_phase_has_a_deadline() -> None:
    """A phase in which nothing happens ends the request."""

    async def block(lifeline: Lifeline) -> None:
        lifeline.expect(SHORT)
        await forever()

    with pytest.raises(UpstreamTimeout, match="phase"):
        await live(block)


async def test_the_same_phase_again_has_all_of_its_time() -> None:
    """Only silence counts: what keeps going takes as long as it takes."""
    loop = asyncio.get_running_loop()
    with Lifelines().hold(LONG) as lifeline:
        until = loop.time() + 4 * SHORT.seconds
        while loop.time() < until:
            lifeline.expect(SHORT)
            await asyncio.sleep(0)


async def test_the_next_phase_has_its_own() -> None:
    """A short deadline is over with its phase, and a long one does not hide a short one."""
    loop = asyncio.get_running_loop()

    async def block(lifeline: Lifeline) -> None:
        lifeline.expect(SHORT)
        lifeline.expect(None)
        past = loop.create_future()
        loop.call_later(3 * SHORT.seconds, past.set_result, None)
        await past
        lifeline.expect(LONG)
        lifeline.expect(Deadline(0.01, lambda: RequestTimeout("slow")))
        await forever()

    with pytest.raises(RequestTimeout):
        await live(block)


async def test_each_of_many_has_its_own_deadlines() -> None:
    """One timer looks at all of them: at the earliest first, whoever came first."""
    lifelines, ended = Lifelines(), list[str]()

    async def serve(name: str, total: float, phase: float | None = None) -> None:
        deadline = None if phase is None else Deadline(phase, lambda: RequestTimeout("slow"))
        try:
            with lifelines.hold(Deadline(total, lambda: UpstreamTimeout("total"))) as lifeline:
                lifeline.expect(deadline)
                await forever()
        except (UpstreamTimeout, RequestTimeout):
            ended.append(name)

    async with asyncio.TaskGroup() as group:
        idle = group.create_task(serve("never", 3600.0))
        await asyncio.gather(
            serve("third", 0.09), serve("second", 3600.0, 0.06), serve("first", 0.03)
        )
        assert lifelines.in_flight == 1
        idle.cancel()
    assert ended == ["first", "second", "third"]


def test_a_deadline_comes_on_another_loop_too() -> None:
    """What one loop was asked for it does not do once it has ended."""
    lifelines = Lifelines()

    async def serve(total: Deadline) -> None:
        with lifelines.hold(total):
            await (forever() if total is SHORT else asyncio.sleep(0))

    asyncio.run(serve(Deadline(0.01, lambda: UpstreamTimeout("gone"))))
    with pytest.raises(UpstreamTimeout, match="phase"):
        asyncio.run(asyncio.wait_for(serve(SHORT), 5))


@pytest.mark.parametrize(
    ("looks", "ends"),
    [
        pytest.param([9.99], False, id="in time"),
        pytest.param([10.01], True, id="late"),
        pytest.param([10.04], True, id="late, and looked at a moment later"),
        pytest.param([10.06], False, id="it is we who are late"),
        pytest.param([10.06, 10.3], False, id="and have not read all yet"),
        pytest.param([10.06, 10.32], True, id="it has said nothing since"),
        pytest.param([10.06, 20.0], True, id="nor while we were held up once more"),
        pytest.param([60.01], True, id="the whole knows no excuse"),
        pytest.param([59.9, 60.01], True, id="nor after one"),
    ],
)
async def test_who_is_late(looks: list[float], ends: bool) -> None:
    """A phase has one excuse, where it was looked at too late; the whole has none."""
    total, phase = (Deadline(at, lambda: UpstreamTimeout("late")) for at in (60.0, 10.0))

    async def block(lifeline: Lifeline) -> None:
        began = asyncio.get_running_loop().time()
        lifeline.expect(phase)
        dues = [lifeline.look(began + at) - began for at in looks]
        assert (dues[-1] == inf) is ends
        await asyncio.sleep(0)

    if ends:
        with pytest.raises(UpstreamTimeout):
            await live(block, total)
    else:
        await live(block, total)


async def test_each_phase_has_an_excuse_of_its_own() -> None:
    """Who goes on after one has shown that it was there."""

    async def block(lifeline: Lifeline) -> None:
        for _ in range(3):
            lifeline.expect(SHORT)
            assert lifeline.look(asyncio.get_running_loop().time() + 10.0) < inf
            await asyncio.sleep(0)

    await live(block)
