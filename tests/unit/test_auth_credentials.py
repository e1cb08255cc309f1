"""Which credential a request carries, as a table of header fields."""

import pytest

from proxy.auth.credentials import credential
from proxy.errors import Dialect, MissingApiKey

Fields = list[tuple[bytes, bytes]]
OPENAI, ANTHROPIC = Dialect.OPENAI, Dialect.ANTHROPIC


@pytest.mark.parametrize(
    ("headers", "dialect", "key"),
    [
        pytest.param([], OPENAI, None, id="no field is no credential"),
        pytest.param([(b"authorization", b"Bearer K")], OPENAI, b"K", id="the usual form"),
        pytest.param([(b"authorization", b"bearer K")], OPENAI, b"K", id="scheme in lower case"),
        pytest.param([(b"authorization", b"BEARER K")], OPENAI, b"K", id="scheme in upper case"),
        pytest.param([(b"authorization", b"Bearer   K")], OPENAI, b"K", id="more than one space"),
        pytest.param([(b"authorization", b"Bearer\tK")], OPENAI, b"K", id="a tab for a space"),
        pytest.param([(b"authorization", b" Bearer K ")], OPENAI, b"K", id="spaces around it"),
        pytest.param([(b"authorization", b"Bearer k-_~+/=!")], OPENAI, b"k-_~+/=!", id="any mark"),
        pytest.param(
            [(b"authorization", b"Bearer " + b"K" * 20_000)], OPENAI, b"K" * 20_000, id="a long one"
        ),
        pytest.param([(b"x-api-key", b"K")], OPENAI, None, id="x-api-key is none on OpenAI routes"),
        pytest.param([(b"x-api-key", b"K")], ANTHROPIC, b"K", id="x-api-key on Anthropic routes"),
        pytest.param([(b"x-api-key", b" K ")], ANTHROPIC, b"K", id="x-api-key with spaces around"),
        pytest.param(
            [(b"authorization", b"Bearer K")], ANTHROPIC, b"K", id="a bearer on Anthropic routes"
        ),
        pytest.param(
            [(b"x-api-key", b"K"), (b"authorization", b"Bearer K")],
            ANTHROPIC,
            b"K",
            id="both forms with the same key",
        ),
        pytest.param(
            [(b"x-api-key", b"X"), (b"authorization", b"Bearer K")],
            OPENAI,
            b"K",
            id="x-api-key does not disturb an OpenAI route",
        ),
        pytest.param([(b"cookie", b"K"), (b"api-key", b"K")], OPENAI, None, id="other fields"),
    ],
)
def test_the_credential(headers: Fields, dialect: Dialect, key: bytes | None) -> None:
    """A request carries this key."""
    assert credential(headers, dialect) == key


@pytest.mark.parametrize(
    ("headers", "dialect"),
    [
        pytest.param([(b"authorization", b"")], OPENAI, id="an empty field"),
        pytest.param([(b"authorization", b"Bearer")], OPENAI, id="a scheme alone"),
        pytest.param([(b"authorization", b"Bearer ")], OPENAI, id="a scheme and a space"),
        pytest.param([(b"authorization", b"BearerK")], OPENAI, id="no space between"),
        pytest.param([(b"authorization", b"K")], OPENAI, id="a key without a scheme"),
        pytest.param([(b"authorization", b"Basic K")], OPENAI, id="another scheme"),
        pytest.param([(b"authorization", b"Bearer K K")], OPENAI, id="two keys in one field"),
        pytest.param([(b"authorization", b"Bearer A, Bearer B")], OPENAI, id="two joined by a hop"),
        pytest.param([(b"authorization", b"Bearer A,B")], OPENAI, id="a comma in the key"),
        pytest.param([(b"authorization", b"Bearer caf\xe9")], OPENAI, id="a byte of Latin-1"),
        pytest.param([(b"authorization", "Bearer clé".encode())], OPENAI, id="UTF-8"),
        pytest.param([(b"authorization", "Bearer “K”".encode())], OPENAI, id="smart quotes"),
        pytest.param([(b"authorization", b"Bearer\xa0K")], OPENAI, id="a no-break space"),
        pytest.param([(b"authorization", b"Bearer K\x00")], OPENAI, id="a NUL"),
        pytest.param(
            [(b"authorization", b"Bearer A"), (b"authorization", b"Bearer B")],
            OPENAI,
            id="two fields",
        ),
        pytest.param(
            [(b"authorization", b"Bearer A"), (b"authorization", b"Bearer A")],
            OPENAI,
            id="two equal fields",
        ),
        pytest.param(
            [(b"x-api-key", b"A"), (b"x-api-key", b"A")], ANTHROPIC, id="two x-api-key fields"
        ),
        pytest.param(
            [(b"x-api-key", b"A"), (b"authorization", b"Bearer B")],
            ANTHROPIC,
            id="two forms that disagree",
        ),
        pytest.param(
            [(b"x-api-key", b"A"), (b"authorization", b"Basic B")],
            ANTHROPIC,
            id="a good key does not rescue a malformed bearer",
        ),
        pytest.param(
            [(b"x-api-key", b""), (b"authorization", b"Bearer B")],
            ANTHROPIC,
            id="a good bearer does not rescue an empty x-api-key",
        ),
        pytest.param([(b"x-api-key", b"caf\xe9")], ANTHROPIC, id="x-api-key that is not ASCII"),
        pytest.param([(b"x-api-key", b"A B")], ANTHROPIC, id="x-api-key with a space"),
    ],
)
def test_what_is_no_credential(headers: Fields, dialect: Dialect) -> None:
    """Malformed, doubled and disagreeing credentials are refused, and the message repeats none."""
    with pytest.raises(MissingApiKey) as caught:
        credential(headers, dialect)
    assert "Authorization: Bearer <key>" in caught.value.message
    assert caught.value.response_headers() == [(b"www-authenticate", b"Bearer")]
    assert not any(value in caught.value.message.encode() for _, value in headers if len(value) > 7)
