"""``firewall/egress.sh`` as an operator runs it, in a namespace of the test's."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.harness.networks import Namespace, Networks

SCRIPT = Path(__file__).parents[2] / "firewall" / "egress.sh"
RANGES = SCRIPT.parent / "ranges.txt"
BASH = shutil.which("bash") or "bash"
CHAINS = ("BULWARK-OUT", "BULWARK-IN", "BULWARK-FWD")
USER = 10001

TOOLS = ("iptables", "ip6tables", "setpriv", "unshare", "nsenter", "mount", "getent")

Done = subprocess.CompletedProcess[str]


def tools_missing() -> list[str]:
    """The programs that these tests call and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@functools.cache
def works(backend: str) -> str:
    """Why this machine cannot do it with that backend; empty where it can."""
    if shutil.which(f"iptables-{backend}-restore") is None:
        return "not installed"
    with Networks() as made:
        done = made.lan.run([f"iptables-{backend}", "-N", "TRY"])
    return done.stderr.strip() if done.returncode else ""


def ranges(family: int) -> list[str]:
    """The ranges of ``ranges.txt``, in its order."""
    lines = [line.partition("#")[0].split() for line in RANGES.read_text().splitlines()]
    given = [line[0] for line in lines if line]
    return [cidr for cidr in given if (":" in cidr) == (family == 6)]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of what ``verify`` has found."""

    kind: str
    name: str
    expected: str
    result: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What ``verify --json`` prints."""

    ok: bool
    checks: list[Check]

    @classmethod
    def read(cls, text: str) -> Self:
        """From the one object, which has these fields and no others."""
        given = json.loads(text)
        return cls(ok=given.pop("ok"), checks=[Check(**one) for one in given.pop("checks")])

    def surprises(self) -> list[Check]:
        """What is not as expected."""
        return [check for check in self.checks if not check.ok]


@dataclass(frozen=True, slots=True)
class Hidden:
    """Programs that a command does not find, wherever it looks.

    Each folder that has one is covered by a folder of links to all the others: in the mount
    namespace that ``ip netns exec`` makes for one command, and nowhere else.
    """

    folders: dict[Path, Path]

    @classmethod
    def programs(cls, place: Path, *patterns: str) -> Self:
        """Hides those of these names; ``place`` is an empty folder to work in."""
        searched = [*os.environ["PATH"].split(os.pathsep), "/usr/local/sbin", "/usr/sbin", "/sbin"]
        folders = dict.fromkeys(Path(one).resolve() for one in searched if Path(one).is_dir())
        with_one = [one for one in folders if any(any(one.glob(name)) for name in patterns)]
        made = {folder: place / str(number) for number, folder in enumerate(with_one)}
        for folder, cover in made.items():
            (cover / "real").mkdir(parents=True)
            (cover / "links").mkdir()
            for program in folder.iterdir():
                if not any(program.match(pattern) for pattern in patterns):
                    (cover / "links" / program.name).symlink_to(cover / "real" / program.name)
        return cls(made)

    def around(self) -> list[str]:
        """What goes before a command that is to run without them."""
        script = "".join(
            f"mount --bind {folder} {cover}/real; mount --bind {cover}/links {folder}; "
            for folder, cover in self.folders.items()
        )
        return ["sh", "-ec", script + 'exec "$@"', "sh"]


