"""The compose files as compose reads them, in every combination that the documents name."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness.engine import home
from tests.harness import compose

ROOT = compose.DOCKER.parent
PAGES = [ROOT / "README.md", compose.DOCKER / "README.md", *compose.DOCKER.glob("compose*.yaml")]


def named() -> set[tuple[str, ...]]:
    """The files of each command, and those that an environment names."""
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    commands = re.findall(r"docker compose((?: -f \S+)*)", text)
    variables = re.findall(r"COMPOSE_FILE=([\w.:]+)", text)
    found = {tuple(re.findall(r"-f (\S+)", command)) for command in commands}
    return found | {tuple(variable.split(":")) for variable in variables}


@pytest.fixture(scope="module")
def folder(usable: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files with what an operator has beside them."""
    folder = tmp_path_factory.mktemp("compose") / "docker"
    folder.mkdir()
    for file in compose.DOCKER.glob("compose*.yaml"):
        shutil.copy(file, folder)
    (folder / "keys").mkdir()
    (folder / "keys/tunnel-token").write_text("token\n")
    (folder / ".env").write_text("BULWARK_GRAFANA_PASSWORD=password\n")
    plugins = {"cliPluginsExtraDirs": [str(home() / "engine/usr/libexec/docker/cli-plugins")]}
    (folder / "config.json").write_text(json.dumps(plugins))
    return folder


def config(folder: Path, files: tuple[str, ...], *options: str) -> str:
    """What ``docker compose config`` says, which no engine has to run for; fails where it does."""
    given = [option for file in files for option in ("-f", file)]
    docker = str(home() / "engine/usr/bin/docker")
    run = subprocess.run(  # noqa: S603 - nothing of it comes from outside
        [docker, "compose", *given, "--profile=download", "config", *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "DOCKER_CONFIG": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def test_combinations_are_found() -> None:
    """The file alone, each overlay, and more than one of them."""
    overlays = {path.name for path in compose.DOCKER.glob("compose.*.yaml")}
    assert {(), *(("compose.yaml", overlay) for overlay in overlays)} <= named()
    assert any(len(files) > 2 for files in named())


@pytest.mark.parametrize("files", sorted(named()), ids=lambda files: "+".join(files) or "alone")
def test_compose_takes_them(folder: Path, files: tuple[str, ...]) -> None:
    """Without an error or a warning."""
    assert config(folder, files, "--quiet") == ""


KEYS = ("cap_add", "cap_drop", "security_opt", "read_only", "user", "restart", "network_mode")
"""What is read alike by everybody, if it is merged alike."""


@pytest.mark.parametrize("files", sorted(named()), ids=lambda files: "+".join(files) or "alone")
def test_they_are_merged_as_the_unit_tests_do_it(folder: Path, files: tuple[str, ...]) -> None:
    """Who is there, what each may do, where it is and what it is told."""
    ours: Any = {}
    parsed = compose.with_defaults(compose.files())
    for file in files or ("compose.yaml",):
        ours = compose.merged(ours, parsed[file])
    theirs = json.loads(config(folder, files, "--format=json"))
    assert theirs["services"].keys() == ours["services"].keys()
    for name, service in theirs["services"].items():
        own = ours["services"][name]
        assert {key: service.get(key) for key in KEYS} == {key: own.get(key) for key in KEYS}, name
        assert set(service.get("networks") or ()) == set(own.get("networks", ())), name
        targets = {mount["target"] for mount in service.get("volumes", ())}
        mounts = own.get("volumes", ())
        assert targets == {
            mount["target"] if isinstance(mount, dict) else mount.split(":")[1] for mount in mounts
        }, name
        environment = service.get("environment") or {}
        wanted = {**own.get("environment", {})}
        wanted.pop("GF_SECURITY_ADMIN_PASSWORD", None)
        environment.pop("GF_SECURITY_ADMIN_PASSWORD", None)
        assert environment == wanted, name
