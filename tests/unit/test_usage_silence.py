"""What is charged for the time in which an engine may have generated, and nothing was seen of it."""

import pytest

from proxy.endpoints import BodyKind
from proxy.telemetry.usage import Usage, UsageMeter
from proxy.telemetry.usage.silence import PATIENCE_SECONDS, TOKENS_PER_SECOND
from tests.harness import usages
from tests.harness.usages import ROLE, WORDS, chunk, counted, event, sse, usage_chunk

CHAT, RESPONSES, MESSAGES = BodyKind.CHAT, BodyKind.RESPONSES, BodyKind.MESSAGES

ESTIMATE, BOUND = 7, 10_000
"""What the prompt was thought to be, and what the output may be."""

WORD = event(WORDS[0])
CREATED = usages.VLLM_RESPONSES[: usages.VLLM_RESPONSES.index(b"\n\n") + 2]
LONG_CREATED = usages.sse(
    {"type": "response.created", "response": {"instructions": "x" * 100_000}}, names=True
)
ADDED = sse({"type": "response.output_item.added", "item": {}}, names=True)
PING = sse({"type": "ping"}, names=True)
START = sse({"type": "message_start", "message": {"content": []}}, names=True)
FILTER = event(chunk() | {"choices": [], "prompt_filter_results": []})
DONE = b"data: [DONE]\n\n"
ROLE_EVENT = event(ROLE)


def running(tokens: int, index: int = 0, **more: str) -> bytes:
    """An event of a choice with what it has used so far."""
    return event(chunk({"content": "x"}, index, usage=counted(21, tokens), **more))


def charged(
    kind: BodyKind,
    *steps: bytes | float,
    sequences: int = 1,
    cut: int = 10**9,
    end: bool = False,
    after: float = 0.0,
    waited_for: bool = False,
) -> Usage:
    """What a stream is charged in which these bytes come, and these seconds pass.

    Args:
        kind: What was asked.
        steps: Bytes and seconds.
        sequences: Generations asked for.
        cut: The size of the chunks.
        end: Whether it is said to be over, or just left.
        after: Seconds that pass then, before anybody asks.
        waited_for: Whether it was not its client who ended it.
    """
    now = 1e6
    meter = UsageMeter(
        kind,
        streamed=True,
        sequences=sequences,
        output_tokens=BOUND // sequences,
        clock=lambda: now,
    )
    meter.asked()
    meter.begin(200, events=True)
    for step in steps:
        if isinstance(step, float):
            now += step
        else:
            for at in range(0, len(step), cut):
                meter.note(step[at : at + cut])
    if end:
        meter.end(complete=False)
    now += after
    return meter.usage(ESTIMATE, waited_for=waited_for)


@pytest.mark.parametrize("end", [False, True], ids=["ended by us", "by the engine"])
@pytest.mark.parametrize(
    ("kind", "steps", "prompt", "left", "waited"),
    [
        pytest.param(CHAT, (WORD, 3.0, WORD, 10.0), ESTIMATE, 6_502, 2, id="silences"),
        pytest.param(CHAT, (ROLE_EVENT, 60.0), ESTIMATE, BOUND, 0, id="no text at all"),
        pytest.param(CHAT, (running(5), 2.0), 21, 1_005, 5, id="a running figure"),
        pytest.param(CHAT, (running(5), WORD * 9, 2.0), 21, 1_010, 10, id="less than was seen"),
        pytest.param(MESSAGES, (START, 2.0), ESTIMATE, 1_000, 0, id="another dialect"),
    ],
)
def test_what_its_client_did_not_end_costs_what_came(
    kind: BodyKind,
    steps: tuple[bytes | float, ...],
    prompt: int,
    left: int,
    waited: int,
    *,
    end: bool,
) -> None:
    """And nothing for the time in which more may have been generated, as it does whoever leaves."""
    after = 0.0 if end else 1.0
    more = 0 if end else 500
    by_client = charged(kind, *steps, end=end, after=after)
    assert by_client == Usage(prompt, min(BOUND, left + more), estimated=True)
    by_others = charged(kind, *steps, end=end, after=after, waited_for=True)
    assert by_others == Usage(prompt, waited, estimated=True)


