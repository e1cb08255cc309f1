"""What the compose files name: images, settings and options that there are."""

import re
from typing import Any

from proxy import __version__
from proxy.config.describe import descriptions
from scripts import docs
from tests.harness import compose
from tests.harness.compose import Tagged
from tests.harness.services import DOCKERFILE, EVERY_SERVICE, FILES, VLLM, everywhere, found


@EVERY_SERVICE
def test_images_are_of_a_version(
    overlays: tuple[str, ...], name: str, service: dict[str, Any]
) -> None:
    """What was tested is what runs."""
    assert re.fullmatch(r"[\w./-]+:v?\d+(\.\d+)+", service["image"]), service["image"]


def test_the_proxys_image_is_of_this_version() -> None:
    """And is made here: no registry is asked for its name."""
    for path, image in found("image"):
        if image.startswith("bulwark"):
            assert image == f"bulwark:{__version__}", path
    builds = {path.rpartition(".")[0] for path, _ in found("build")}
    assert builds == {path.rpartition(".")[0] for path, policy in found("pull_policy")}
    assert {policy for _, policy in found("pull_policy")} == {"never"}


def test_no_file_of_the_operators_enters_a_build() -> None:
    """All is left out but what is listed, and no key, environment or overlay is."""
    lines = (compose.DOCKER.parent / ".dockerignore").read_text("utf-8").splitlines()
    patterns = [line for line in lines if not line.startswith("#")]
    assert patterns[0] == "*"
    let_in = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    assert {path for path in let_in if "docker" in path} == {
        "docker/entrypoint",
        "docker/healthcheck",
    }
    sources = " ".join(
        re.findall(r"^COPY (?:--chmod=\d+ )?(?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    )
    assert set(sources.split()) == let_in


def test_every_setting_that_is_named_exists() -> None:
    """A misspelt one would be an error at the start, in front of everybody."""
    known = {row.name for row in descriptions()}
    known |= {setting.partition("=")[0] for setting, *_ in docs.FIREWALL}
    named = {
        name
        for path, environment in found("environment")
        if isinstance(environment, dict) and ".proxy." in path
        for name in environment
    }
    assert len(named) == 8
    assert named <= known
    # Also those that only a comment offers.
    for path in compose.DOCKER.glob("compose*.yaml"):
        mentioned = set(re.findall(r"\b(?:PROXY|EGRESS)_[A-Z_]+\b", path.read_text("utf-8")))
        assert mentioned <= known, path.name


def test_what_may_be_chosen_stands_in_the_example_of_an_environment() -> None:
    """Each variable with its default, and none that nothing reads."""
    used: dict[str, str] = {}
    for path in compose.DOCKER.glob("compose*.yaml"):
        for name, default in compose.variables(path.read_text("utf-8")):
            given = "" if name == "BULWARK_GRAFANA_PASSWORD" else default  # a reason, not a default
            assert used.setdefault(name, given) == given, name
    example = (compose.DOCKER / ".env.example").read_text("utf-8")
    assert dict(re.findall(r"^#([A-Z_]+)=(.*)$", example, re.MULTILINE)) == used


def test_no_overlay_puts_a_limit_back() -> None:
    """What compose.yaml takes away is not taken out of the overlays' own words."""
    for path, value in everywhere(FILES):
        if isinstance(value, Tagged):
            key = path.rpartition(".")[2]
            assert key in {
                "env_file",
                "environment",
                "deploy",
                "shm_size",
                "networks",
                "upstream",
                "depends_on",
                "vllm",
            }, path


def test_the_engine_is_started_as_the_readme_says() -> None:
    """Each option and each variable of its first command that is not about where it listens."""
    (block,) = re.findall(
        r"\*\*1\. Start the engine.*?```sh\n(.*?)```", docs.README.read_text(), re.DOTALL
    )
    command = block.replace("\\\n", " ")
    listening = {"--uds"}
    options = set(re.findall(r"--[a-z-]+", command)) - listening
    assert options <= set(re.findall(r"--[a-z-]+", VLLM["command"]))
    exported = dict(re.findall(r"(VLLM_\w+)=(\w+)", command))
    assert len(exported) == 6
    for name, value in exported.items():
        assert VLLM["environment"][name] == value
