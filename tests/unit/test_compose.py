"""What the compose files promise, read off their text: no engine is needed to see a port that is open."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

import pytest

from proxy import __version__
from proxy.config import load
from proxy.config.describe import descriptions
from scripts import docs
from tests.harness import compose
from tests.harness.compose import Tagged

RAW = compose.files()
FILES = compose.with_defaults(RAW)
BASE = FILES["compose.yaml"]
PROXY = BASE["services"]["proxy"]
VLLM = BASE["services"]["vllm"]
HOST = FILES["compose.host.yaml"]["services"]["proxy"]
DOCKERFILE = (compose.DOCKER / "Dockerfile").read_text("utf-8")

CAPABILITIES = {
    "proxy": {"NET_ADMIN", "SETUID", "SETGID", "SETPCAP"},
    "download": {"DAC_OVERRIDE"},
}
"""Who has any, and which."""

WRITABLE = {
    "vllm": "compiles into its own folders",
    "download": "is there to write, and ends",
}
"""Whose root is not read-only, and why."""

NETWORKS = {
    "proxy": {"tunnel", "upstream", "monitoring"},
    "vllm": {"upstream"},
    "download": {"download"},
    "tunnel": {"tunnel"},
    "prometheus": {"monitoring", "console"},
    "grafana": {"monitoring", "console"},
}
"""Who is on which."""


def services() -> Iterator[Any]:
    """Each service where it is defined, as a row: its file, its name, what it is."""
    for file, document in FILES.items():
        for name, service in document["services"].items():
            if not isinstance(service, Tagged) and (file == "compose.yaml" or "image" in service):
                yield pytest.param(file, name, whole(name, service), id=f"{file}-{name}")


def whole(name: str, service: dict[str, Any]) -> dict[str, Any]:
    """A service of an overlay over that of the same name in compose.yaml."""
    under = BASE["services"].get(name, {})
    return {
        key: value for key, value in {**under, **service}.items() if value != Tagged("!reset", None)
    }


def everywhere(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value in a document with the path of keys that leads to it."""
    yield path, value
    match value:
        case dict():
            for key, inner in value.items():
                yield from everywhere(inner, f"{path}.{key}")
        case list():
            for inner in value:
                yield from everywhere(inner, path)
        case Tagged():
            yield from everywhere(value.value, path)


def found(key: str) -> list[tuple[str, Any]]:
    """The values of this key wherever it is, each with its file and path."""
    return [
        (f"{file}{path}", value)
        for file, document in FILES.items()
        for path, value in everywhere(document)
        if path.rpartition(".")[2] == key
    ]


EVERY_SERVICE = pytest.mark.parametrize(("file", "name", "service"), list(services()))


# What is open


@pytest.mark.case("DK-01")
def test_every_port_is_published_on_the_loopback_only() -> None:
    """Docker goes past ufw: a port without an address is open to everybody."""
    ports = [port for path, port in found("ports") if not isinstance(port, list)]
    assert len(ports) == 3
    for port in ports:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


@pytest.mark.case("DK-01")
def test_the_engine_has_no_port_and_no_way_out() -> None:
    """In no file; what asks it without the proxy asks it without a key."""
    assert [path for path, _ in found("ports") if ".vllm" in path] == []
    assert VLLM["networks"].keys() == {"upstream"}
    upstream = BASE["networks"]["upstream"]
    assert upstream["internal"] is True
    # Without it the engine reaches this machine through the bridge's own address.
    mode = "com.docker.network.bridge.gateway_mode_ipv4"
    assert upstream["driver_opts"] == {mode: "isolated"}
    uds = FILES["compose.uds.yaml"]["services"]["vllm"]
    assert (uds["network_mode"], uds["networks"]) == ("none", Tagged("!reset", None))


@EVERY_SERVICE
def test_who_is_on_which_network(file: str, name: str, service: dict[str, Any]) -> None:
    """Each pair on a network of its own."""
    if service.get("network_mode") != "none":
        assert set(service["networks"]) == NETWORKS[name]