@pytest.mark.parametrize("cut", [1, 10**9])
@pytest.mark.parametrize(
    ("kind", "steps", "tokens"),
    [
        pytest.param(CHAT, (WORD,), 1, id="none"),
        pytest.param(CHAT, (60.0,), 0, id="before the first event"),
        pytest.param(CHAT, (60.0, WORD), 1, id="until the first event"),
        pytest.param(CHAT, (60.0, WORD, 3.0), 1501, id="after it"),
        pytest.param(CHAT, (event(ROLE), 3.0), 1500, id="after a role alone"),
        pytest.param(CHAT, (WORD, 0.5), 251, id="a short one at the end"),
        pytest.param(CHAT, (WORD, 0.001), 1, id="no time at all"),
        pytest.param(CHAT, (WORD, 3600.0), BOUND, id="no more than was reserved"),
        pytest.param(CHAT, (WORD, 1.9, WORD, 1.9, WORD), 3, id="the pace of a slow engine"),
        pytest.param(CHAT, (WORD, 2.5, WORD, 2.5, WORD), 2503, id="breaks before later events"),
        pytest.param(CHAT, (WORD, 2.0, b": ping\n\n", 2.0), 2001, id="comments break none"),
        pytest.param(
            CHAT, (WORD, 2.0, event(chunk({"role": "assistant"})), 2.0), 2001, id="nor do roles"
        ),
        pytest.param(
            CHAT, (WORD, 1.0, event(chunk({"content": ""})), 1.0), 1002, id="nor does no text"
        ),
        pytest.param(MESSAGES, (WORD, 2.0, PING, 2.0), 2000, id="nor do pings"),
        pytest.param(RESPONSES, (CREATED, 3.0), 0, id="a response that was only created"),
        pytest.param(
            RESPONSES, (LONG_CREATED, 9.0, LONG_CREATED, 9.0), 0, id="so with all its instructions"
        ),
        pytest.param(RESPONSES, (CREATED, 9.0, ADDED, 3.0), 1500, id="a response with an item"),
        pytest.param(MESSAGES, (PING, 3.0), 0, id="a ping before the first event"),
        pytest.param(MESSAGES, (START, 3.0), 1500, id="a message that was begun"),
        pytest.param(CHAT, (FILTER, 3.0), 0, id="an event without a choice"),
        pytest.param(CHAT, (WORD, 1.0, b"data: {]}\n\n", 1.0), 502, id="what nobody can read does"),
        pytest.param(CHAT, (WORD, 1.0, b"data: [DONE]\n\n", 1.0), 1001, id="no end of a choice"),
    ],
)
def test_silence_is_charged(
    kind: BodyKind, steps: tuple[bytes | float, ...], tokens: int, cut: int
) -> None:
    """As what a fast engine would have brought in it."""
    assert charged(kind, *steps, cut=cut) == Usage(ESTIMATE, tokens, estimated=True)


def test_each_sequence_may_have_gone_on() -> None:
    """So each is charged."""
    assert charged(CHAT, WORD, 3.0, sequences=4).completion_tokens == 1 + 4 * 1500


def test_what_comes_in_pieces_is_heard() -> None:
    """An event too long to be kept breaks the silence with each of its pieces."""
    part = b"x" * 100_000
    assert charged(CHAT, WORD, b"data: {", part, 1.0, part, 1.0, part).completion_tokens < BOUND
    assert charged(CHAT, WORD, part, 60.0, part).completion_tokens == BOUND


