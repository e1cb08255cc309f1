"""The image of the real Dockerfile, always built anew; the engine's cache makes that quick.

What this machine needs to reach package registries (a company's CA, another index) goes in as secrets of the
build, as docker/Dockerfile's first lines say, and so into no layer.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.e2e.harness.engine import Engine, home

ROOT = Path(__file__).resolve().parents[3]

BASE = "debian:trixie-slim"
"""What the Dockerfile builds on: here a stand-in of the same name and make."""

IMAGE = "bulwark-e2e"
"""The name of what is built, for the tests' own containers; the compose files have one of their own."""

BUILD_SECONDS = 500.0
CACHE_SIZE = "1gb"

_MADE_FROM = "made-from"
_CA_SETTINGS = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_INDEX_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")


def import_base(engine: Engine) -> None:
    """Makes the stand-in for the base image known to the engine, unless it knows this very one."""
    stamp = (home() / "stamp").read_text().strip()
    label = f'{{{{index .Config.Labels "{_MADE_FROM}"}}}}'
    known = engine.docker("image", "inspect", "--format", label, BASE, check=False)
    if known.stdout.strip() != stamp:
        changes = (f"LABEL {_MADE_FROM}='{stamp}'", 'CMD ["bash"]')
        options = [option for change in changes for option in ("--change", change)]
        engine.docker("import", *options, str(home() / "base.tar"), BASE)


def build(engine: Engine, *tags: str) -> str:
    """Builds docker/Dockerfile under these names; gives what the build printed."""
    import_base(engine)
    done = engine.docker(
        *("build", "--progress=plain", "--network=host", "--file", "docker/Dockerfile"),
        *(option for tag in (IMAGE, *tags) for option in ("--tag", tag)),
        *_secrets(engine.folder),
        ".",
        env={"DOCKER_BUILDKIT": "1"},
        timeout=BUILD_SECONDS,
        cwd=ROOT,
    )
    # The cache is for the next build; what earlier ones left behind goes.
    engine.docker("image", "prune", "--force")
    engine.docker("builder", "prune", "--force", f"--keep-storage={CACHE_SIZE}")
    return done.stderr


def _secrets(folder: Path) -> Iterable[str]:
    """This machine's CA and index, where it has settings for them."""
    for name in _CA_SETTINGS:
        if (path := os.environ.get(name)) and Path(path).is_file():
            yield from ("--secret", f"id=ca,src={path}")
            break
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
    )
    if settings := pip_settings(listed.stdout):
        made = folder / "pip.conf"
        made.write_text("\n".join(["[global]", *settings, ""]))
        yield from ("--secret", f"id=pip_conf,src={made}")


def pip_settings(listed: str) -> list[str]:
    """Of ``pip config list``, what says where packages come from, as lines of a pip.conf.

    Paths of this machine stay out: a build does not have them.
    """
    found: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2].removeprefix("default-")
        kept = [word for word in ast.literal_eval(value).split() if not re.match("file:|/", word)]
        if key in _INDEX_SETTINGS and kept:
            found[key] = " ".join(kept)
    return [f"{key} = {value}" for key, value in found.items()]
