"""The strict reading: whatever two parsers could read differently is refused."""

import json

import pytest

from proxy.errors import BodyTooComplex, InvalidJson, Refusal
from proxy.policy.body import MAX_DEPTH, deeper_than, max_structure, parse


def nested(levels: int, opening: str = "[", closing: str = "]") -> bytes:
    """An object whose member is nested so that the whole is `levels` deep."""
    return f'{{"x":{opening * (levels - 1)}1{closing * (levels - 1)}}}'.encode()


@pytest.mark.parametrize(
    ("body", "refusal", "words"),
    [
        pytest.param(b"", InvalidJson, "empty", id="an empty body"),
        pytest.param(b"  \n", InvalidJson, "empty", id="white space only"),
        pytest.param(b'{"a":1', InvalidJson, "ends before", id="an object that is cut off"),
        pytest.param(b"[]", InvalidJson, "object", id="an array"),
        pytest.param(b'"x"', InvalidJson, "object", id="a string"),
        pytest.param(b"1", InvalidJson, "object", id="a number"),
        pytest.param(b"null", InvalidJson, "object", id="null"),
        pytest.param(b"{} trailing", InvalidJson, "strict JSON", id="bytes after the object"),
        pytest.param(b'{"a":1}{"a":2}', InvalidJson, "strict JSON", id="two objects"),
        pytest.param(b'{"a":1}\x00', InvalidJson, "strict JSON", id="a NUL after the object"),
        pytest.param(b'{"a":1,}', InvalidJson, "strict JSON", id="a trailing comma"),
        pytest.param(b'{"a":1/*x*/}', InvalidJson, "strict JSON", id="a comment"),
        pytest.param(b"{'a':1}", InvalidJson, "strict JSON", id="single quotes"),
        pytest.param(b'{"a":NaN}', InvalidJson, "strict JSON", id="NaN"),
        pytest.param(b'{"a":Infinity}', InvalidJson, "strict JSON", id="Infinity"),
        pytest.param(b'{"a":-Infinity}', InvalidJson, "strict JSON", id="minus Infinity"),
        pytest.param(b'{"a":01}', InvalidJson, "strict JSON", id="a leading zero"),
        pytest.param(b'{"a":1,"a":2}', InvalidJson, "twice", id="a duplicate key"),
        pytest.param(b'{"a":1,"\\u0061":2}', InvalidJson, "twice", id="a duplicate in disguise"),
        pytest.param(b'{"x":[{"a":1,"a":2}]}', InvalidJson, "twice", id="a duplicate deep down"),
        pytest.param(b'{"a":"\\ud83d"}', InvalidJson, "surrogate", id="a lone leading surrogate"),
        pytest.param(b'{"a":"\\ude00"}', InvalidJson, "surrogate", id="a lone trailing surrogate"),
        pytest.param(b'{"a":"\\ud83dx"}', InvalidJson, "surrogate", id="half a pair"),
        pytest.param(b'{"\\ud83d":1}', InvalidJson, "surrogate", id="a lone surrogate in a key"),
        pytest.param(b'{"a":"\xe9"}', InvalidJson, "UTF-8", id="latin-1 bytes"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', InvalidJson, "UTF-8", id="a surrogate in UTF-8"),
        pytest.param(b'{"a":"\xc0\x80"}', InvalidJson, "UTF-8", id="an overlong form"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', InvalidJson, "strict JSON", id="a byte order mark"),
        pytest.param('{"a":1}'.encode("utf-16"), InvalidJson, "strict JSON", id="UTF-16"),
        pytest.param(b'\x28\xb5\x2f\xfd{"a":1}', InvalidJson, "strict JSON", id="zstd magic"),
        pytest.param(b'{"a":"\x01"}', InvalidJson, "strict JSON", id="a raw control character"),
        pytest.param(b'{"a":' + b"1" * 5000 + b"}", InvalidJson, "strict", id="5,000 digits"),
        pytest.param(nested(MAX_DEPTH + 1), BodyTooComplex, "levels", id="101 arrays deep"),
        pytest.param(
            nested(MAX_DEPTH + 1, '{"k":', "}"), BodyTooComplex, "levels", id="101 objects deep"
        ),
        pytest.param(nested(20_000), BodyTooComplex, "levels", id="20,000 levels deep"),
    ],
)
def test_a_body_that_two_parsers_could_read_differently_is_refused(
    body: bytes, refusal: type[Refusal], words: str
) -> None:
    """Each with a message that says what is wrong, and never quotes the body."""
    with pytest.raises(refusal) as caught:
        parse(body, max_structure=84_000)
    assert words in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b' \r\n\t{ "a" : 1 } \n', id="white space around"),
        pytest.param(b'{"a":"\\ud83d\\ude00"}', id="a proper surrogate pair"),
        pytest.param(b'{"a":"\\u0000\\/\\u00e9"}', id="escapes"),
        pytest.param(b'{"a":123456789012345678901234567890}', id="a big integer"),
        pytest.param(b'{"a":[1e400,-1E-400,-0,1.50]}', id="exotic numbers"),
        pytest.param(nested(MAX_DEPTH), id="100 arrays deep"),
        pytest.param(nested(MAX_DEPTH, '{"k":', "}"), id="100 objects deep"),
    ],
)
def test_strict_json_is_read(body: bytes) -> None:
    """Everything that RFC 8259 allows and every parser reads alike."""
    assert parse(body, max_structure=84_000) == json.loads(body)


