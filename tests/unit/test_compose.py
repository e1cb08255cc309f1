"""What the compose files promise, read off their text: no engine is needed to see a port that is open."""

import ipaddress
import os
import re
import shlex
import subprocess
from typing import Any

import pytest

from proxy.config import load
from tests.harness import compose
from tests.harness.compose import Tagged
from tests.harness.services import (
    BASE,
    COMBINATIONS,
    DOCKERFILE,
    EVERY_SERVICE,
    FILES,
    HOST,
    PROXY,
    VLLM,
    everywhere,
    found,
    together,
)

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
"""Who is on which; nobody is on the upstream's where the engine is elsewhere."""


PORTS = {
    "proxy": {"127.0.0.1:8080:8080"},
    "prometheus": {"127.0.0.1:9091:9090"},
    "grafana": {"127.0.0.1:3000:3000"},
}
"""What is published of whom. Docker goes past ufw: a port without an address is open to everybody."""


ALIKE = {
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
}
"""What every service has, and to which no overlay adds."""


KEYS = {
    *("image", "pull_policy", "build", "entrypoint", "command", "env_file", "environment"),
    *("volumes", "tmpfs", "secrets", "ports", "networks", "network_mode", "extra_hosts"),
    *("depends_on", "profiles", "restart", "stop_grace_period", "healthcheck", "user"),
    *("cap_drop", "cap_add", "security_opt", "read_only", "logging", "deploy", "shm_size"),
    *("mem_limit", "memswap_limit", "pids_limit", "ulimits"),
}
"""All that a service may say about itself; neither devices nor namespaces of the machine's are."""


# What is open


def test_every_overlay_is_among_the_combinations() -> None:
    """What is not looked at could take everything back."""
    named = {overlay for overlays in COMBINATIONS for overlay in overlays}
    assert {f"compose.{name}.yaml" for name in named} | {"compose.yaml"} == set(FILES)


@pytest.mark.case("DK-01")
@EVERY_SERVICE
def test_every_port_is_published_on_the_loopback_only(
    overlays: tuple[str, ...], name: str, service: dict[str, Any]
) -> None:
    """And no overlay publishes another one."""
    ports = service.get("ports", [])
    assert set(ports) == PORTS.get(name, set())
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.case("DK-01")
def test_the_engine_has_no_port_and_no_way_out() -> None:
    """In no file; what asks it without the proxy asks it without a key."""
    assert [path for path, _ in found("ports") if ".vllm" in path] == []
    assert VLLM["networks"].keys() == {"upstream"}
    upstream = BASE["networks"]["upstream"]
    assert upstream["internal"] is True
    assert upstream["enable_ipv6"] is False
    # Without it the engine reaches this machine through the bridge's own address.
    mode = "com.docker.network.bridge.gateway_mode_ipv4"
    assert upstream["driver_opts"] == {mode: "isolated"}
    uds = FILES["compose.uds.yaml"]["services"]["vllm"]
    assert (uds["network_mode"], uds["networks"]) == ("none", Tagged("!reset", None))


@EVERY_SERVICE
def test_who_is_on_which_network(
    overlays: tuple[str, ...], name: str, service: dict[str, Any]
) -> None:
    """Each pair on a network of its own."""
    alone = (overlays[:1], name) == (("uds",), "vllm")
    elsewhere = {"upstream"} if overlays[:1] in (("uds",), ("host",)) else set[str]()
    assert service.get("network_mode") == ("none" if alone else None)
    assert set(service.get("networks", ())) == (set() if alone else NETWORKS[name] - elsewhere)


def test_addresses_are_what_the_proxy_was_told() -> None:
    """It listens for clients on the tunnel's network and for the operator on the monitoring one."""
    address = {name: network["ipv4_address"] for name, network in PROXY["networks"].items()}
    environment = PROXY["environment"]
    assert environment["PROXY_HOST"] == address["tunnel"]
    assert environment["PROXY_ADMIN_HOST"] == address["monitoring"]
    engine = f"{VLLM['networks']['upstream']['ipv4_address']}:8000"
    assert environment["PROXY_UPSTREAM_URL"] == f"http://{engine}"
    assert environment["EGRESS_ALLOW"] == engine


@pytest.mark.parametrize(
    "overlays", COMBINATIONS, ids=lambda overlays: "-".join(overlays) or "none"
)
def test_no_overlay_opens_the_proxy(overlays: tuple[str, ...]) -> None:
    """It listens where it did, and its firewall lets it to the upstream and nowhere else."""
    environment = together(overlays)["services"]["proxy"]["environment"]
    for name in ("PROXY_HOST", "PROXY_ADMIN_HOST"):
        assert environment[name] == PROXY["environment"][name]
    upstream = environment["PROXY_UPSTREAM_URL"]
    allowed = "" if upstream.startswith("unix:") else upstream.removeprefix("http://")
    firewall = {name: value for name, value in environment.items() if name.startswith("EGRESS_")}
    assert firewall == {"EGRESS_ALLOW": allowed}


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
    # Over IPv6 a network without a way out would still reach this machine by its bridge, and a process
    # without any privilege may forge addresses.
    ours = {name: (BASE["networks"][name] or {}).get("enable_ipv6") for name in PROXY["networks"]}
    assert ours == dict.fromkeys(("tunnel", "upstream", "monitoring"), False)
    # What is published from here must not be a way out by the address of this machine.
    console = FILES["compose.monitoring.yaml"]["networks"]["console"]
    assert console["driver_opts"] == {"com.docker.network.bridge.enable_ip_masquerade": "false"}


