"""The documents say what the code does, because they are held to it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy import __version__
from proxy.auth import keyfields, keyfile
from proxy.auth.keys import digest
from proxy.config import load
from proxy.config.describe import descriptions
from proxy.endpoints import ENDPOINTS
from proxy.errors import Reason
from proxy.policy.lengths import rendered_chars
from scripts import docs

README = docs.README.read_text("utf-8")
EXAMPLE = docs.EXAMPLE.read_text("utf-8")
FIREWALL = docs.ROOT / "firewall"
PAGES = [
    *("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md"),
    *("docker/README.md", "firewall/README.md", "tests/README.md"),
]


@pytest.mark.parametrize("name", ["clients", "settings", "errors", "metrics", "log"])
def test_the_tables_of_the_readme_are_the_codes(name: str) -> None:
    """If this fails: make docs."""
    assert docs.tables()[name] in README


def test_make_docs_would_change_nothing() -> None:
    """Neither in the README nor in the example."""
    assert docs.readme(README) == README
    assert docs.example() == EXAMPLE


def test_a_readme_without_a_place_for_a_table_is_an_error() -> None:
    """Or a table could get lost and nobody would miss it."""
    with pytest.raises(ValueError, match="no place for the table metrics"):
        docs.readme(README.replace("<!-- /metrics -->", ""))


def test_the_clients_are_those_that_the_tests_try() -> None:
    """Each folder has a client, each client a folder, and every version but the system's is exact."""
    folders = {path.parent.name for path in (docs.ROOT / "tests/clients").glob("*/test_*.py")}
    assert {folder for *_, folder in docs.CLIENTS} == folders
    for name, version in docs.clients().items():
        assert version == "system" or re.fullmatch(r"\d+(\.\d+)+", version), name


def test_every_reason_has_a_row() -> None:
    """The closed set of reasons is the table of errors."""
    assert {cls.reason for cls in docs.concrete_errors()} == set(Reason)


def test_every_reason_has_advice_and_every_field_a_meaning() -> None:
    """And nothing is explained that no longer exists."""
    assert set(docs.ADVICE) == set(Reason)
    assert list(docs.LOG_FIELDS) == docs.log_fields()


def test_the_example_loads_once_its_lines_are_uncommented() -> None:
    """Each value in it is its setting's default."""
    lines = re.findall(r"^#(PROXY_[A-Z_]+)=(.+)$", EXAMPLE, re.MULTILINE)
    settings = load(dict(lines) | {"PROXY_ALLOW_ANONYMOUS": "true"})
    assert settings == load({"PROXY_ALLOW_ANONYMOUS": "true"})


@pytest.mark.parametrize("page", [*PAGES, "docker/proxy.env.example"])
def test_no_page_names_a_setting_that_does_not_exist(page: str) -> None:
    """A knob in a document that nothing turns is a lie."""
    known = {name for row in descriptions() for name in (row.name, f"{row.name}_FILE")}
    named = set(re.findall(r"\bPROXY_[A-Z_]*[A-Z]\b", (docs.ROOT / page).read_text("utf-8")))
    assert named <= known


def firewall_prints(environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What the firewall would do in this environment, which it says without any privilege."""
    return subprocess.run(  # noqa: S603 -- our own script
        ["/bin/bash", FIREWALL / "egress.sh", "print"],
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_the_example_has_every_setting_of_the_firewall() -> None:
    """And none that it does not know."""
    scripts = [FIREWALL / "egress.sh", *(FIREWALL / "lib").glob("*.sh")]
    known = {
        name
        for script in scripts
        for name in re.findall(r"\bEGRESS_[A-Z0-9_]*[A-Z0-9]\b", script.read_text("utf-8"))
    }
    assert set(re.findall(r"^#(EGRESS_[A-Z0-9_]+)=", EXAMPLE, re.MULTILINE)) == known


def test_the_examples_values_are_the_firewalls_defaults() -> None:
    """With them it does what it does without any."""
    given = dict(re.findall(r"^#(EGRESS_[A-Z0-9_]+)=(.+)$", EXAMPLE, re.MULTILINE))
    assert len(given) == 6
    run = firewall_prints(given)
    assert (run.returncode, run.stdout) == (0, firewall_prints({}).stdout)


def test_the_firewall_knows_no_other_setting() -> None:
    """A misspelt name of the example's would not pass the test above by being ignored."""
    run = firewall_prints({"EGRESS_MOOD": "internet"})
    assert run.returncode == 2
    assert "EGRESS_MOOD" in run.stderr


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    """Within the repository."""
    for link in re.findall(r"\]\(([^)]+)\)", (docs.ROOT / page).read_text("utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        text = (docs.ROOT / page if not path else (docs.ROOT / page).parent / path).read_text(
            "utf-8"
        )
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in headings}
        assert not anchor or anchor in anchors


def test_every_endpoint_is_listed() -> None:
    """By method and path."""
    for row in ENDPOINTS:
        assert f"{row.method} {row.path.decode()}" in README


def test_the_example_of_a_key_file_loads() -> None:
    """With every field that there is."""
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (record,) = keyfile.parse(text)
    assert (record.key_id, record.name) == ("k3v9x2ab", "alice")
    assert set(keyfields.FIELDS) - {"replaced_by"} == set(
        re.findall(r"^(\w+) =", text, re.MULTILINE)
    )


def test_a_structure_counts_as_the_readme_says() -> None:
    """With the space that Python puts behind a colon."""
    (json_text, chars) = re.findall(r"`(\{[^`]+\})` counts (\d+)", README)[0]
    assert rendered_chars(json.loads(json_text)) == int(chars)


def test_the_commands_for_keys_do_as_they_say(tmp_path: Path) -> None:
    """One after the other, on a file of their own, for the key that the first of them has made."""
    lines = re.findall(r"^bulwark (keys [^#\n]+)", README, re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["create", "list", "rotate", "disable"]
    path = tmp_path / "keys.toml"
    key = ""
    for line in lines:
        arguments = line.replace("k3v9x2ab", key[6:14]).split()
        run = subprocess.run(  # noqa: S603 -- our own text
            [sys.executable, "-m", "proxy", *arguments],
            cwd=docs.ROOT,
            env={**os.environ, "PROXY_KEYS_FILE": str(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        key = key or run.stdout.strip()
    old, new = keyfile.read(path)
    assert old.sha256 == digest(key.encode())
    assert (old.disabled, old.name, old.allowance) == (True, "alice", new.allowance)
    assert old.allowance.requests_per_minute == 60


def test_every_target_of_make_is_explained() -> None:
    """What people may call is in the Makefile's own list."""
    text = (docs.ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    explained = set(re.findall(r"^#   make ([\w-]+)", text, re.MULTILINE))
    assert explained == set(phony.split()) - {"help"}


def test_one_version() -> None:
    """The package and its metadata do not disagree."""
    project = tomllib.loads((docs.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == __version__
