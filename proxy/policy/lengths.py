"""How long a JSON value is: as compact JSON, and as a chat template may write it."""

import json

_COMPACT = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_RENDERED = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


def compact_chars(value: object) -> int:
    """Characters of the value as compact JSON."""
    return len(_COMPACT(value))


def rendered_chars(value: object) -> int:
    """Characters of the value as a template's ``tojson`` writes it.

    That is Python's default form, with a space behind each comma and colon and with numbers in
    Python's spelling: ``1e15`` is 18 characters long there. Counting the compact form, or the
    client's own, let 4,900 numbers through as 9,800 characters that became 14,700.
    """
    return len(_RENDERED(value))


def member_chars(name: str, value: object) -> int:
    """Characters of a member of a rendered structure: its key, its value and the punctuation."""
    return len(_RENDERED({name: value}))


def arguments_chars(text: str) -> int:
    """Characters of tool-call arguments given as a string, as a template may write them.

    vLLM parses such a string with ``json.loads`` and hands the object to the template
    (``_postprocess_messages``), so the same parser decides here. What it does not read stays text.
    """
    try:
        return max(len(text), rendered_chars(json.loads(text)))
    except (ValueError, RecursionError):
        return len(text)