def test_addresses_are_what_the_proxy_was_told() -> None:
    """It listens for clients on the tunnel's network and for the operator on the monitoring one."""
    address = {name: network["ipv4_address"] for name, network in PROXY["networks"].items()}
    environment = PROXY["environment"]
    assert environment["PROXY_HOST"] == address["tunnel"]
    assert environment["PROXY_ADMIN_HOST"] == address["monitoring"]
    engine = f"{VLLM['networks']['upstream']['ipv4_address']}:8000"
    assert environment["PROXY_UPSTREAM_URL"] == f"http://{engine}"
    assert environment["EGRESS_ALLOW"] == engine


def test_addresses_are_of_their_networks_and_of_one_service() -> None:
    """Nothing is left to chance, so that no exception in the firewall goes stale."""
    subnets = {
        name: ipaddress.ip_network(subnet)
        for document in FILES.values()
        for name, network in document.get("networks", {}).items()
        for subnet in [item["subnet"] for item in (network or {}).get("ipam", {}).get("config", [])]
    }
    assert set(subnets) == {"tunnel", "upstream", "monitoring", "console"}
    assert len({subnet.network_address for subnet in subnets.values()}) == len(subnets)
    owners: dict[str, str] = {}
    for path, address in found("ipv4_address"):
        service, _, network, _ = path.partition(".services.")[2].split(".")
        subnet = subnets[network]
        assert ipaddress.ip_address(address) in list(subnet.hosts())[1:], (
            "the first is the gateway's"
        )
        assert owners.setdefault(address, service) == service
    assert len(owners) == 7


def test_networks_without_a_way_out() -> None:
    """All but the tunnel's, where tokens and certificates come from, and those that only publish."""
    internal = {
        name for name, network in BASE["networks"].items() if (network or {}).get("internal")
    }
    assert internal == {"upstream", "monitoring"}


# What is given


@EVERY_SERVICE
def test_what_every_service_goes_without(file: str, name: str, service: dict[str, Any]) -> None:
    """Capabilities, new privileges, logs without an end, the host's namespaces."""
    assert service["cap_drop"] == ["ALL"]
    assert set(service.get("cap_add", [])) == CAPABILITIES.get(name, set())
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert service.get("read_only", False) is (name not in WRITABLE or "demo" in file)
    for key in (
        "privileged",
        "pid",
        "ipc",
        "userns_mode",
        "cgroup",
        "devices",
        "init",
        "group_add",
    ):
        assert key not in service, key


def test_nothing_of_the_engines_own_is_given_to_anybody() -> None:
    """Neither its socket nor the machine's network, nor raw packets."""
    for path, value in everywhere(FILES):
        assert value not in ("host", "NET_RAW", "SYS_ADMIN"), path
        assert "docker.sock" not in str(value), path


def test_what_is_mounted_from_this_machine_is_read_only() -> None:
    """But for the folder into which weights are downloaded."""
    writable = []
    for path, mount in found("volumes"):
        if isinstance(mount, str):
            assert mount.endswith(":ro") or not mount.startswith("."), mount
        elif isinstance(mount, dict) and mount.get("type") == "bind" and not mount.get("read_only"):
            writable.append((path, mount["target"]))
    assert writable == [("compose.yaml.services.download.volumes", "/model")]


def test_the_proxy_is_bounded() -> None:
    """Memory, processes, and a folder that nothing is run from."""
    assert PROXY["mem_limit"] == "512m"
    assert PROXY["pids_limit"] == 128
    assert PROXY["ulimits"] == {"core": 0}
    (tmp,) = PROXY["tmpfs"]
    options = tmp.removeprefix("/tmp:").split(",")  # noqa: S108
    assert set(options) == {"rw", "noexec", "nosuid", "nodev", "size=16m"}


def seconds(duration: str) -> float:
    """Of a duration as compose writes it."""
    assert duration.endswith("s")
    return float(duration.removesuffix("s"))


@pytest.mark.parametrize(
    "service", [PROXY, VLLM, FILES["compose.tunnel.yaml"]["services"]["tunnel"]]
)
def test_nobody_is_killed_while_the_proxy_drains(service: dict[str, Any]) -> None:
    """Who is in the way of a stream stays as long, with some seconds for the last word."""
    drain = load({"PROXY_ALLOW_ANONYMOUS": "true"}).drain_seconds
    assert seconds(service["stop_grace_period"]) >= drain + 5


