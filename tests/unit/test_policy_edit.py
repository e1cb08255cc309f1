"""Surgical edits: the value's bytes change, and no other byte does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.edit import Edit, apply

ODD = (
    b'{ "model" : "m",\n\t"messages":[ {"role":"user","content":"caf\\u00e9 \\/ \xc3\xa9"} ],'
    b'"temperature": 1.0e+00 , "seed":123456789012345678901234567890, "max_tokens" :  99999 ,'
    b' "z":{ "b":1 , "a":[1 ,2 ] } }\n'
)


def test_without_edits_the_very_same_object_comes_back() -> None:
    """So that an unchanged request costs no copy."""
    assert apply(ODD, []) is ODD


def test_a_replaced_value_changes_no_other_byte() -> None:
    """Odd white space, escapes, number spellings and key order stay."""
    assert apply(ODD, [Edit(("max_tokens",), b"4096")]) == ODD.replace(b"99999", b"4096")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"{}", b'{"n":1}', id="an empty object"),
        pytest.param(b" {\n }", b' {"n":1\n }', id="an empty object with space in it"),
        pytest.param(b'{"a":1}', b'{"n":1,"a":1}', id="an object with a member"),
        pytest.param(b'\r\n{ "a":1}', b'\r\n{"n":1, "a":1}', id="space around the brace"),
        pytest.param(b'{"a":null}', b'{"n":1,"a":null}', id="another member is null"),
        pytest.param(b'{"n":null}', b'{"n":1}', id="a lone null is replaced, not duplicated"),
        pytest.param(b'{"n" : null }', b'{"n" : 1 }', id="a null with space around"),
        pytest.param(b'{"\\u006e":7}', b'{"\\u006e":1}', id="an escaped key is the same key"),
        pytest.param(b'{"x":{"n":7}}', b'{"n":1,"x":{"n":7}}', id="a namesake deep down stays"),
        pytest.param(b'{"a":"\\"n\\":7"}', b'{"n":1,"a":"\\"n\\":7"}', id="a namesake in a string"),
        pytest.param(b'{"a\\\\":1,"n":7}', b'{"a\\\\":1,"n":1}', id="a key that ends in backslash"),
        pytest.param(b'{"a\\"n":2,"n":7}', b'{"a\\"n":2,"n":1}', id="a quote within a key"),
    ],
)
def test_a_member_is_set_where_it_stands_or_behind_the_brace(body: bytes, expected: bytes) -> None:
    """Bytes, exactly."""
    assert apply(body, [Edit(("n",), b"1")]) == expected


def test_several_edits_at_once() -> None:
    """Replacements, a nested one and insertions in one pass."""
    body = b'{"b": 2, "thinking": {"type":"enabled", "budget_tokens" : 31999}, "a": 1}'
    edits = [
        Edit(("a",), b"10"),
        Edit(("b",), b"20"),
        Edit(("c",), b"30"),
        Edit(("d",), b"40"),
        Edit(("thinking", "budget_tokens"), b"4095"),
    ]
    assert apply(body, edits) == (
        b'{"c":30,"d":40,"b": 20, "thinking": {"type":"enabled", "budget_tokens" : 4095}, "a": 10}'
    )


def test_white_space_is_not_walked_byte_by_byte() -> None:
    """Two megabytes of it behind the brace held the loop for 120 ms."""

    class Counted(bytes):
        """Counts how often it is looked into."""

        looks = 0

        def __getitem__(self, index: Any) -> Any:
            """Bytes, as ever."""
            type(self).looks += 1
            return super().__getitem__(index)

    space = b" " * 10_000
    edited = apply(Counted(b"{" + space + b"}"), [Edit(("n",), b"1")])
    assert edited == b'{"n":1' + space + b"}"
    assert Counted.looks < 10


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    body=st.dictionaries(st.text(max_size=6) | st.sampled_from(["n", "m"]), JSON, max_size=6),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 0, 2]),
    value=st.integers(0, 10**6),
)
def test_any_object_keeps_everything_but_the_edited_members(
    body: dict[str, Any], ascii_only: bool, indent: int | None, value: int
) -> None:
    """Parsed, it equals the same change made on the parsed object, in the same order."""
    raw = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode()
    edited = json.loads(apply(raw, [Edit(("n",), str(value).encode())]))
    assert edited == {**body, "n": value}
    assert [key for key in edited if key != "n"] == [key for key in body if key != "n"]


def test_a_member_that_is_known_to_be_absent_is_put_in_beside_others() -> None:
    """Behind the brace; what is looked for is found in its old place."""
    edits = [Edit(("b",), b"9"), Edit(("c",), b"3", absent=True)]
    assert apply(b'{ "a": 1, "b": 2 }', edits) == b'{"c":3, "a": 1, "b": 9 }'
    assert apply(b"{ }", [Edit(("c",), b"3", absent=True)]) == b'{"c":3 }'
