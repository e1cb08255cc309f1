"""Settings: every knob's bounds, and every mistake told at once."""

import pytest
from pydantic import ValidationError

from proxy.config import Settings, load
from proxy.config.describe import Description, descriptions, shown
from tests.harness.environments import ANONYMOUS, CANARY, problems


def numbers() -> list[Description]:
    """The settings that count something."""
    return [row for row in descriptions() if " to " in row.bound and row.default]


def limits(row: Description) -> tuple[float, float]:
    """The least and the most that a setting accepts."""
    least, most = row.bound.split(" to ")
    return float(least), float(most)


def test_an_anonymous_server_needs_nothing_else() -> None:
    """The defaults are those of the design."""
    settings = load(ANONYMOUS)
    assert settings == Settings(allow_anonymous=True)
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert (settings.admin_host, settings.admin_port) == ("127.0.0.1", 9090)
    assert settings.max_prompt_chars == 10_000
    assert settings.max_output_tokens == 4_096
    assert settings.max_body_bytes == 2_097_152
    assert settings.max_buffered_bytes == 67_108_864
    assert settings.total_timeout_seconds == 1_800


def test_the_default_of_every_setting_is_accepted_as_text() -> None:
    """What the example file shows can be set as it stands."""
    written = {row.name: row.default for row in descriptions() if row.default}
    assert load(written | ANONYMOUS) == load(ANONYMOUS)


def test_every_setting_says_what_it_is() -> None:
    """No row of the documentation has an empty cell that a reader would need."""
    for row in descriptions():
        assert row.meaning.endswith("."), row.name
        assert row.bound, row.name


@pytest.mark.parametrize("row", numbers(), ids=lambda row: row.name)
def test_a_number_is_bounded_on_both_sides(row: Description) -> None:
    """The bounds themselves pass; one step beyond either does not."""
    least, most = limits(row)
    step = 0.001 if row.unit == "seconds" else 1
    # Whatever it is compared with is put out of the way.
    others = ANONYMOUS | {
        "PROXY_ADMIN_PORT": "1",
        "PROXY_MAX_CHOICES": "1",
        "PROXY_MAX_INFLIGHT": "65536",
        "PROXY_MAX_BODY_BYTES": "1024",
        "PROXY_MAX_BUFFERED_BYTES": "68719476736",
        "PROXY_MAX_OUTPUT_TOKENS": "1048576",
    }
    for value in (least, most):
        assert problems(others | {row.name: shown(value)}) == []
    for value in (least - step, most + step):
        (problem,) = problems(others | {row.name: shown(value)})
        assert problem.startswith(f"{row.name}: must be ")
        assert row.bound in problem


def test_every_number_was_found() -> None:
    """The test above is about numbers, and there are this many."""
    assert len(numbers()) == 33


@pytest.mark.parametrize("value", ["", "ten", "1.5", "1e999", "0x10", "\udcff", "nan", "true"])
def test_a_cap_is_a_whole_number(value: str) -> None:
    """Nothing that only looks like one is taken for it."""
    assert problems(ANONYMOUS | {"PROXY_MAX_PROMPT_CHARS": value}) == [
        "PROXY_MAX_PROMPT_CHARS: must be a whole number of characters, 1 to 16777216"
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "", "1s"])
def test_a_time_is_a_finite_number(value: str) -> None:
    """A time-out that never comes is not accepted by another name."""
    assert problems(ANONYMOUS | {"PROXY_IDLE_TIMEOUT_SECONDS": value}) == [
        "PROXY_IDLE_TIMEOUT_SECONDS: must be a number of seconds, 0.01 to 86400"
    ]


