"""The settings of keys, limits and capacity: what is taken, and what is told of the rest."""

import pytest

from proxy.config import ConfigError, Settings, load

ANONYMOUS = {"PROXY_ALLOW_ANONYMOUS": "true"}


def loaded(**settings: str) -> Settings:
    """Settings of an environment; each is ``PROXY_`` and its name in capitals."""
    return load(ANONYMOUS | {f"PROXY_{name.upper()}": value for name, value in settings.items()})


def problems(**settings: str) -> list[str]:
    """What is wrong with them; nothing if they load."""
    try:
        loaded(**settings)
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        pytest.param("", (), id="none given is all that there are"),
        pytest.param("a", ("a",), id="one"),
        pytest.param(" a , org/b:c ,", ("a", "org/b:c"), id="several, with a slash and a colon"),
        pytest.param("m" * 256, ("m" * 256,), id="as long as may be"),
    ],
)
def test_models(value: str, taken: tuple[str, ...]) -> None:
    """Names as clients write them."""
    assert loaded(models=value).models == taken


@pytest.mark.parametrize(
    "value", [pytest.param("m" * 257, id="too long"), pytest.param("a\tb,c\x00", id="unprintable")]
)
def test_models_that_nobody_could_ask_for(value: str) -> None:
    """Told by position, never repeated."""
    (problem,) = problems(models=value)
    assert "is not the name of a model" in problem
    assert value not in problem


@pytest.mark.parametrize(
    ("proxies", "header", "expected"),
    [
        pytest.param("127.0.0.1", "CF-Connecting-IP", "", id="one address"),
        pytest.param("10.0.0.0/8,fd00::/8, ::1", "X-Forwarded-For", "", id="networks"),
        pytest.param("10.0.0.1/8", "X-Real-IP", "item 1 of 1 is not", id="host bits"),
        pytest.param("localhost", "X-Real-IP", "item 1 of 1 is not", id="a name"),
        pytest.param("*", "X-Real-IP", "item 1 of 1 is not", id="everybody"),
        pytest.param("10.0.0.1", None, "go together", id="nobody says in which header"),
        pytest.param(None, "X-Real-IP", "go together", id="nobody says of whom"),
        pytest.param("10.0.0.1", "Forwarded", "must be the name of a header", id="RFC 7239"),
        pytest.param("10.0.0.1", "Authorization", "must be the name of a header", id="a secret"),
        pytest.param("10.0.0.1", "X Real IP", "must be the name of a header", id="no name"),
        pytest.param("10.0.0.1", "", "must be the name of a header", id="empty"),
    ],
)
def test_who_may_say_where_a_client_is(
    proxies: str | None, header: str | None, expected: str
) -> None:
    """Both or neither, each of a form that means one thing."""
    given = {"trusted_proxies": proxies, "client_ip_header": header}
    found = problems(**{name: value for name, value in given.items() if value is not None})
    assert len(found) == bool(expected)
    assert all(expected in problem for problem in found)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        pytest.param("redis://127.0.0.1:6379", True, id="TCP"),
        pytest.param("redis://user:word@redis:6379/2", True, id="with a password and a number"),
        pytest.param("rediss://redis.example.org", True, id="TLS"),
        pytest.param("unix:///run/redis/redis.sock", True, id="a Unix socket"),
        pytest.param("unix://:word@/run/redis.sock", True, id="a Unix socket with a password"),
        pytest.param("rediss://redis?ssl_cert_reqs=none", False, id="TLS that believes anybody"),
        pytest.param("unix:///run/redis.sock?db=1", False, id="a parameter"),
        pytest.param("http://redis:6379", False, id="another scheme"),
        pytest.param("redis://", False, id="nobody"),
        pytest.param("redis://redis/db", False, id="a database without a number"),
        pytest.param("redis://redis:65535", True, id="the last port"),
        pytest.param("redis://redis:65536", False, id="a port behind it"),
        pytest.param("redis://redis:0", False, id="no port"),
        pytest.param("redis://redis:x", False, id="a port that is no number"),
        pytest.param("redis://:word@:6379", False, id="a port of nobody's"),
        pytest.param("redis://[::1]:6379", True, id="IPv6"),
        pytest.param("redis://[::1", False, id="a bracket that is left open"),
        pytest.param("redis://[::1]x", False, id="something behind a bracket"),
        pytest.param("redis://[::x]", False, id="brackets around no address"),
        pytest.param("redis://[redis]", False, id="brackets around a name"),
        pytest.param("redis://::1", False, id="IPv6 without brackets"),
        pytest.param("", False, id="empty"),
    ],
)
def test_the_url_of_redis(url: str, right: bool) -> None:
    """What it says is what is done; it is a secret, and not repeated."""
    found = problems(redis_url=url)
    assert (found == []) == right
    assert all(problem.startswith("PROXY_REDIS_URL: must be redis://") for problem in found)
    assert not any("word" in problem and "user:password" not in problem for problem in found)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        pytest.param("auto", "auto", id="by the engine's pool"),
        pytest.param("off", "off", id="none"),
        pytest.param("1024", 1024, id="the least"),
        pytest.param(str(2**40), 2**40, id="the most"),
    ],
)
def test_the_kv_budget(value: str, taken: str | int) -> None:
    """A word, or a number of tokens."""
    assert loaded(kv_budget_tokens=value).kv_budget_tokens == taken


@pytest.mark.parametrize("value", ["", "1023", str(2**40 + 1), "-5", "1e6", "on", "٢٠٤٨", "Auto"])
def test_what_is_no_kv_budget(value: str) -> None:
    """Said with what would be one."""
    (problem,) = problems(kv_budget_tokens=value)
    assert problem.startswith("PROXY_KV_BUDGET_TOKENS: must be ")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"max_prompt_chars_ceiling": "10000"}, "", id="a ceiling at the cap"),
        pytest.param({"max_prompt_chars_ceiling": "9999"}, "CEILING is less", id="one below it"),
        pytest.param({"max_output_tokens_ceiling": "4096"}, "", id="the same of output"),
        pytest.param({"max_output_tokens_ceiling": "4095"}, "CEILING is less", id="and below"),
        pytest.param({"key_max_inflight": "32"}, "", id="a share of all places"),
        pytest.param({"key_max_inflight": "33"}, "not so many places", id="and of more"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, str], expected: str) -> None:
    """On both sides of the line."""
    found = problems(**settings)
    assert len(found) == bool(expected)
    assert all(expected in problem for problem in found)