# What is given


@EVERY_SERVICE
def test_what_every_service_goes_without(
    overlays: tuple[str, ...], name: str, service: dict[str, Any]
) -> None:
    """Capabilities, new privileges, logs without an end, the machine's namespaces and devices."""
    assert {key: service[key] for key in ALIKE} == ALIKE
    assert set(service.get("cap_add", [])) == CAPABILITIES.get(name, set())
    stand_in = (overlays[-1:], name) == (("demo",), "vllm")
    assert service.get("read_only", False) is (name not in WRITABLE or stand_in)
    assert set(service) <= KEYS
    # The proxy's is root as far as the entrypoint; the others' images have their own.
    assert service.get("user") == ("10001:10001" if stand_in else None)
    if name in ("proxy", "vllm"):
        assert service["ulimits"] == {"core": 0}


@EVERY_SERVICE
def test_what_stays(overlays: tuple[str, ...], name: str, service: dict[str, Any]) -> None:
    """Whoever serves comes back after a restart, and tells whether it is well."""
    if name == "download":
        assert "restart" not in service
        return
    assert service["restart"] == "unless-stopped"
    health = service.get("healthcheck", {})
    assert not {"disable"} & health.keys()
    # The proxy's is in its image, and nobody waits for Grafana.
    assert ("test" in health) is (name not in ("proxy", "grafana"))


def test_the_engine_is_asked_for_its_health() -> None:
    """Where it listens, which is not the same by a socket."""
    *_, tcp = VLLM["healthcheck"]["test"]
    assert "urlopen('http://127.0.0.1:8000/health'" in tcp
    *_, uds = together(("uds",))["services"]["vllm"]["healthcheck"]["test"]
    assert "connect('/run/vllm/vllm.sock')" in uds
    assert "GET /health " in uds
    assert "200" in uds
    for program in (tcp, uds):
        compile(program, "healthcheck", "exec")


def test_nothing_of_the_engines_own_is_given_to_anybody() -> None:
    """Neither its socket nor the machine's namespaces, nor raw packets, nor what seccomp stops."""
    for path, value in everywhere(FILES):
        assert value not in ("host", "NET_RAW", "SYS_ADMIN"), path
        assert not re.search(r"docker\.sock|unconfined|privileged$", str(value)), path
        assert not path.endswith(("privileged", "devices", "userns_mode")) or ".deploy." in path


def test_the_engine_looks_for_nothing_on_the_internet() -> None:
    """It has none, and would wait for it."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        assert VLLM["environment"][name] == "1"


def test_the_tunnel_alone_may_say_where_a_client_is() -> None:
    """By its own address, and in the header that Cloudflare's edge sets itself."""
    services = FILES["compose.tunnel.yaml"]["services"]
    assert services["proxy"]["environment"] == {
        "PROXY_TRUSTED_PROXIES": services["tunnel"]["networks"]["tunnel"]["ipv4_address"],
        "PROXY_CLIENT_IP_HEADER": "CF-Connecting-IP",
    }


def test_the_tunnel_tells_its_metrics_to_itself() -> None:
    """Its image has them on every address, where the proxy is a neighbour."""
    tunnel = FILES["compose.tunnel.yaml"]["services"]["tunnel"]
    assert tunnel["command"] == ["tunnel", "--metrics", "127.0.0.1:20241", "run"]
    asked = [*tunnel["command"][:-1], "ready"]
    assert tunnel["healthcheck"]["test"] == ["CMD", "cloudflared", *asked]


@EVERY_SERVICE
def test_what_is_mounted_from_this_machine_is_read_only(
    overlays: tuple[str, ...], name: str, service: dict[str, Any]
) -> None:
    """But for the folder into which weights are downloaded; a typo makes no folder of root's."""
    for mount in service.get("volumes", []):
        if isinstance(mount, str):
            assert mount.endswith(":ro") or not mount.startswith((".", "/")), mount
        elif mount["type"] == "bind":
            assert mount["source"] in ("./keys", "./model")
            assert mount.get("read_only", False) is (name != "download"), mount
            assert name == "download" or mount["bind"] == {"create_host_path": False}


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


