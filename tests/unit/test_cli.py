"""The command line, run as people run it: in a process of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy import __version__
from proxy.config.describe import descriptions
from tests.harness.keys import key_file

KEY = "k" * 40
TIMEOUT_SECONDS = 20


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with these settings and no other of ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}
    return {**inherited, **{f"PROXY_{name.upper()}": value for name, value in settings.items()}}


def bulwark(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """One run of ``bulwark``."""
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "proxy", *arguments],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_the_version() -> None:
    """On standard output."""
    run = bulwark("--version")
    assert (run.returncode, run.stdout) == (0, f"bulwark {__version__}\n")


@pytest.mark.parametrize("command", ["serve", "demo", "check"])
def test_each_command_has_help(command: str) -> None:
    """And the program lists it."""
    assert command in bulwark("--help").stdout
    assert bulwark(command, "--help").returncode == 0


@pytest.mark.parametrize("command", ["", "check", "demo", "keys", "keys create", "keys list"])
def test_a_flag_takes_no_value(command: str) -> None:
    """And its help does not say that it does."""
    shown = bulwark(*command.split(), "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown


def test_all_commands_are_listed_though_few_are_read() -> None:
    """The keys do without what serves, which takes half a second to import."""
    for command in ("serve", "demo", "check", "capacity", "keys"):
        assert f" {command} " in bulwark("--help").stdout
    shown = bulwark("keys", "--help").stdout
    for command in ("create", "list", "rotate", "disable", "enable", "delete"):
        assert f" {command} " in shown
    code = "import sys, proxy.cli, proxy.cli.keys; print(*sys.modules)"
    run = subprocess.run(  # noqa: S603 - this very Python and the text above
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"fastapi", "uvicorn", "httpx", "pydantic", "rich.console"} & set(run.stdout.split())


def test_the_version_is_told_without_reading_the_server() -> None:
    """Which takes half a second."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "proxy", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith("bulwark ")
    assert "proxy.cli" in run.stderr
    assert "fastapi" not in run.stderr


@pytest.mark.parametrize("command", ["serve", "check", "keys list"])
def test_no_standard_output(command: str) -> None:
    """Closed as the shell's >&- does it: exit status 2, and no traceback."""
    run = subprocess.run(  # noqa: S603 - our own command
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "proxy", *command.split()],
        env=environment(api_keys=KEY),
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr == "bulwark: not started:\n  standard output is closed\n"


@pytest.mark.parametrize("command", ["serve", "check", "demo"])
def test_every_error_is_listed_at_once_and_no_value_with_it(command: str) -> None:
    """Exit status 2, no traceback, no secret."""
    run = bulwark(
        command,
        max_body_byte="1",
        max_prompt_chars="-1",
        max_output_tokens="many",
        upstream_api_key="sk-canary\nX-Evil: 1",
        api_keys="short-canary",
        keys_file="/nonexistent/canary",
        drain_seconds="soon",
    )
    assert run.returncode == 2
    wrong = ["PROXY_MAX_BODY_BYTE:", "PROXY_MAX_PROMPT_CHARS", "PROXY_MAX_OUTPUT_TOKENS"]
    wrong += ["PROXY_DRAIN_SECONDS"]
    if command != "demo":  # which brings its own keys
        wrong += ["PROXY_UPSTREAM_API_KEY", "PROXY_API_KEYS", "PROXY_KEYS_FILE"]
    for name in wrong:
        assert name in run.stderr
    assert "PROXY_MAX_BODY_BYTES?" in run.stderr
    assert "Traceback" not in run.stderr
    assert "canary" not in run.stdout + run.stderr


def test_no_key_at_all_is_an_error() -> None:
    """Unless anonymous access is spelled out."""
    assert "PROXY_ALLOW_ANONYMOUS" in bulwark("check").stderr
    assert bulwark("check", allow_anonymous="true").returncode == 0