def test_no_message_repeats_what_the_client_wrote() -> None:
    """A duplicate key is two megabytes long if the client wants it to be."""
    secret = "sk-canary" * 1000
    with pytest.raises(InvalidJson) as caught:
        parse(f'{{"{secret}":1,"{secret}":2}}'.encode(), max_structure=84_000)
    assert "canary" not in caught.value.message
    assert "line 1 column" in caught.value.message


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(b"{},", id="empty objects"),
        pytest.param(b"[],", id="empty arrays"),
        pytest.param(b"1,", id="numbers"),
        pytest.param(b'"",', id="empty strings"),
    ],
)
def test_hostile_structure_is_refused_before_it_is_parsed(unit: bytes) -> None:
    """2 MB of it would hold the loop for half a second."""
    body = b'{"m":[' + unit * (2_000_000 // len(unit)) + b"1]}"
    with pytest.raises(BodyTooComplex, match="PROXY_MAX_PROMPT_CHARS"):
        parse(body, max_structure=max_structure(10_000, 64_000))


def test_the_structure_bound_is_exact_and_only_for_large_bodies() -> None:
    """At the bound it is read, one comma more is refused, and a small body is never counted."""
    padding = b'"' + b"x" * 65_536 + b'"'
    at_bound = b'{"m":[' + b"1," * 998 + padding + b"]}"  # 998 commas, one bracket, one brace
    assert len(parse(at_bound, max_structure=1_000)["m"]) == 999
    with pytest.raises(BodyTooComplex, match="1,001 commas"):
        parse(at_bound.replace(b"[1,", b"[1,1,", 1), max_structure=1_000)
    small = b'{"m":[' + b"1," * 2_000 + b"1]}"
    assert len(parse(small, max_structure=1_000)["m"]) == 2_001


def test_keys_are_bounded_more_closely() -> None:
    """A third as many colons, wherever they are: keys cost a parser many times what numbers do."""
    padding = b"x" * 65_536
    assert parse(b'{"m":"' + b":" * 332 + padding + b'"}', max_structure=1_000)
    with pytest.raises(BodyTooComplex, match="334 colons"):
        parse(b'{"m":"' + b":" * 333 + padding + b'"}', max_structure=1_000)
    small = b'{"m":"' + b":" * 2_000 + b'"}'
    assert len(parse(small, max_structure=1_000)["m"]) == 2_000


@pytest.mark.parametrize(
    ("value", "depth"),
    [
        pytest.param(1, 0, id="a scalar"),
        pytest.param([], 1, id="an empty array"),
        pytest.param({"a": [{"b": []}]}, 4, id="mixed nesting"),
        pytest.param([[], [[]], 1], 3, id="the deepest branch counts"),
    ],
)
def test_depth_counts_every_level(value: object, depth: int) -> None:
    """On both sides of the bound."""
    assert not deeper_than(value, depth)
    if depth:
        assert deeper_than(value, depth - 1)