def test_the_line_that_closes_the_internet() -> None:
    """Uncommented it is one of the proxy's variables, with a value that the firewall knows."""
    text = (compose.DOCKER / "compose.yaml").read_text("utf-8")
    uncommented, count = re.subn(r"(?m)^( +)# (EGRESS_MODE: .+)$", r"\1\2", text)
    assert count == 1
    proxy = compose.with_defaults(compose.parse(uncommented))["services"]["proxy"]
    given = {name: proxy["environment"][name] for name in ("EGRESS_MODE", "EGRESS_ALLOW")}
    run = subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", compose.DOCKER.parent / "firewall/egress.sh", "print", "--family", "4"],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert '"internet"' not in run.stdout.replace(" internet ", ' "internet" ')
    assert f'"allow {given["EGRESS_ALLOW"]}/tcp"' in run.stdout


def test_the_lines_for_the_usage_database() -> None:
    """Uncommented they are a mount of the proxy's that holds the file; a typo makes no folder of root's."""
    text = (compose.DOCKER / "compose.yaml").read_text("utf-8")
    uncommented, path = compose.with_usage_database(text)
    keys, usage = compose.parse(uncommented)["services"]["proxy"]["volumes"]
    assert [keys] == PROXY["volumes"]
    assert path == usage["target"] + "/usage.db"
    assert usage["bind"] == {"create_host_path": False}
    assert not usage.get("read_only", False)
    ignored = (compose.DOCKER / ".gitignore").read_text("utf-8").splitlines()
    assert usage["source"].removeprefix("./") + "/" in ignored


def test_without_compose_it_is_the_same() -> None:
    """What the page has for ``docker run`` takes away as much as compose.yaml."""
    page = (compose.DOCKER / "README.md").read_text("utf-8")
    (command,) = re.findall(r"docker run -d (.+?[^\\])\n", page, re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    options: dict[str, list[str]] = {"--read-only": []}
    words.remove("--read-only")
    while words[0].startswith("-"):
        options.setdefault(words.pop(0), []).append(words.pop(0))
    (tmpfs,) = options.pop("--tmpfs")
    (own,) = PROXY["tmpfs"]
    assert set(tmpfs.split(",")) == set(own.replace(":rw,", ":").split(","))
    assert options == {
        "--name": ["bulwark"],
        "--cap-drop": PROXY["cap_drop"],
        "--cap-add": PROXY["cap_add"],
        "--security-opt": [option.removesuffix(":true") for option in PROXY["security_opt"]],
        "--read-only": [],
        "--memory": [PROXY["mem_limit"]],
        "--memory-swap": [PROXY["memswap_limit"]],
        "--pids-limit": [str(PROXY["pids_limit"])],
        "--ulimit": [f"core={PROXY['ulimits']['core']}"],
        "--stop-timeout": [PROXY["stop_grace_period"].removesuffix("s")],
        "-p": PROXY["ports"],
        "--env-file": ["proxy.env"],
        "-v": ["$PWD/keys:/etc/bulwark:ro"],
    }
    assert words == [PROXY["image"]]


def test_what_the_image_is_made_of() -> None:
    """A release of Debian's by name, packages by their hashes, and nothing that fetches."""
    assert re.findall(r"^ARG DEBIAN_IMAGE=(.+)$", DOCKERFILE, re.MULTILINE) == [
        "debian:trixie-slim"
    ]
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == [
        "${DEBIAN_IMAGE}",
        "python",
        "python",
    ]
    steps = DOCKERFILE.replace("\\\n", " ").splitlines()
    asking = [step for step in steps if re.match(r"RUN .*\bpip.* (download|install) ", step)]
    assert asking
    for step in asking:
        for part in re.findall(r"pip (?:--python \S+ )?(?:download|install|wheel) [^&]+", step):
            hashed = "--require-hashes --only-binary :all:" in part
            assert hashed or "--no-index" in part, part
    installed = " ".join(re.findall(r"apt-get install [^&\n]+", "\n".join(steps))).split()
    assert {word for word in installed if not word.startswith("-")} == {
        *("apt-get", "install", "python3", "binutils", "python3-venv", "iptables")
    }
    assert 'ENTRYPOINT ["entrypoint"]' in steps
    assert 'CMD ["bulwark", "serve"]' in steps


@pytest.mark.case("DK-02")
def test_health_is_asked_for_with_what_the_images_have() -> None:
    """Neither curl nor wget, and never a name that may be ::1 first."""
    (interval,) = re.findall(
        r"^HEALTHCHECK --interval=(\d+)s .*CMD \[\"healthcheck\"\]$", DOCKERFILE, re.MULTILINE
    )
    # So soon, at the latest, it is seen that the rules are gone.
    assert int(interval) <= 30
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
    # The last word about its mode is the engine's own umask.
    assert "; umask 0007; exec vllm serve " in document["services"]["vllm"]["entrypoint"][2]
    options = document["volumes"]["vllm-socket"]["driver_opts"]["o"].split(",")
    assert {"gid=10001", "mode=2770"} <= set(options)
