"""A signal in the middle of a change: both families are changed, or neither."""

import os
import shutil
from pathlib import Path

import pytest

from tests.firewall.egress import Firewall

pytestmark = pytest.mark.root

GOOD = {"mode": "upstream-only", "allow": "172.19.0.3:80,[fd12:19::3]:80"}


@pytest.mark.parametrize("signal", ["INT", "TERM", "HUP"])
@pytest.mark.parametrize("command", ["apply", "remove"])
def test_between_the_families(
    firewall: Firewall, tmp_path: Path, backend: str, command: str, signal: str
) -> None:
    """As with a ctrl-C, everybody at work gets it, just when IPv4 is done."""
    firewall.reset()
    if command == "remove":
        firewall.apply(**GOOD)
    name = f"iptables-{backend}-restore"
    program = tmp_path / name
    real = shutil.which(name)
    program.write_text(
        f'#!/bin/sh\n{real} "$@" || exit\n'
        'for word; do [ "$word" != --test ] || exit 0; done\n'
        f"kill -{signal} 0\n"
    )
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    firewall.call(command, path=path, settings=GOOD, around=["setsid", "--wait"])
    there = ["BULWARK-OUT" in saved for saved in firewall.both()]
    assert there in ([True, True], [False, False])
