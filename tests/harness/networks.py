"""Networks of a test's own, in namespaces: a LAN and an internet that nothing can leave.

::

    proxy ─┬─ tunnel    172.18.0.0/16  fd12:18::/64 ─┐          ┌─ lan       192.168.1.10 …
           └─ upstream  172.19.0.0/16  fd12:19::/64 ─┴─ router ─┴─ internet  203.0.113.10 …

The router is what the host of containers is: it has an address on each bridge and forwards. Every
namespace is new, so whatever a test sends or asks of the kernel's filter stays in there; this
module must never touch the machine's own addresses, routes or rules.

Needs root and ``ip`` of iproute2, see :func:`missing`.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface
from pathlib import Path
from types import TracebackType
from typing import IO, Self

WIRE = Path(__file__).parent / "wire"
"""The programs that are run inside, which may be given to a container too."""

LAN = (
    *("192.168.1.10/24", "10.0.0.5/32", "100.64.0.7/32", "172.16.3.4/32", "169.254.169.254/32"),
    *("fd00:1::10/64", "fd00:ec2::254/128"),
)
"""The private addresses, all on one machine of the LAN; the first of each family is on the link."""

INTERNET = (
    *("203.0.113.10/24", "8.8.8.8/32", "192.0.2.1/32"),
    *("2001:db8:1::10/64", "2600::10/128"),
)
"""The public addresses, all on one machine behind the router."""

_RUNS = Path("/run/netns")
_FILES = Path("/etc/netns")  # ip netns exec lays these over /etc
_NUMBERS = itertools.count()


def missing() -> list[str]:
    """What keeps this machine from making namespaces, by name: nothing, where it can."""
    lacks = [] if os.geteuid() == 0 else ["root"]
    lacks += [] if shutil.which("ip") else ["ip (iproute2)"]
    if lacks:
        return lacks
    name = f"bw-{os.getpid()}-{next(_NUMBERS)}-try"
    tried = _run(["ip", "netns", "add", name])
    _run(["ip", "netns", "del", name])
    return ["the privilege to make network namespaces"] if tried.returncode else []


def _run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    input: str | None = None,  # noqa: A002 - as subprocess calls it
    timeout: float = 30,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - nothing of it comes from outside
        argv,
        env=env,
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _sweep() -> None:
    """Removes what a run has left that was killed: its process is in the names."""
    for name in _run(["ip", "netns", "list"]).stdout.split():
        owner = re.match(r"bw-(\d+)-", name)
        if owner and not Path("/proc", owner[1]).exists():
            _remove(name)


def _remove(name: str) -> None:
    _run(["ip", "netns", "del", name])
    shutil.rmtree(_FILES / name, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one probe; the words of ``outcome`` are in ``wire/probe.py``."""

    target: str
    outcome: str
    ms: float
    said: str = ""
    errno: str | None = None

    @property
    def open(self) -> bool:
        """Whether the other side answered."""
        return self.outcome == "OPEN"


