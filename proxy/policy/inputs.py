"""The forms of `prompt` and `input`, and of the two sides of a comparison.

A list of token ids carries no characters, so each id counts four; and vLLM takes ``1.0``, ``true``
and ``"1"`` for ids, so whatever is not of one of the known forms, type for type, is refused.
"""

from typing import Any

from proxy.errors import InvalidValue

# English averages four characters to a token.
_CHARS_PER_ID = 4

# No vocabulary comes near; a number of 4,300 digits costs whoever prints it 0.2 ms.
_MAX_ID = 2**63 - 1


def entries(value: object) -> int:
    """How many inputs a value of `prompt` or `input` is, if it is one of the forms: ids are none."""
    if type(value) is list and value and type(value[0]) is not int:
        return len(value)
    return int(value is not None)


def input_chars(name: str, value: object) -> list[int]:
    """Characters of each entry of `prompt` or `input`; a lone text or list of ids is one entry.

    Args:
        name: The field, for the error.
        value: A string, a list of strings, a list of ids or a list of lists of ids.

    Raises:
        InvalidValue: Any other form.
    """
    if value is None:
        return []
    if type(value) is str:
        return [len(value)]
    if type(value) is list:
        kinds = {type(entry) for entry in value}
        if kinds <= {str}:
            return [len(text) for text in value]
        if kinds == {int}:
            return [_id_chars(name, value)]
        if kinds == {list}:
            return [_id_chars(name, ids) for ids in value]
    raise InvalidValue(
        f"{name} must be a string, a list of strings, a list of token ids (JSON integers, not "
        "negative) or a list of lists of token ids.",
        param=name,
    )


def text_chars(name: str, value: object) -> list[int]:
    """Characters of each text of one side of a comparison.

    Raises:
        InvalidValue: Anything but a string or a list of strings.
    """
    texts = [value] if type(value) is str else value
    if texts is None:
        return []
    if type(texts) is not list or any(type(text) is not str for text in texts):
        raise InvalidValue(f"{name} must be a string or a list of strings.", param=name)
    return [len(text) for text in texts]


def _id_chars(name: str, ids: list[Any]) -> int:
    # Type for type: isinstance would take a bool for an int.
    if ids and ({type(token) for token in ids} != {int} or min(ids) < 0 or max(ids) > _MAX_ID):
        raise InvalidValue(
            f"{name}: token ids must be JSON integers, not negative, of at most 64 bits.",
            param=name,
        )
    return _CHARS_PER_ID * len(ids)