def test_a_misspelt_name_is_an_error_that_knows_the_right_one() -> None:
    """A cap must not silently stay at its default."""
    assert problems(ANONYMOUS | {"PROXY_MAX_BODY_BYTE": "1"}) == [
        "PROXY_MAX_BODY_BYTE: is not a setting; did you mean PROXY_MAX_BODY_BYTES?"
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "PROXY_max_body_bytes",
            "PROXY_max_body_bytes: is not a setting; did you mean PROXY_MAX_BODY_BYTES?",
            id="the case matters",
        ),
        pytest.param("PROXY_", "PROXY_: is not a setting", id="the prefix alone"),
        pytest.param(
            "PROXY_ENGINE_FILE",
            "PROXY_ENGINE_FILE: is not a setting; did you mean PROXY_ENGINE?",
            id="only secrets have a file",
        ),
        pytest.param(
            "PROXY_A\x1b[31m",
            "a PROXY_ variable with a strange name: is not a setting",
            id="a name that a terminal would obey is not repeated",
        ),
        pytest.param(
            "PROXY_WORKERS", "PROXY_WORKERS: is not a setting", id="what does nothing is no knob"
        ),
    ],
)
def test_a_name_that_is_nobodys_is_an_error(name: str, expected: str) -> None:
    """Every PROXY_ variable is a setting, the file of one, or refused."""
    assert problems(ANONYMOUS | {name: CANARY}) == [expected]


def test_variables_of_other_programs_are_none_of_ours() -> None:
    """Only the prefix PROXY_ is looked at."""
    others = {"HTTP_PROXY": "x", "PROXY": "y", "proxy_max_body_bytes": "-1", "XPROXY_PORT": "z"}
    assert load(ANONYMOUS | others) == load(ANONYMOUS)


def test_all_mistakes_come_as_one_list() -> None:
    """Unknown, unreadable, invalid and contradictory settings are told together."""
    found = problems(
        {
            "PROXY_MAX_PROMPT_CHAR": "5",
            "PROXY_MAX_PROMPT_CHARS": "-1",
            "PROXY_UPSTREAM_API_KEY": f"{CANARY}\nX-Evil: 1",
            "PROXY_API_KEYS_FILE": "/nonexistent",
            "PROXY_MAX_BODY_BYTES": "2048",
            "PROXY_MAX_BUFFERED_BYTES": "1024",
        }
    )
    beginnings = [
        "PROXY_UPSTREAM_API_KEY: has a space, a line break or another character",
        "PROXY_API_KEYS: the file in PROXY_API_KEYS_FILE cannot be read: No such file",
        "PROXY_MAX_PROMPT_CHARS: must be a whole number of characters, 1 to 16777216",
        "PROXY_MAX_PROMPT_CHAR: is not a setting; did you mean PROXY_MAX_PROMPT_CHARS?",
        "PROXY_MAX_BUFFERED_BYTES is less than PROXY_MAX_BODY_BYTES: a body",
    ]
    assert len(found) == len(beginnings)
    for problem, beginning in zip(found, beginnings, strict=True):
        assert problem.startswith(beginning)


