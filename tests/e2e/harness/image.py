"""The image of the real Dockerfile, always built anew; the engine's cache makes that quick.

What this machine needs to reach package registries (a company's CA, another index) goes in as secrets of the
build, as docker/Dockerfile's first lines say, and so into no layer.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.harness.engine import Engine, home

ROOT = Path(__file__).resolve().parents[3]

BASE = "debian:trixie-slim"
"""What the Dockerfile builds on: here a stand-in of the same name and make."""

IMAGE = "bulwark-e2e"
"""The name of what is built, in place of the one in compose.yaml."""

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


def build(engine: Engine) -> None:
    """Builds the image as an operator does, by ``docker compose build``.

    In the system's own network, for there is no other, and with `_secrets`.
    """
    import_base(engine)
    secrets = _secrets(engine.folder)
    build = {"network": "host", "secrets": list(secrets)}
    overlay = engine.folder / "build.json"
    overlay.write_text(
        json.dumps(
            {
                "services": {"proxy": {"build": build}},
                "secrets": {name: {"file": str(path)} for name, path in secrets.items()},
            }
        )
    )
    engine.docker(
        *("compose", "--progress=plain", "--file", "docker/compose.yaml", "--file", str(overlay)),
        *("build", "proxy"),
        env={"BULWARK_IMAGE": IMAGE},
        timeout=BUILD_SECONDS,
        cwd=ROOT,
    )
    # The cache is for the next build; what earlier ones left behind goes.
    engine.docker("image", "prune", "--force")
    engine.docker("builder", "prune", "--force", f"--keep-storage={CACHE_SIZE}")


def _secrets(folder: Path) -> dict[str, Path]:
    """This machine's CA and index, where it has settings for them."""
    found = {}
    for name in _CA_SETTINGS:
        if (path := os.environ.get(name)) and Path(path).is_file():
            found["ca"] = Path(path)
            break
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
    )
    if settings := pip_settings(listed.stdout):
        found["pip_conf"] = folder / "pip.conf"
        found["pip_conf"].write_text("\n".join(["[global]", *settings, ""]))
    return found


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