@pytest.mark.case("DK-02")
def test_health_is_asked_for_with_what_the_images_have() -> None:
    """Neither curl nor wget, and never a name that may be ::1 first."""
    assert re.search(r"^HEALTHCHECK .* CMD \[\"healthcheck\"\]$", DOCKERFILE, re.MULTILINE)
    checks = [test for path, test in found("test") if isinstance(test, list)]
    assert len(checks) == 4
    for test in checks:
        assert test[0] == "CMD"
        assert not re.search(r"curl|wget|localhost", " ".join(test))


def test_who_waits_for_whom() -> None:
    """The tunnel for a proxy that is well; the proxy for nobody's model to load."""
    tunnel = FILES["compose.tunnel.yaml"]["services"]["tunnel"]
    assert tunnel["depends_on"] == {"proxy": {"condition": "service_healthy"}}
    assert PROXY["depends_on"] == {"vllm": {"condition": "service_started"}}


# What is named


@EVERY_SERVICE
def test_images_are_of_a_version(file: str, name: str, service: dict[str, Any]) -> None:
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
    assert len(named) == 6
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


@pytest.mark.case("DK-03")
def test_an_engine_on_this_machine() -> None:
    """Its name exists on Linux, and exactly its port is let through the firewall."""
    assert HOST["extra_hosts"] == ["host.docker.internal:host-gateway"]
    url = HOST["environment"]["PROXY_UPSTREAM_URL"]
    assert url == "http://host.docker.internal:8000"
    assert HOST["environment"]["EGRESS_ALLOW"] == url.removeprefix("http://")
    assert FILES["compose.host.yaml"]["services"]["vllm"] == Tagged("!reset", None)


def test_an_engine_on_a_socket_needs_no_exception() -> None:
    """And only the proxy's group may connect to it."""
    document = FILES["compose.uds.yaml"]
    environment = document["services"]["proxy"]["environment"]
    assert environment == {"PROXY_UPSTREAM_URL": "unix:///run/vllm/vllm.sock", "EGRESS_ALLOW": ""}
    (mount,) = document["services"]["proxy"]["volumes"]
    assert mount["read_only"] is True
    options = document["volumes"]["vllm-socket"]["driver_opts"]["o"].split(",")
    assert {"gid=10001", "mode=2770"} <= set(options)


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


# The reader


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: 1 # one", id="a comment behind a value"),
        pytest.param("a: |\n  b", id="a literal block"),
        pytest.param("a: 1\na: 2", id="a key twice"),
        pytest.param("a: b: c", id="two keys on a line"),
        pytest.param("a: 1\n   b: 2", id="an indent that nothing opened"),
        pytest.param("a: [1, 2", id="a list without its end"),
        pytest.param("a: [1] 2", id="something behind a list"),
        pytest.param("a:\n  - b\n c: 1", id="an indent in between"),
        pytest.param("? a", id="a complex key"),
        pytest.param("a: !env b", id="a tag of somebody else's"),
        pytest.param("a: @b", id="a reserved sign"),
    ],
)
def test_what_is_not_read_is_an_error(text: str) -> None:
    """A file that was read wrongly would pass every test above."""
    with pytest.raises((ValueError, KeyError)):
        compose.parse(text)


def test_what_is_read() -> None:
    """The shapes that the files use."""
    text = """
x-all: &all
  read_only: true
a:
  <<: *all
  list: [b, "c: d", 'e''s', 3]
  map: {f: "g", h: [{i: j}]}
  long: >-
    k
    l m
  items:
    - n: 1
      o: "2"
    - p
  reset: !reset []
  nothing:
"""
    assert compose.parse(text)["a"] == {
        "read_only": True,
        "list": ["b", "c: d", "e's", 3],
        "map": {"f": "g", "h": [{"i": "j"}]},
        "long": "k l m",
        "items": [{"n": 1, "o": "2"}, "p"],
        "reset": Tagged("!reset", []),
        "nothing": None,
    }