def test_settings_read_no_environment_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What load is given is all there is; a stray variable changes nothing."""
    for name in ("PORT", "PROXY_PORT", "HOST", "MAX_BODY_BYTES"):
        monkeypatch.setenv(name, "1024")
    assert load(ANONYMOUS).port == 8080


def test_settings_do_not_change() -> None:
    """Whoever got a value has the value that is in force."""
    with pytest.raises(ValidationError):
        load(ANONYMOUS).port = 1


# Lists and words


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        pytest.param("PROXY_ENDPOINTS", "models, chat.completions", None, id="two endpoints"),
        pytest.param("PROXY_ENDPOINTS", "", None, id="an empty list is no list"),
        pytest.param(
            "PROXY_ENDPOINTS", "models,metrics", "item 2 of 2 is not an endpoint", id="unknown one"
        ),
        pytest.param("PROXY_HOST", "::1", None, id="an IPv6 address"),
        pytest.param("PROXY_HOST", "localhost", None, id="a name"),
        pytest.param("PROXY_HOST", "[::1]", "without port or brackets", id="brackets"),
        pytest.param("PROXY_HOST", "127.0.0.1:8080", "without port", id="a port in the host"),
        pytest.param("PROXY_HOST", "", "IP address or a host name", id="no host"),
        pytest.param("PROXY_ADMIN_HOSTS", "bulwark,10.0.0.5", None, id="admin hosts"),
        pytest.param("PROXY_ADMIN_HOSTS", "bulwark:9090", "item 1 of 1", id="with a port"),
        pytest.param("PROXY_RESPONSE_HEADERS", "X-Kv-Hit, x-b", None, id="two headers"),
        pytest.param("PROXY_RESPONSE_HEADERS", "Set-Cookie", "may be relayed", id="cookies"),
        pytest.param("PROXY_RESPONSE_HEADERS", "x-bulwark-a", "may be relayed", id="ours"),
        pytest.param("PROXY_RESPONSE_HEADERS", "a b", "may be relayed", id="no token"),
        pytest.param("PROXY_CORS_ORIGINS", "https://a.example,http://localhost:3000", None, id="o"),
        pytest.param("PROXY_CORS_ORIGINS", "https://[::1]:3000", None, id="IPv6 origin"),
        pytest.param("PROXY_CORS_ORIGINS", "https://a.example/", "an origin", id="a slash"),
        pytest.param("PROXY_CORS_ORIGINS", "*", "an origin", id="everybody"),
        pytest.param("PROXY_CORS_ORIGINS", "null", "an origin", id="null"),
        pytest.param("PROXY_ALLOW_FIELDS", "chat_template,priority", None, id="two fields"),
        pytest.param("PROXY_DENY_FIELDS", "a b", "the name of a request field", id="no field"),
        pytest.param(
            "PROXY_ENGINE", "vLLM", "must be vllm, sglang", id="the case of words matters"
        ),
        pytest.param("PROXY_LOG_LEVEL", "trace", "must be debug, info", id="no such level"),
        pytest.param("PROXY_ALLOW_ANONYMOUS", "perhaps", "must be true or false", id="perhaps"),
        pytest.param("PROXY_KEYS_FILE", "", "is empty", id="no path"),
        pytest.param("PROXY_UPSTREAM_URL", "unix:///run/vllm/vllm.sock", None, id="a socket"),
        pytest.param("PROXY_UPSTREAM_URL", "http://h:1/v1", "must not have a path", id="a path"),
        pytest.param("PROXY_UPSTREAM_URL", "http://u:p@h:1", "user or password", id="a password"),
    ],
)
def test_a_value_of_its_kind(name: str, value: str, expected: str | None) -> None:
    """Each kind of value has its form, and a sentence for what has it not."""
    found = problems(ANONYMOUS | {name: value})
    if expected is None:
        assert found == []
    else:
        (problem,) = found
        assert problem.startswith(f"{name}: ")
        assert expected in problem


def test_names_that_ignore_case_are_kept_in_one() -> None:
    """Header and host names are compared by what they mean."""
    settings = load(
        ANONYMOUS | {"PROXY_RESPONSE_HEADERS": "X-Kv-Hit", "PROXY_ADMIN_HOSTS": "Bulwark"}
    )
    assert settings.response_headers == ("x-kv-hit",)
    assert settings.admin_hosts == ("bulwark",)


# Settings that disagree


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        pytest.param(
            {"PROXY_PORT": "9090"},
            {"PROXY_PORT": "9090", "PROXY_ADMIN_HOST": "127.0.0.2"},
            "PROXY_PORT and PROXY_ADMIN_PORT",
            id="one port for both listeners",
        ),
        pytest.param(
            {"PROXY_MAX_BUFFERED_BYTES": "2097151"},
            {"PROXY_MAX_BUFFERED_BYTES": "2097152"},
            "PROXY_MAX_BUFFERED_BYTES is less than",
            id="no room for one body",
        ),
        pytest.param(
            {"PROXY_MAX_OUTPUT_TOKENS": "7"},
            {"PROXY_MAX_OUTPUT_TOKENS": "8"},
            "PROXY_MAX_OUTPUT_TOKENS is less than",
            id="less than one token each",
        ),
        pytest.param(
            {"PROXY_ALLOW_FIELDS": "echo,priority", "PROXY_DENY_FIELDS": "echo,c"},
            {"PROXY_ALLOW_FIELDS": "echo,priority", "PROXY_DENY_FIELDS": "c"},
            "PROXY_ALLOW_FIELDS and PROXY_DENY_FIELDS",
            id="a field both allowed and denied",
        ),
    ],
)
def test_settings_that_disagree(
    wrong: dict[str, str], right: dict[str, str], expected: str
) -> None:
    """Right one by one, wrong together; and the neighbouring pair is right."""
    (problem,) = problems(ANONYMOUS | wrong)
    assert problem.startswith(expected)
    assert problems(ANONYMOUS | right) == []


def test_two_free_ports_do_not_disagree() -> None:
    """Port 0 is a different port each time."""
    assert problems(ANONYMOUS | {"PROXY_PORT": "0", "PROXY_ADMIN_PORT": "0"}) == []


def test_a_disagreement_about_a_wrong_value_is_not_told() -> None:
    """It would be about the default, which nobody chose."""
    assert len(problems(ANONYMOUS | {"PROXY_MAX_BODY_BYTES": "-1"})) == 1
    environ = {"PROXY_MAX_BUFFERED_BYTES": "1024", "PROXY_MAX_BODY_BYTES": "-1"}
    assert len(problems(ANONYMOUS | environ)) == 1


# Kubernetes


@pytest.mark.parametrize(
    "service", ["PROXY", "PROXY_EDGE"], ids=["a service named proxy", "one named proxy-edge"]
)
def test_kubernetes_service_links_are_named_as_such(service: str) -> None:
    """They would be a wrong port and a dozen unknown names; it is one mistake, told once."""
    links = {
        f"{service}_SERVICE_HOST": "10.0.0.9",
        f"{service}_SERVICE_PORT": "8080",
        f"{service}_SERVICE_PORT_HTTP": "8080",
        f"{service}_PORT": "tcp://10.0.0.9:8080",
        f"{service}_PORT_8080_TCP": "tcp://10.0.0.9:8080",
        f"{service}_PORT_8080_TCP_PROTO": "tcp",
        f"{service}_PORT_8080_TCP_PORT": "8080",
        f"{service}_PORT_8080_TCP_ADDR": "10.0.0.9",
    }
    (problem,) = problems(ANONYMOUS | links)
    assert problem.startswith("PROXY_PORT: Kubernetes added 8 variable(s) (tcp://…)")
    assert "enableServiceLinks: false" in problem
    assert "10.0.0.9" not in problem


def test_an_ordinary_port_is_no_service_link() -> None:
    """Our own two ports have names that look alike."""
    settings = load(ANONYMOUS | {"PROXY_PORT": "1", "PROXY_ADMIN_PORT": "2"})
    assert (settings.port, settings.admin_port) == (1, 2)


# What `bulwark check` shows


def test_shown_values_can_be_set_again() -> None:
    """The text of a value is what one would write in the environment."""
    settings = load(
        ANONYMOUS
        | {
            "PROXY_ENDPOINTS": "models,embeddings",
            "PROXY_IDLE_TIMEOUT_SECONDS": "0.5",
            "PROXY_KEYS_FILE": "/etc/keys.toml",
        }
    )
    again = {
        row.name: shown(getattr(settings, row.field))
        for row in descriptions()
        if getattr(settings, row.field) not in (None, ())
    }
    assert load(again) == settings


def test_an_allowed_field_must_be_one_that_is_refused() -> None:
    """Misspelt, it would stay refused, and nobody would know why."""
    (problem,) = problems(ANONYMOUS | {"PROXY_ALLOW_FIELDS": "prompt_logprobs,prompt_logprob"})
    assert problem.startswith("PROXY_ALLOW_FIELDS: item 2 of 2")
