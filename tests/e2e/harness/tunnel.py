"""A real tunnel: ``sshd`` on a server of the internet, ``ssh -R`` on the machine with the containers."""

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.e2e.harness.stack import until
from tests.harness.networks import Networks

SERVER = "203.0.113.10"
PORT = 2222

REMOTE_PORT = 8443
"""Where the tunnel comes out, on the server's loopback."""

_SEPARATION = Path("/run/sshd")  # sshd wants an empty folder of that name


class Tunnel:
    """A context: the tunnel is there inside the block.

    Args:
        networks: Whose internet and router it connects.
        local_port: What it leads to, on the router's loopback.
    """

    def __init__(self, networks: Networks, local_port: int) -> None:
        self._networks = networks
        self._local_port = local_port
        self._server: subprocess.Popen[str] | None = None
        self._client: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="bulwark-ssh-"))
        self._made_separation = not _SEPARATION.exists()
        try:
            _SEPARATION.mkdir(mode=0o755, exist_ok=True)
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._client, self._server):
            if process is not None:
                process.terminate()
                process.wait(10)
        shutil.rmtree(self._folder)
        if self._made_separation:
            with contextlib.suppress(OSError):
                _SEPARATION.rmdir()

    def _start(self) -> None:
        for name in ("host", "user"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(make, check=True)  # noqa: S603 - nothing of it comes from outside
        (self._folder / "config").write_text(
            f"""
            ListenAddress {SERVER}:{PORT}
            HostKey {self._folder}/host
            AuthorizedKeysFile {self._folder}/user.pub
            PidFile none
            StrictModes no
            UsePAM no
            PermitRootLogin prohibit-password
            AllowTcpForwarding remote
            """
        )
        sshd = shutil.which("sshd")
        assert sshd is not None
        # It starts itself anew for each connection, and wants to know from where.
        self._server = self._networks.internet.popen(
            [sshd, "-D", "-e", "-f", str(self._folder / "config")], stderr=subprocess.PIPE
        )
        self._until_open(f"tcp:{SERVER}:{PORT}")
        self._client = self._networks.router.popen(
            [
                *("ssh", "-N", "-F", "none", "-p", str(PORT), "-i", str(self._folder / "user")),
                *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
                *("-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes"),
                *("-R", f"127.0.0.1:{REMOTE_PORT}:127.0.0.1:{self._local_port}", f"root@{SERVER}"),
            ],
            stderr=subprocess.PIPE,
        )
        self._until_open(f"tcp:127.0.0.1:{REMOTE_PORT}")

    def _until_open(self, target: str) -> None:
        internet = self._networks.internet
        until(
            lambda: internet.probe(target, seconds=0.3)[target].open,
            f"the tunnel does not listen at {target}",
            within=20,
        )