@dataclass(slots=True)
class Namespace:
    """One machine of the network, or one container.

    Attributes:
        name: As ``ip netns`` knows it.
        role: What the test calls it.
    """

    name: str
    role: str
    _started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file by which ``nsenter --net=`` enters it."""
        return _RUNS / self.name

    def inside(self, argv: Sequence[str], *, user: int | None = None) -> list[str]:
        """The command that runs this one in here; /sys is the namespace's own."""
        ip = shutil.which("ip") or "ip"  # absolute: the command may be given another PATH
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        return [ip, "netns", "exec", self.name, *(as_user if user is not None else []), *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        user: int | None = None,
        env: Mapping[str, str] = {},
        input: str | None = None,  # noqa: A002 - as subprocess calls it
        timeout: float = 30,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in here to its end; ``env`` is laid over this process's."""
        argv = self.inside(argv, user=user)
        return _run(argv, env={**os.environ, **env}, input=input, timeout=timeout)

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: int | None = None,
        env: Mapping[str, str] = {},
        stdin: int | IO[str] | None = subprocess.PIPE,
        stdout: int | IO[str] | None = subprocess.PIPE,
        stderr: int | IO[str] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a command in here; it is ended with the networks at the latest."""
        started = subprocess.Popen(  # noqa: S603 - likewise
            self.inside(argv, user=user),
            env={**os.environ, **env},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )
        self._started.append(started)
        return started

    def ip(self, *lines: str) -> None:
        """Runs lines of ``ip`` in here, all in one go."""
        done = _run(["ip", "-n", self.name, "-batch", "-"], input="\n".join(lines))
        assert done.returncode == 0, f"{self.role}: {done.stderr}\n" + "\n".join(lines)

    def file(self, name: str, text: str) -> None:
        """Gives every later command in here a file of its own in /etc, such as ``hosts``."""
        folder = _FILES / self.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    def serve(
        self, *ports: int, host: str = "::", join: Iterable[str] = (), user: int | None = None
    ) -> subprocess.Popen[str]:
        """Answers TCP and UDP on these ports, as long as the process that is given back runs."""
        asked = json.dumps({"ports": ports, "host": host, "join": list(join), "user": user})
        server = self.popen([sys.executable, "-I", "-S", str(WIRE / "echo.py"), asked])
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", f"{self.role}: cannot serve {ports}"
        return server

    def probe(
        self,
        *targets: str,
        seconds: float = 1.0,
        user: int | None = None,
        source: str | None = None,
        interface: str | None = None,
    ) -> dict[str, Answer]:
        """Tries all targets at once: ``tcp:HOST:PORT``, ``udp:HOST:PORT``, ``icmp:HOST``.

        Brackets around an IPv6 host. ``raw:HOST`` sends a packet that no socket would.
        """
        asked = {
            "targets": targets,
            "seconds": seconds,
            "user": user,
            "source": source,
            "interface": interface,
        }
        program = [sys.executable, "-I", "-S", str(WIRE / "probe.py"), json.dumps(asked)]
        done = self.run(program, timeout=seconds + 30)
        assert done.returncode == 0, done.stderr
        return {given["target"]: Answer(**given) for given in json.loads(done.stdout)}

    def stop(self) -> None:
        """Ends what was started in here."""
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._started.clear()


class Networks:
    """The router with a LAN and an internet behind it; gone again when the block ends.

    Args:
        containers: Whether the proxy, a tunnel and an upstream are there, each its own namespace
            on the bridges of the picture above. Without, there is a place to run an engine in.
        ipv6: Whether the namespaces have IPv6 at all.
    """

    def __init__(self, *, containers: bool = False, ipv6: bool = True) -> None:
        self.ipv6 = ipv6
        self.namespaces: list[Namespace] = []
        self._containers = containers
        self._prefix = f"bw-{os.getpid()}-{next(_NUMBERS)}"

    def __enter__(self) -> Self:
        """Builds it, or leaves nothing behind."""
        _sweep()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _build(self) -> None:
        self.router = self.namespace("router")
        forward = ["net/ipv4/ip_forward", *(["net/ipv6/conf/all/forwarding"] if self.ipv6 else [])]
        self.sysctl(self.router, dict.fromkeys(forward, "1"))
        self.lan = self.machine("lan", "192.168.1.1/24", "fd00:1::1/64", LAN)
        self.internet = self.machine("internet", "203.0.113.1/24", "2001:db8:1::1/64", INTERNET)
        if self._containers:
            self.bridge("tunnel", "172.18.0.1/16", "fd12:18::1/64")
            self.bridge("upstream", "172.19.0.1/16", "fd12:19::1/64")
            self.proxy = self.namespace("proxy")
            self.tunnel = self.namespace("tunnel")
            self.upstream = self.namespace("upstream")
            self.connect(self.proxy, "tunnel", "172.18.0.2/16", "fd12:18::2/64", default=True)
            self.connect(self.proxy, "upstream", "172.19.0.2/16", "fd12:19::2/64")
            self.connect(self.tunnel, "tunnel", "172.18.0.3/16", "fd12:18::3/64", default=True)
            self.connect(self.upstream, "upstream", "172.19.0.3/16", "fd12:19::3/64", default=True)

    def namespace(self, role: str) -> Namespace:
        """A new machine without any network but loopback."""
        made = Namespace(f"{self._prefix}-{role}", role)
        done = _run(["ip", "netns", "add", made.name])
        assert done.returncode == 0, done.stderr
        self.namespaces.append(made)
        # No limit on errors: of hundreds of probes at once, some would not hear that they are refused.
        values = {"net/ipv4/icmp_ratemask": "0"}
        if self.ipv6:
            # No duplicate address detection: a link-local address is usable at once.
            values |= {"net/ipv6/conf/default/accept_dad": "0", "net/ipv6/icmp/ratemask": "''"}
        else:
            values |= {f"net/ipv6/conf/{which}/disable_ipv6": "1" for which in ("all", "default")}
        self.sysctl(made, values)
        made.ip("link set lo up")
        return made

    def sysctl(self, where: Namespace, values: Mapping[str, str]) -> None:
        """Sets kernel parameters of a namespace."""
        script = "; ".join(f"echo {value} >/proc/sys/{key}" for key, value in values.items())
        done = where.run(["sh", "-ec", script])
        assert done.returncode == 0, done.stderr

    def machine(self, role: str, ipv4: str, ipv6: str, addresses: Iterable[str]) -> Namespace:
        """A machine on a cable of its own to the router, with many addresses, all routed to it.

        Args:
            role: Its name; the router's interface has it too.
            ipv4: The router's own address on that cable.
            ipv6: Likewise.
            addresses: Those of the machine.
        """
        made = self.namespace(role)
        gateways = [address for address in (ipv4, ipv6) if self._has(address)]
        self.router.ip(
            f"link add {role} type veth peer name eth0 netns {made.name}",
            f"link set {role} up",
            *(_add(address, role) for address in gateways),
        )
        made.ip("link set eth0 up")
        self.address(made, role, addresses)
        made.ip(*(f"route add default via {ip_interface(address).ip}" for address in gateways))
        return made

    def address(self, machine: Namespace, role: str, addresses: Iterable[str]) -> None:
        """Gives a machine more addresses, and the router the ways there."""
        wanted = [address for address in addresses if self._has(address)]
        machine.ip(*(_add(address, "eth0") for address in wanted))
        lone = [ip_interface(address) for address in wanted]
        self.router.ip(
            *(
                f"route add {address} dev {role}"
                for address in lone
                if address.network.num_addresses == 1
            )
        )

    def bridge(
        self, name: str, ipv4: str, ipv6: str | None = None, host: Namespace | None = None
    ) -> None:
        """A network of containers: a bridge in the router, or a host, with these addresses on it."""
        addresses = [address for address in (ipv4, ipv6) if address and self._has(address)]
        (host or self.router).ip(
            f"link add {name} type bridge",
            f"link set {name} up",
            *(_add(address, name) for address in addresses),
        )

    def connect(
        self,
        container: Namespace,
        bridge: str,
        *addresses: str,
        default: bool = False,
        host: Namespace | None = None,
    ) -> None:
        """Plugs a container into a bridge, by an interface that has the bridge's name.

        Args:
            container: Who.
            bridge: Where.
            addresses: Its own, with their prefix lengths.
            default: Whether the bridge's first address is its default gateway.
            host: Where the bridge is, if not in the router.
        """
        own = [address for address in addresses if self._has(address)]
        port = f"{bridge[:7]}-{container.role[:7]}"
        (host or self.router).ip(
            f"link add {port} type veth peer name {bridge} netns {container.name}",
            f"link set {port} master {bridge} up",
        )
        container.ip(f"link set {bridge} up", *(_add(address, bridge) for address in own))
        if default:
            gateways = [ip_interface(address).network[1] for address in own]
            container.ip(*(f"route add default via {gateway}" for gateway in gateways))

    def link_local(self, machine: Namespace, interface: str) -> str:
        """The address that the kernel has given to an interface."""
        for line in machine.run(["cat", "/proc/net/if_inet6"]).stdout.splitlines():
            address, *_, name = line.split()
            if address.startswith("fe80") and name == interface:
                return str(ip_address(int(address, 16)))
        raise AssertionError(f"{machine.role}: no link-local address on {interface}")

    def _has(self, address: str) -> bool:
        return self.ipv6 or ip_interface(address).version == 4

    def close(self) -> None:
        """Ends every process in the namespaces and removes them."""
        for made in self.namespaces:
            made.stop()
        for made in self.namespaces:
            _remove(made.name)
        with contextlib.suppress(OSError):
            _FILES.rmdir()  # ours only if it was empty
        self.namespaces.clear()


def _add(address: str, interface: str) -> str:
    return f"address add {address} dev {interface}"
