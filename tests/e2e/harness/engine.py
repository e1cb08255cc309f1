"""A container engine of the tests' own, in namespaces of its own: it leaves nothing behind.

Its process, mount and network namespaces hang on one process, whose standard input ends when the tests do,
however they do: then the kernel ends the engine and every container, and their mounts go with them. What it
stores (images, the cache of builds) lies in the folder of `tests/e2e/install`, for the next run.
"""

# ruff: noqa: S603, S607 - nothing that is run here comes from outside

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from tests.harness import installed

START_SECONDS = 60.0
STOP_SECONDS = 60.0

# The first process of the namespaces. /sys becomes that of another network, with the control groups as they are.
_INIT = """
set -e
if [ "$2" ]; then
    mkdir "$1/cgroup"
    mount --rbind /sys/fs/cgroup "$1/cgroup"
    mount -t sysfs sysfs /sys
    mount --move "$1/cgroup" /sys/fs/cgroup
    rmdir "$1/cgroup"
fi
if [ -e "$1/resolv.conf" ]; then mount --bind "$1/resolv.conf" /etc/resolv.conf; fi
echo ready
exec 3<&0
cat <&3 >/dev/null &
wait $!
"""


def home() -> Path:
    """Where `tests/e2e/install` has put the engine and the base image."""
    return installed.folder("docker")


