"""Tries the same targets over and over until standard input ends: run inside a namespace.

A program of its own, with nothing but the standard library::

    python3 -I hammer.py '{"targets": ["tcp:10.0.0.5:80", "udp:[fd00::1]:53"]}'

It prints ``ready`` after the first round, and at the end one JSON object: by target the number of
attempts and of those that were answered.
"""

import contextlib
import json
import socket
import sys
import threading

PATIENCE_SECONDS = 0.05
"""For an answer to what was let out. The networks are on one machine: it is there in one."""


def attempt(kind: str, family: int, address: tuple[str, int]) -> bool:
    """Whether this one was answered."""
    with socket.socket(family, getattr(socket, kind)) as sock:
        sock.settimeout(PATIENCE_SECONDS)
        with contextlib.suppress(OSError):
            sock.connect(address)
            if kind == "SOCK_DGRAM":
                sock.send(b"?")
                sock.recv(10)
            return True
    return False


def main() -> None:
    """Hammers with a thread for each target."""
    targets = json.loads(sys.argv[1])["targets"]
    counts = {target: {"attempts": 0, "answered": 0} for target in targets}
    stop = threading.Event()
    first = threading.Barrier(len(targets) + 1)

    def one(target: str) -> None:
        protocol, _, rest = target.partition(":")
        host, _, port = rest.rpartition(":")
        kind = {"tcp": "SOCK_STREAM", "udp": "SOCK_DGRAM"}[protocol]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        count = counts[target]
        while not stop.is_set():
            count["answered"] += attempt(kind, family, (host.strip("[]"), int(port)))
            count["attempts"] += 1
            if count["attempts"] == 1:
                first.wait()

    threads = [threading.Thread(target=one, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    first.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main()