@dataclass(frozen=True, slots=True)
class Firewall:
    """The script and the kernel's tables in one namespace, by one backend."""

    where: Namespace
    backend: str
    env: dict[str, str] = field(default_factory=dict)
    held: list[Mapping[str, str]] = field(default_factory=list)
    """The settings that :meth:`hold` has applied."""

    def call(
        self,
        *words: str,
        settings: Mapping[str, str] = {},
        user: int | None = None,
        path: str | None = None,
        around: Sequence[str] = (),
    ) -> Done:
        """Runs the script, inside of another command maybe; ``mode`` is ``EGRESS_MODE``."""
        env = self.environment(settings)
        if path is not None:
            env["PATH"] = path
        argv = [*around, BASH, str(SCRIPT), *words]
        return self.where.run(argv, user=user, env=env)

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The settings as the script reads them."""
        given = {"backend": self.backend, **settings}
        return {**self.env, **{f"EGRESS_{name.upper()}": value for name, value in given.items()}}

    def hold(self, **settings: str) -> None:
        """Has the rules of these settings in, without a new run where they are those of the last."""
        if self.held != [settings]:
            self.held.clear()
            self.apply(**settings)
            self.held.append(settings)

    def reset(self, rules: str = "*filter\nCOMMIT") -> None:
        """Has these rules in the filter table of both families, in place of all others."""
        self.restore(rules, rules)

    def restore(self, *both: str) -> None:
        """Has what :meth:`both` has given in the filter tables, in place of all else."""
        self.held.clear()
        for name, text in zip(("iptables", "ip6tables"), both, strict=True):
            command = [f"{name}-{self.backend}-restore", "-w"]
            done = self.where.run(command, input=text + "\n", env=self.env)
            assert done.returncode == 0, done.stderr

    def apply(self, **settings: str) -> Done:
        """Puts the rules in, which must work."""
        done = self.call("apply", settings=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def verify(self, *flags: str, **settings: str) -> tuple[int, Report]:
        """What ``verify`` says about the rules that these settings ask for."""
        done = self.call("verify", "--json", *flags, settings=settings)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.returncode, Report.read(done.stdout)

    def tables(self, family: int = 4, *words: str, backend: str | None = None) -> Done:
        """Runs iptables or ip6tables of the backend."""
        name = "iptables" if family == 4 else "ip6tables"
        return self.where.run([f"{name}-{backend or self.backend}", "-w", *words], env=self.env)

    def rule(self, family: int, *words: str) -> None:
        """Runs iptables or ip6tables, which must work."""
        done = self.tables(family, *words)
        assert done.returncode == 0, done.stderr

    def saved(self, family: int, *, backend: str | None = None, table: str = "filter") -> str:
        """The rules as the kernel has them, without counters and without the time of day."""
        name = "iptables" if family == 4 else "ip6tables"
        done = self.where.run([f"{name}-{backend or self.backend}-save", "-t", table], env=self.env)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
        return "\n".join(line.partition(" [")[0] if line[:1] == ":" else line for line in lines)

    def both(self) -> tuple[str, str]:
        """The rules of both families."""
        return self.saved(4), self.saved(6)

    def counters(self) -> list[str]:
        """Our rules of both families with the packets that each has seen."""
        saves = [f"{name}-{self.backend}-save" for name in ("iptables", "ip6tables")]
        texts = [self.where.run([save, "-c", "-t", "filter"]).stdout for save in saves]
        return [line for text in texts for line in text.splitlines() if "BULWARK" in line]

    def counted(self, family: int, chain: str, comment: str) -> int:
        """The packets that the rules of a chain with this comment have seen."""
        name = "iptables" if family == 4 else "ip6tables"
        done = self.where.run([f"{name}-{self.backend}-save", "-c", "-t", "filter"])
        assert done.returncode == 0, done.stderr
        return sum(
            int(line[1:].partition(":")[0])
            for line in done.stdout.splitlines()
            if f"-A {chain} " in line
            and f'"{comment}"' in line.replace(f" {comment} ", f' "{comment}" ')
        )


@dataclass(frozen=True, slots=True)
class Watch:
    """Counts, in the router, the packets that have left for a port: what a probe cannot see."""

    router: Firewall
    port: int

    def __post_init__(self) -> None:
        for family in (4, 6):
            for kind in ("tcp", "udp"):
                rule = ("PREROUTING", "-p", kind, "-m", kind, "--dport", str(self.port))
                self.router.rule(family, "-t", "raw", "-A", *rule)

    def packets(self) -> int:
        """How many there have been."""
        names = [f"{name}-{self.router.backend}-save" for name in ("iptables", "ip6tables")]
        texts = [self.router.where.run([name, "-c", "-t", "raw"]).stdout for name in names]
        lines = [line for text in texts for line in text.splitlines()]
        seen = [line for line in lines if f"--dport {self.port}" in line]
        assert len(seen) == 4
        return sum(int(line[1:].partition(":")[0]) for line in seen)