def missing() -> str | None:
    """Why no engine can be started here; None where one can."""
    if os.geteuid() != 0:
        return "not root"
    if not (home() / "stamp").exists():
        return "there is no engine: tests/e2e/install fetches one"
    needed = ("nsenter", "unshare", "ip", "iptables", "sshd", "ssh", "ssh-keygen")
    lacking = [name for name in needed if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not found; .ci/run says which packages have them"
    return None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keeps a second run away from the engine's store."""
    with (home() / ".store.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Past what collects the output of tests: nobody would know what is waited for.
            print("\nanother run has the engine's store; waiting …", file=sys.__stderr__)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class EngineError(Exception):
    """The engine did not start, or a command of it failed; has what it said."""


@dataclass(slots=True)
class Engine:
    """One engine. A context: it runs inside the block.

    Attributes:
        network: The file of the network namespace that it and its bridges live in; None: the system's own.
        arguments: More of them.
        nameserver: What its resolv.conf names, in place of the system's.
        folder: Its socket and its log, until it has ended.
    """

    network: Path | None
    arguments: Sequence[str] = ()
    nameserver: str | None = None
    folder: Path = field(init=False)
    _world: subprocess.Popen[str] | None = None
    _daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Starts it, or leaves nothing behind.

        Raises:
            EngineError: It did not start.
        """
        # Short: a socket's path has 108 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix=f"bulwark-e2e-{os.getpid()}-"))
        try:
            self._make_world()
            self.start()
        except BaseException:
            self._end_world()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it in order, then whatever is left by force."""
        try:
            self.stop()
        finally:
            self._end_world()

    def _make_world(self) -> None:
        if self.nameserver is not None:
            (self.folder / "resolv.conf").write_text(f"nameserver {self.nameserver}\n")
        (self.folder / "config").mkdir()
        plugins = {"cliPluginsExtraDirs": [str(home() / "engine/usr/libexec/docker/cli-plugins")]}
        (self.folder / "config/config.json").write_text(json.dumps(plugins))
        into = [] if self.network is None else ["nsenter", f"--net={self.network}", "--"]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        self._world = subprocess.Popen(
            [
                *into,
                *unshare,
                "bash",
                "-c",
                _INIT,
                "init",
                str(self.folder),
                str(self.network or ""),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._world.stdout is not None
        if self._world.stdout.readline() != "ready\n":
            raise EngineError(f"no namespaces for the engine: {self._world.communicate()[1]}")

    def _end_world(self) -> None:
        if self._world is not None:
            self._world.communicate()  # closes its input, which ends it
        if self._daemon is not None:
            self._daemon.wait()
        _remove_control_groups(self.folder.name)
        shutil.rmtree(self.folder)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that runs this one among the engine's processes, files and networks."""
        assert self._world is not None
        world = f"/proc/{self._world.pid}/ns"
        where = (f"--net={world}/net", f"--mount={world}/mnt", f"--pid={world}/pid_for_children")
        return ["nsenter", *where, "--", *argv]

    def environment(self) -> dict[str, str]:
        """What the engine and its commands need of ours, and where they find each other."""
        programs = [str(home() / "engine/usr" / name) for name in ("bin", "sbin")]
        return {
            "PATH": os.pathsep.join(
                [*programs, "/usr/local/sbin:/usr/sbin:/sbin", os.environ["PATH"]]
            ),
            "HOME": str(self.folder),
            "DOCKER_CONFIG": str(self.folder / "config"),
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
        }

    def start(self) -> None:
        """Starts it, also again after `stop`; returns when it answers.

        Raises:
            EngineError: It did not in time.
        """
        daemon = [
            *("dockerd", "--host", f"unix://{self.folder}/docker.sock"),
            *("--data-root", str(home() / "data"), "--exec-root", f"{self.folder}/exec"),
            *("--pidfile", f"{self.folder}/docker.pid"),
            # Never through systemd: it knows the processes by other numbers than those in here.
            *(
                "--exec-opt",
                "native.cgroupdriver=cgroupfs",
                "--cgroup-parent",
                f"/{self.folder.name}",
            ),
            *self.arguments,
        ]
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                self.inside(daemon),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while self.docker("version", check=False).returncode != 0:
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                raise EngineError(f"the engine does not start:\n{self.last_words()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Asks it to end, by its number; returns when it has."""
        if self._daemon is None or self._daemon.poll() is not None:
            return
        number = (self.folder / "docker.pid").read_text().strip()
        self.signal("TERM", number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._daemon.wait(STOP_SECONDS)

    def signal(self, name: str, number: str) -> None:
        """Sends a signal to the process that has this number in here, if there is one."""
        # The shell's own: not every system has a program of that name.
        kill = ["bash", "-c", 'kill -s "$1" "$2"', "kill", name, number]
        subprocess.run(self.inside(kill), check=False)

    def docker(
        self,
        *argv: str,
        env: Mapping[str, str] = {},
        input: str | None = None,  # noqa: A002 - as subprocess calls it
        check: bool = True,
        timeout: float = 120.0,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``docker`` with these arguments.

        Raises:
            EngineError: It failed, unless ``check`` is off.
        """
        done = subprocess.run(
            ["docker", *argv],
            env={**self.environment(), **env},
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=cwd,
        )
        if check and done.returncode != 0:
            raise EngineError(f"docker {' '.join(argv)}\n{done.stdout}{done.stderr}")
        return done

    def popen(
        self, *argv: str, stdin: int | IO[bytes] = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Starts ``docker`` with these arguments; its output is for the caller."""
        return subprocess.Popen(
            ["docker", *argv],
            env=self.environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def version(self) -> tuple[int, ...]:
        """Of the server, such as (28, 5)."""
        said = self.docker("version", "--format", "{{.Server.Version}}").stdout
        return tuple(int(part) for part in said.split(".")[:2])

    @property
    def isolates(self) -> bool:
        """Whether it can keep an internal network from its host: not before version 28."""
        return self.version() >= (28, 0)

    def clear(self) -> None:
        """Removes every container, network and volume; images and the cache of builds stay."""
        if containers := self.docker("ps", "--all", "--quiet").stdout.split():
            self.docker("rm", "--force", "--volumes", *containers)
        self.docker("network", "prune", "--force")
        self.docker("volume", "prune", "--all", "--force")

    def last_words(self, lines: int = 40) -> str:
        """The end of its log."""
        log = self.folder / "log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


BUILDING = ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none")
"""Arguments for an engine in the system's own network: it makes no rule and no bridge there, and no router of it."""


def sweep() -> None:
    """Removes what a run has left that was ended by force, away from the system's network."""
    for folder in Path(tempfile.gettempdir()).glob("bulwark-e2e-*"):
        if not _runs(folder.name):
            _remove_control_groups(folder.name)
            shutil.rmtree(folder, ignore_errors=True)
    for namespace in Path("/run/netns").glob("bw-*"):
        if not _runs(namespace.name):
            subprocess.run(["ip", "netns", "del", namespace.name], check=False)
    data = home() / "data"
    if [*data.glob("containers/*"), *data.glob("volumes/*/")]:
        with _nowhere() as network, Engine(network) as engine:
            engine.clear()


def _runs(name: str) -> bool:
    """Whether the process is there whose number is in a name."""
    number = re.search(r"-(\d+)-", name)
    return number is None or Path("/proc", number[1]).exists()


@contextlib.contextmanager
def _nowhere() -> Iterator[Path]:
    """A network with nothing in it."""
    name = f"bw-{os.getpid()}-nowhere"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield Path("/run/netns") / name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def _remove_control_groups(name: str) -> None:
    """The engine leaves its own, which are empty now."""
    top = Path("/sys/fs/cgroup")
    for group in [top / name, *top.glob(f"*/{name}")]:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
