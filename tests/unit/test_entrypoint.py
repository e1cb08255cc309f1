"""What the container runs as root, with a firewall that only says how it was called.

The real one is in `tests/firewall`, the real container in `tests/e2e`.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 20
SERVER = 10001

# What every user may run, and no more: root's own python may be where nobody else can look.
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

FIREWALL = """\
echo "egress: $*"
echo "$*" >>"$CALLS"
if [[ $1 == "${WAITS-}" ]]; then
    echo waiting
    read -r <"$RELEASE"
fi
[[ $1 != "${FAILS-}" ]] || exit "$STATUS"
"""

is_root = os.geteuid() == 0
as_root = [
    pytest.mark.root,
    pytest.mark.skipif(not is_root, reason="NOT TESTED: only root can give up being root"),
]
as_anybody = pytest.mark.skipif(
    not is_root and not shutil.which("python3", path=PATH), reason="no python3 of the system's"
)


@dataclass(frozen=True, slots=True)
class Image:
    """The part of the image that is scripts."""

    root: Path

    @property
    def calls(self) -> list[str]:
        """What the firewall was asked to do."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def release(self) -> Path:
        """Where a firewall that waits reads a line."""
        return self.root / "release"

    def start(
        self, script: str, *arguments: str, by: Sequence[str] = (), **env: str
    ) -> subprocess.Popen[str]:
        """Starts one of them, ``by`` a program that changes who it is first."""
        return subprocess.Popen(  # noqa: S603 - our own script
            [*by, str(self.root / "docker" / script), *arguments],
            env={"PATH": PATH, "CALLS": f"{self.root}/calls", "RELEASE": str(self.release), **env},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: str, *arguments: str, by: Sequence[str] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of them to its end."""
        with self.start(script, *arguments, by=by, **env) as process:
            out, err = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """As in `docker/Dockerfile`: the scripts beside the firewall, one folder further up."""
    (tmp_path / "docker").mkdir()
    (tmp_path / "firewall").mkdir()
    for script in ("entrypoint", "healthcheck"):
        shutil.copy(ROOT / "docker" / script, tmp_path / "docker")
    (tmp_path / "firewall/egress.sh").write_text(FIREWALL)
    os.mkfifo(tmp_path / "release")
    return Image(tmp_path)


def without(*capabilities: str) -> list[str]:
    """Root, but for these."""
    return ["setpriv", "--bounding-set", ",".join(f"-{name}" for name in capabilities), "--"]


def read_status(text: str) -> dict[str, str]:
    """What a process's ``status`` says, by its key."""
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


@pytest.mark.parametrize(
    ("env", "arguments", "said"),
    [
        pytest.param({"EGRESS_FIREWALL": "maybe"}, ["true"], "neither on nor off", id="maybe"),
        pytest.param({"EGRESS_FIREWALL": ""}, ["true"], "neither on nor off", id="empty"),
        pytest.param({}, [], "no command", id="no command"),
        pytest.param({}, ["--help"], '"--help" is no program', id="an option of another program"),
        pytest.param({}, ["check"], '"check" is no program', id="a command of another program"),
        pytest.param({}, ["exit"], '"exit" is no program', id="a command of the shell's own"),
    ],
)
def test_what_is_asked_for_wrongly(
    image: Image, env: dict[str, str], arguments: list[str], said: str
) -> None:
    """One line, status 2, and no firewall was touched."""
    run = image.run("entrypoint", *arguments, **env)
    assert (run.returncode, run.stdout, image.calls) == (2, "", [])
    assert run.stderr.startswith("entrypoint: ")
    assert said in run.stderr
    assert run.stderr.count("\n") == 1


def test_not_root(image: Image) -> None:
    """The firewall needs it: one line, status 2."""
    by = ["setpriv", f"--reuid={SERVER}", f"--regid={SERVER}", "--clear-groups"] if is_root else []
    # The folders above belong to root alone.
    text = (image.root / "docker/entrypoint").read_text()
    run = subprocess.run(  # noqa: S603 - our own script
        [*by, "/bin/bash", "-c", text, "entrypoint", "true"],
        env={"PATH": PATH},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("entrypoint: not root")
    assert run.stderr.count("\n") == 1


class TestAsRoot:
    """What only root can try."""

    pytestmark = as_root

    def test_the_way_out_is_closed_then_proved_then_everything_is_given_up(
        self, image: Image
    ) -> None:
        """In this order; the command runs as the server's user with nothing."""
        run = image.run("entrypoint", "cat", "/proc/self/status")
        assert (run.returncode, image.calls) == (0, ["apply", "verify"])
        status = read_status(run.stdout)
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(SERVER)}
        assert status["Groups"].split() == []
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"] == "1"

    def test_the_scope_of_a_host_is_refused(self, image: Image) -> None:
        """One line, status 2: what comes in would be left alone."""
        run = image.run("entrypoint", "true", EGRESS_SCOPE="uid")
        assert (run.returncode, run.stdout, image.calls) == (2, "", [])
        assert run.stderr.startswith("entrypoint: EGRESS_SCOPE is for a host")
        assert run.stderr.count("\n") == 1
        assert image.run("entrypoint", "true", EGRESS_SCOPE="container").returncode == 0

    @pytest.mark.parametrize("user", [0, SERVER])
    def test_what_it_was_left_by_whoever_started_it(self, image: Image, user: int) -> None:
        """Capabilities to inherit are given up, too; some engines leave them to a user as well."""
        by = [
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
            *("--inh-caps=+net_admin,+net_raw", "--ambient-caps=+net_admin", "--"),
        ]
        # The folders above belong to root alone.
        text = (image.root / "docker/entrypoint").read_text()
        run = subprocess.run(  # noqa: S603 - our own script
            [*by, "/bin/bash", "-c", text, "entrypoint", "cat", "/proc/self/status"],
            env={"PATH": PATH, "EGRESS_FIREWALL": "off"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        status = read_status(run.stdout)
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"] == "1"

    def test_standard_output_is_the_servers(self, image: Image) -> None:
        """Its log is read by machines; what the firewall says is on standard error."""
        run = image.run("entrypoint", "echo", "mine")
        assert (run.stdout, run.stderr) == ("mine\n", "egress: apply\negress: verify\n")

    @pytest.mark.parametrize(
        "env",
        [
            {"SHELLOPTS": "noexec"},
            {"SHELLOPTS": "onecmd"},
            {"BASH_ENV": "/dev/stdin"},
            {"BASH_FUNC_bash%%": "() { true; }"},
            {"BASH_FUNC_setpriv%%": '() { echo "not dropped"; }'},
        ],
        ids=str,
    )
    def test_nothing_in_the_environment_is_run(self, image: Image, env: dict[str, str]) -> None:
        """What bash would take from there, options and functions, changes no step."""
        run = image.run("entrypoint", "id", "-u", **env)
        assert (run.returncode, run.stdout, image.calls) == (0, f"{SERVER}\n", ["apply", "verify"])

    @pytest.mark.parametrize("status", ["1", "2"])
    @pytest.mark.parametrize("fails", ["apply", "verify"])
    def test_a_firewall_that_fails(self, image: Image, fails: str, status: str) -> None:
        """Its own status, what it said, one line more, and nothing was started."""
        run = image.run("entrypoint", "echo", "started", FAILS=fails, STATUS=status)
        assert (run.returncode, run.stdout) == (int(status), "")
        assert image.calls == ["apply", "verify"][: ["apply", "verify"].index(fails) + 1]
        *said, last = run.stderr.splitlines()
        assert said == [f"egress: {call}" for call in image.calls]
        assert last.startswith("entrypoint: the firewall ")
        assert last.endswith(", so nothing is started")

    @pytest.mark.parametrize(
        "missing",
        [["net_admin"], ["setuid"], ["setgid"], ["setpcap"], ["net_admin", "setuid", "setgid"]],
        ids=" ".join,
    )
    def test_a_capability_that_is_missing(self, image: Image, missing: list[str]) -> None:
        """One line that names each and what it is for; no firewall was touched."""
        run = image.run("entrypoint", "echo", "started", by=without(*missing))
        assert (run.returncode, run.stdout, image.calls) == (2, "", [])
        assert run.stderr.startswith("entrypoint: missing capabilities: ")
        assert run.stderr.count("\n") == 1
        for name in ("NET_ADMIN", "SETUID", "SETGID", "SETPCAP"):
            assert (f"{name} (to " in run.stderr) == (name.lower() in missing), name

    def test_without_a_firewall_everything_is_given_up_all_the_same(self, image: Image) -> None:
        """Loudly, and without the capability that only a firewall needs."""
        run = image.run("entrypoint", "id", "-u", by=without("net_admin"), EGRESS_FIREWALL="off")
        assert (run.returncode, run.stdout, image.calls) == (0, f"{SERVER}\n", [])
        assert "WARNING: EGRESS_FIREWALL=off" in run.stderr

    def test_the_server_is_not_told_how_it_is_fenced_in(self, image: Image) -> None:
        """Its settings reach it, the firewall's do not."""
        run = image.run("entrypoint", "env", EGRESS_ALLOW="10.0.0.5:1", PROXY_PORT="8081")
        assert "PROXY_PORT=8081\n" in run.stdout
        assert "EGRESS" not in run.stdout

    def test_signals_and_the_status_are_the_servers_own(self, image: Image) -> None:
        """The command takes the place of the script, in the same process."""
        script = 'trap "exit 7" TERM; echo $$; while true; do true; done'
        with image.start("entrypoint", "bash", "-c", script) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == process.pid
            process.terminate()
            assert process.wait(SECONDS) == 7

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_while_the_firewall_is_applied(
        self, image: Image, number: signal.Signals
    ) -> None:
        """It ends as soon as that is done, and starts nothing."""
        with image.start("entrypoint", "echo", "started", WAITS="apply") as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "egress: apply\n"
            assert process.stderr.readline() == "waiting\n"
            process.send_signal(number)
            image.release.write_text("go on\n")
            out, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, out, image.calls) == (128 + number, "", ["apply"])


@dataclass(slots=True)
class Server:
    """Answers one request on each connection with this line."""

    sock: socket.socket
    line: bytes = b"HTTP/1.1 200 OK"

    @property
    def port(self) -> str:
        """Where."""
        return str(self.sock.getsockname()[1])

    def serve(self) -> None:
        """Until the socket is shut down."""
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            with client:
                client.recv(1000)
                client.sendall(self.line + b"\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that lives."""
    host = request.param
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with sock:
        server = Server(sock)
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield server
        sock.shutdown(socket.SHUT_RDWR)
        thread.join(SECONDS)


def wildcard(server: Server) -> str:
    """All addresses of its family."""
    return "::" if server.sock.family == socket.AF_INET6 else "0.0.0.0"


@as_anybody
class TestHealth:
    """What Docker asks every few seconds."""

    def test_a_server_that_answers(self, image: Image, server: Server) -> None:
        """At its own address, or at the loopback of the family whose every address it has."""
        for host in (server.sock.getsockname()[0], wildcard(server)):
            run = image.run("healthcheck", PROXY_HOST=host, PROXY_PORT=server.port)
            assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        assert image.calls == ["verify --rules-only"] * 2

    @pytest.mark.parametrize("line", [b"HTTP/1.1 503 No", b"200", b""])
    def test_a_server_that_says_something_else(
        self, image: Image, server: Server, line: bytes
    ) -> None:
        """One line of reason."""
        server.line = line
        run = image.run("healthcheck", PROXY_HOST=wildcard(server), PROXY_PORT=server.port)
        assert run.returncode == 1
        assert run.stderr.endswith(f"port {server.port} did not answer 200\n")

    @pytest.mark.parametrize("options", ["noexec", "onecmd"])
    def test_health_is_not_doing_nothing(self, image: Image, options: str) -> None:
        """With options by which bash does nothing, nobody there is still unhealthy."""
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = str(sock.getsockname()[1])
        run = image.run("healthcheck", PROXY_PORT=port, SHELLOPTS=options)
        assert (run.returncode, image.calls) == (1, ["verify --rules-only"])

    def test_nobody_there(self, image: Image) -> None:
        """One line of reason, no traceback."""
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = str(sock.getsockname()[1])
        run = image.run("healthcheck", PROXY_PORT=port)
        assert (run.returncode, run.stderr.count("\n")) == (1, 1)
        assert f"127.0.0.1 port {port}: " in run.stderr

    def test_rules_that_are_gone(self, image: Image, server: Server) -> None:
        """Unhealthy, in the firewall's own words, whatever the server says."""
        run = image.run(
            "healthcheck",
            PROXY_HOST=wildcard(server),
            PROXY_PORT=server.port,
            FAILS="verify",
            STATUS="1",
        )
        assert run.returncode == 1
        assert run.stdout == "healthcheck: the firewall: egress: verify --rules-only\n"

    def test_without_a_firewall(self, image: Image, server: Server) -> None:
        """Nobody asks for its rules."""
        run = image.run(
            "healthcheck",
            PROXY_HOST=wildcard(server),
            PROXY_PORT=server.port,
            EGRESS_FIREWALL="off",
        )
        assert (run.returncode, image.calls) == (0, [])

    @pytest.mark.root
    @pytest.mark.skipif(not is_root, reason="NOT TESTED: only root can give up being root")
    def test_who_asks(self, image: Image) -> None:
        """The server's user, with nothing: what an answer does to it, it does to nobody else."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            python = Path(folder, "python3")
            python.write_text("#!/bin/sh\nexec cat /proc/self/status\n")
            python.chmod(0o755)
            by = ["setpriv", "--inh-caps=+net_admin", "--ambient-caps=+net_admin", "--"]
            run = image.run("healthcheck", by=by, PATH=f"{folder}:{PATH}")
        assert run.returncode == 0, run.stderr
        status = read_status(run.stdout)
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(SERVER)}
        assert status["Groups"].split() == []
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"] == "1"