@pytest.mark.parametrize("setting", ["port", "admin_port"])
def test_a_port_in_use(setting: str) -> None:
    """Exit status 2, naming it and its setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"port": "0", "admin_port": "0", setting: port}
        run = bulwark("serve", api_keys=KEY, **ports)
    assert run.returncode == 2
    assert f"port {port} (PROXY_{setting.upper()})" in run.stderr
    assert "Traceback" not in run.stderr


def test_check_shows_what_is_in_force_and_no_secret() -> None:
    """As a table for people."""
    run = bulwark("check", api_keys=f"{KEY},canary{KEY}", upstream_api_key="sk-canary")
    assert run.returncode == 0
    for row in descriptions():
        assert f" {row.name} " in run.stdout
    assert "canary" not in run.stdout
    assert "Keys: 2." in run.stdout


def test_check_breaks_no_value_in_a_pipe() -> None:
    """However long it is: somebody looks for it with grep."""
    url = f"unix:///{'long/' * 16}vllm.sock"
    assert url in bulwark("check", api_keys=KEY, upstream_url=url).stdout


def test_check_speaks_json() -> None:
    """For scripts, right or wrong."""
    right = json.loads(bulwark("check", "--json", api_keys=KEY, max_prompt_chars="20000").stdout)
    assert right["ok"] is True
    assert right["keys"] == 1
    assert right["settings"]["PROXY_MAX_PROMPT_CHARS"] == "20000"
    assert KEY not in json.dumps(right)
    run = bulwark("check", "--json", max_prompt_chars="0")
    wrong = json.loads(run.stdout)
    assert (run.returncode, wrong["ok"]) == (2, False)
    assert any("PROXY_MAX_PROMPT_CHARS" in problem for problem in wrong["problems"])


def test_check_says_what_keys_are_given_and_do_not_get(tmp_path: Path) -> None:
    """Here, where nobody has to wait for a request; no name of a model, which may be anything."""
    terms = 'max_prompt_chars = 10001\nmax_output_tokens = 4096\nmodels = ["a", "canary"]'
    path, (key,) = key_file(tmp_path, terms)
    told = (
        f"max_prompt_chars 10001 of key {key[6:14]} is over the ceiling of 10000, which "
        "counts (PROXY_MAX_PROMPT_CHARS_CEILING; while that is 0, PROXY_MAX_PROMPT_CHARS)"
    )
    run = bulwark("check", keys_file=str(path), models="a")
    assert run.returncode == 0
    assert [line for line in run.stdout.splitlines() if line.startswith("* ")] == [
        f"* {told}",
        f"* models of key {key[6:14]} has 1 that PROXY_MODELS has not",
    ]
    assert "canary" not in run.stdout
    right = {"keys_file": str(path), "max_prompt_chars_ceiling": "10001"}
    assert json.loads(bulwark("check", "--json", **right).stdout)["warnings"] == []
    assert "* " not in bulwark("check", **right).stdout


def test_check_says_that_a_restart_gives_a_new_day(tmp_path: Path) -> None:
    """Where a key has a limit for a day and nothing remembers it."""
    keys, _ = key_file(tmp_path, "", "tokens_per_day = 9")
    limited = {"keys_file": str(keys)}
    (told,) = json.loads(bulwark("check", "--json", **limited).stdout)["warnings"]
    assert "PROXY_USAGE_DB" in told
    assert bulwark("check", **limited).stdout.count(f"* {told}\n") == 1
    path = tmp_path / "usage.db"
    for more in ({"usage_db": str(path)}, {"redis_url": "redis://127.0.0.1:9"}):
        run = bulwark("check", "--json", **limited, **more)
        assert (run.returncode, json.loads(run.stdout)["warnings"]) == (0, [])
    assert json.loads(bulwark("check", "--json", api_keys=KEY).stdout)["warnings"] == []


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_key_file_that_is_not_there_says_what_makes_one(command: str, tmp_path: Path) -> None:
    """For whoever begins; what cannot be read has another reason."""
    run = bulwark(command, keys_file=str(tmp_path / "keys.toml"))
    assert run.returncode == 2
    assert "No such file or directory; bulwark keys create --name NAME --file FILE" in run.stderr
    run = bulwark(command, keys_file=str(tmp_path))
    assert (run.returncode, "keys create" in run.stderr) == (2, False)


@pytest.fixture
def served() -> Iterator[subprocess.Popen[str]]:
    """``bulwark serve`` on free ports."""
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", "serve"],
        env=environment(api_keys=KEY, port="0", admin_port="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_where_and_ends_with_0(
    served: subprocess.Popen[str], number: signal.Signals
) -> None:
    """One line when it listens; a drain at the signal."""
    assert served.stdout is not None
    line = json.loads(served.stdout.readline())
    assert line["event"] == "listening"
    url = f"http://{line['public']}/healthz"
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert answer.status == 200
    served.send_signal(number)
    out, err = served.communicate(timeout=TIMEOUT_SECONDS)
    assert served.returncode == 0
    assert err == ""
    events = [json.loads(text)["event"] for text in out.splitlines()]
    assert events[-2:] == ["draining", "stopped"]


def test_a_signal_while_it_still_imports_ends_it() -> None:
    """By a handler of its own, which a container's first process needs to be ended at all."""
    with subprocess.Popen(
        # Tells each import on standard error, as it is done.
        [sys.executable, "-X", "importtime", "-m", "proxy", "serve"],
        env=environment(api_keys=KEY, port="0", admin_port="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("starlette" in line for line in process.stderr), "it has not begun to import"
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")


def test_a_hangup_signal_while_it_still_imports_is_none() -> None:
    """It listens all the same: whoever changes keys need not know how far the server is."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "proxy", "serve"],
        env=environment(api_keys=KEY, port="0", admin_port="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any("starlette" in line for line in process.stdout), "it has not begun to import"
        process.send_signal(signal.SIGHUP)
        assert any('"listening"' in line for line in process.stdout), "it has ended"
        process.terminate()
        process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0


# By nohup, which whoever runs the tests may have used, it is ignored.
DEMO = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.argv = ["bulwark", "demo"]
from proxy.__main__ import main
main()
"""


def test_a_hangup_signal_ends_every_other_command() -> None:
    """To them it says that their terminal is gone: a demo would serve on for nobody."""
    with subprocess.Popen(  # noqa: S603 - this very Python and the text above
        [sys.executable, "-X", "importtime", "-c", DEMO],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any("starlette" in line for line in process.stdout), "it has not begun to import"
        process.send_signal(signal.SIGHUP)
        try:
            process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()  # or the end of this block would wait for one that serves on
    assert process.returncode == -signal.SIGHUP


FROZEN = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count(), file=sys.stderr))
sys.argv = ["bulwark", "serve"]
from proxy.cli import main
main()
"""


def test_collections_of_garbage_pass_over_what_stays() -> None:
    """All that is there when it begins to serve: 70,000 objects, 40 ms each time."""
    with subprocess.Popen(  # noqa: S603 - this very Python and the text above
        [sys.executable, "-c", FROZEN],
        env=environment(api_keys=KEY, port="0", admin_port="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert int(err) > 30_000


def test_the_demo_answers_a_chat_through_the_proxy() -> None:
    """With the URL, a fresh key and a curl line; its log has the request."""
    run = bulwark("demo", "--once", port="0", admin_port="0")
    assert run.returncode == 0
    assert "Is anybody there?" in run.stdout
    assert "came through the proxy" in run.stdout
    key = next(word for word in run.stdout.split() if word.startswith("sk-bw-"))
    assert f" key_id={key[6:14]} " in run.stderr
    assert f"Authorization: Bearer {key}" in run.stdout
    assert "endpoint=chat.completions status=200 outcome=ok" in run.stderr
    assert key not in run.stderr


def test_the_demo_takes_the_next_port_where_one_is_taken() -> None:
    """So that it runs on the machine of somebody who is trying things out."""
    holders = []
    for port in (8080, 9090):
        try:
            holders.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue  # taken already: just as well
    try:
        run = bulwark("demo", "--once")
    finally:
        for holder in holders:
            holder.close()
    assert run.returncode == 0
    assert "http://127.0.0.1:8080/" not in run.stdout


def has_ipv6() -> bool:
    """Whether this machine can listen on ``::1``."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def model_alone(*arguments: str) -> subprocess.Popen[str]:
    """``bulwark demo --model-only``, in a process of its own."""
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "proxy", "demo", "--model-only", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def url_of(process: subprocess.Popen[str]) -> str:
    """Where it says that it serves."""
    assert process.stdout is not None
    (url,) = re.findall(r"serves at (\S+), without a key", process.stdout.readline())
    return str(url)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_the_stand_in_alone_on_an_address(host: str) -> None:
    """Without a key; SIGTERM ends it with 0."""
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with model_alone("--host", host, "--port", "0") as process:
        url = url_of(process)
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:  # noqa: S310 - http
            assert json.load(answer)["data"][0]["id"] == "stand-in"
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_the_stand_in_alone_on_a_socket(tmp_path: Path) -> None:
    """Also over one that was left there by another that was killed."""
    path = tmp_path / "model.sock"
    with model_alone("--uds", str(path)) as process:
        assert url_of(process) == f"unix://{path}"
        process.kill()
    assert path.is_socket()
    with model_alone("--uds", str(path)) as process:
        url_of(process)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(path))
            client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_the_stand_in_takes_no_socket_from_another(tmp_path: Path) -> None:
    """Exit status 2, for one that is listened on and for a file that is no socket."""
    path = tmp_path / "model.sock"
    with model_alone("--uds", str(path)) as process:
        url_of(process)
        run = bulwark("demo", "--model-only", "--uds", str(path))
        process.terminate()
    assert (run.returncode, "Address already in use" in run.stderr) == (2, True)
    file = tmp_path / "file"
    file.write_text("precious")
    assert bulwark("demo", "--model-only", "--uds", str(file)).returncode == 2
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--port", "1"], id="an address without --model-only"),
        pytest.param(["--uds", "/x"], id="a socket without --model-only"),
        pytest.param(["--model-only", "--once"], id="one chat with nobody to send it"),
        pytest.param(
            ["--model-only", "--host", "::1", "--uds", "/x"], id="an address and a socket"
        ),
        pytest.param(["--model-only", "--host", "192.0.2.1"], id="an address of another"),
        pytest.param(["--model-only", "--uds", "/no/such/folder/x"], id="a folder that is not"),
    ],
)
def test_a_demo_that_is_asked_for_wrongly(arguments: list[str]) -> None:
    """Exit status 2, one line of reason."""
    run = bulwark("demo", *arguments)
    assert run.returncode == 2
    assert run.stderr.startswith("bulwark: not started:\n  ")
    assert "Traceback" not in run.stderr
