"""Forms of prompts and conversations: which there are, how many inputs, and which are refused."""

from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import ContextLengthExceeded, InvalidValue, TooManyInputs
from tests.harness.judging import CAP, check, user


@pytest.mark.parametrize("name", ["prompt", "input"])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param([1.0, 2.0], id="floats"),
        pytest.param([1, True], id="a boolean among ids"),
        pytest.param([True], id="booleans"),
        pytest.param([1, None], id="a null among ids"),
        pytest.param([1, "1"], id="a string among ids"),
        pytest.param([-1], id="a negative id"),
        pytest.param([[1, -1]], id="a negative id in a list of lists"),
        pytest.param([2**63], id="an id of more than 64 bits"),
        pytest.param([[1], [1.0]], id="a float in a list of lists"),
        pytest.param([[1], [True]], id="a boolean in a list of lists"),
        pytest.param([["a"]], id="strings in a list of lists"),
        pytest.param([[[1]]], id="three levels"),
        pytest.param(["a", [1]], id="a text and a list of ids"),
        pytest.param([None], id="null in a list"),
        pytest.param(5, id="a number"),
        pytest.param(True, id="a boolean"),
        pytest.param({"a": 1}, id="an object"),
    ],
)
def test_other_forms_of_prompts_are_refused(name: str, value: object) -> None:
    """As vLLM does not: it takes 1.0, true and "1" for ids."""
    kind = BodyKind.COMPLETIONS if name == "prompt" else BodyKind.EMBEDDINGS
    with pytest.raises(InvalidValue) as caught:
        check(kind, {name: value})
    assert caught.value.param is not None
    assert caught.value.param.startswith(name)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(BodyKind.CHAT, {"messages": 5}, id="messages that are a number"),
        pytest.param(BodyKind.CHAT, {"messages": [None]}, id="a message that is null"),
        pytest.param(BodyKind.CHAT, {"messages": ["hi"]}, id="a message that is a string"),
        pytest.param(BodyKind.CHAT, {"messages": [[user("hi")]]}, id="a batch of conversations"),
        pytest.param(
            BodyKind.RERANK, {"query": "q", "documents": [{"text": "d"}]}, id="objects to rank"
        ),
        pytest.param(BodyKind.SCORE, {"text_1": 1, "text_2": "b"}, id="a number to score"),
    ],
)
def test_other_forms_of_conversations_are_refused(kind: BodyKind, body: dict[str, Any]) -> None:
    """What cannot be counted must not pass."""
    with pytest.raises(InvalidValue):
        check(kind, body)


def test_embeddings_are_capped_for_each_input_and_ten_times_in_total() -> None:
    """Ten full inputs pass, eleven do not."""
    full = "x" * CAP
    assert check(BodyKind.EMBEDDINGS, {"input": [full] * 10}).cost.prompt_chars == 10 * CAP
    with pytest.raises(ContextLengthExceeded, match=r"100,001.*100,000"):
        check(BodyKind.EMBEDDINGS, {"input": [*[full] * 10, "x"]})


@pytest.mark.parametrize(
    ("kind", "name", "limit", "setting"),
    [
        pytest.param(BodyKind.EMBEDDINGS, "input", 2_048, "fixed", id="inputs to embed"),
        pytest.param(BodyKind.RERANK, "documents", 2_048, "fixed", id="documents to rank"),
        pytest.param(BodyKind.COMPLETIONS, "prompt", 8, "PROXY_MAX_CHOICES", id="prompts"),
    ],
)
def test_lists_of_inputs_are_bounded(kind: BodyKind, name: str, limit: int, setting: str) -> None:
    """At the bound they pass, one more is refused; ids are not entries."""
    assert check(kind, {name: ["x"] * limit}).cost.prompt_chars == limit
    with pytest.raises(TooManyInputs, match=setting):
        check(kind, {name: ["x"] * (limit + 1)})


@pytest.mark.parametrize(
    ("kind", "body", "chars"),
    [
        pytest.param(BodyKind.COMPLETIONS, {"prompt": None}, 0, id="no prompt"),
        pytest.param(BodyKind.COMPLETIONS, {"prompt": []}, 0, id="an empty list of prompts"),
        pytest.param(BodyKind.COMPLETIONS, {"prompt": [[]]}, 0, id="an empty list of ids"),
        pytest.param(BodyKind.RERANK, {"query": None}, 0, id="no query"),
        pytest.param(BodyKind.RESPONSES, {"text": 5}, 11, id="a text that is no object"),
        pytest.param(BodyKind.RESPONSES, {"text": {"format": None}}, 0, id="no format"),
    ],
)
def test_what_is_absent_counts_nothing(kind: BodyKind, body: dict[str, Any], chars: int) -> None:
    """The upstream says what it thinks of it."""
    assert check(kind, body).cost.prompt_chars == chars


def test_ids_are_not_entries() -> None:
    """A prompt of 2,000 ids is one prompt."""
    assert check(BodyKind.COMPLETIONS, {"prompt": [1] * 2_000}).cost.sequences == 1