def test_nothing_is_charged_for_what_follows_the_end() -> None:
    """As the answer's end, which a client may take slowly."""
    assert charged(CHAT, WORD, 1.0, end=True, after=60.0).completion_tokens == 501
    assert charged(CHAT, WORD, 1.0, end=False, after=1.0).completion_tokens == 1001


def test_what_the_engine_states_counts_whatever_the_silence() -> None:
    """It knows."""
    said = event(usage_chunk(21, 3))
    assert charged(CHAT, WORD, 60.0, WORD, said, 60.0) == Usage(21, 3, estimated=False)


@pytest.mark.parametrize("cut", [1, 10**9])
@pytest.mark.parametrize(
    ("steps", "sequences", "tokens"),
    [
        pytest.param((running(40),), 1, 40, id="just stated"),
        pytest.param((running(40), 3.0), 1, 1540, id="silent since"),
        pytest.param((running(40), 3600.0), 1, BOUND, id="no more than was reserved"),
        pytest.param((running(0), 1.0, running(40), 1.0), 1, 540, id="only since the last"),
        pytest.param((running(0), 3.0, running(40)), 1, 1502, id="what was silent before it"),
        pytest.param(
            (running(5), running(7, 1), 1.0, running(9), 1.0, running(13)),
            2,
            13 + 7 + 1000,
            id="of two, one went on",
        ),
        pytest.param((running(5), 1.0), 2, 1005, id="of two, one was never seen"),
        pytest.param(
            (running(5), running(7, 1, finish_reason="stop"), 1.0), 2, 1002, id="one has ended"
        ),
    ],
)
def test_a_running_figure_is_the_least(
    steps: tuple[bytes | float, ...], sequences: int, tokens: int, cut: int
) -> None:
    """Whoever asks for it, and leaves while the engine holds back, has had the rest all the same."""
    expected = Usage(21, tokens, estimated=True)
    assert charged(CHAT, *steps, sequences=sequences, cut=cut) == expected


@pytest.mark.parametrize(
    ("steps", "sequences", "tokens"),
    [
        pytest.param((running(4, finish_reason="stop"), 9.0), 1, 4, id="the choice has ended"),
        pytest.param(
            (running(4, finish_reason="stop"), running(3, 1, finish_reason="stop"), 9.0),
            2,
            7,
            id="both have",
        ),
        pytest.param((running(4), DONE, 9.0), 1, 4, id="all is done"),
        pytest.param((running(4), event(usage_chunk(21, 5)), 9.0), 1, 5, id="a total"),
        pytest.param((running(4), event(usage_chunk(21, 5)), 9.0), 2, 5, id="a total of two"),
    ],
)
def test_a_running_figure_is_the_last_at_the_end(
    steps: tuple[bytes | float, ...], sequences: int, tokens: int
) -> None:
    """The engine cannot have gone on."""
    assert charged(CHAT, *steps, sequences=sequences) == Usage(21, tokens, estimated=False)


def test_a_total_of_one_choice_is_not_that_of_two() -> None:
    """llama.cpp states each; the other one may go on."""
    first = b"".join(part + b"\n\n" for part in usages.LLAMA_CHAT_TWO.split(b"\n\n")[:4])
    assert charged(CHAT, first, 1.0, sequences=2).estimated
    assert charged(CHAT, first, 1.0, sequences=2).completion_tokens >= 500
    assert charged(CHAT, usages.LLAMA_CHAT_TWO, 9.0, sequences=2) == Usage(21, 7, estimated=False)


def test_what_was_cut_breaks_no_silence() -> None:
    """Nor is there less than none."""
    assert charged(CHAT, WORD, 1.0, WORD[:-2], end=True).completion_tokens == 502
    assert charged(CHAT, WORD, 1.0, WORD[:-9], end=True).completion_tokens == 501


def test_the_rate_is_beyond_that_of_engines() -> None:
    """Or holding back would pay: vLLM gives a sequence of the smallest model 360 on two cores."""
    assert TOKENS_PER_SECOND >= 500
    assert PATIENCE_SECONDS <= 2
