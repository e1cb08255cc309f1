"""What we recommend, upstream-only: no internet either; no names; a file of keys; published on the LAN."""

from collections.abc import Iterator

import pytest

from proxy.auth.keys import digest, generate
from tests.e2e.harness import neighbours
from tests.e2e.harness.chat import Chat
from tests.e2e.harness.engine import Engine
from tests.e2e.harness.places import (
    HOST,
    INTERNET,
    IPV6,
    LAN,
    PUBLIC,
    SPELLINGS,
    beside,
    gateways,
    rows,
)
from tests.e2e.harness.probes import (
    CLOSED,
    OPEN,
    REJECTED,
    Report,
    Row,
    from_container,
)
from tests.e2e.harness.resolving import assert_names
from tests.e2e.harness.servers import RESOLVER
from tests.e2e.harness.stack import Stack
from tests.harness.networks import Networks

WORDS = 30
LAN_ADDRESS = "192.168.1.1"
LAN_PORT = 8443


@pytest.fixture(scope="module")
def key() -> str:
    """A key of the file."""
    return generate()


@pytest.fixture(scope="module")
def closed(engine: Engine, key: str) -> Iterator[Stack]:
    """compose.yaml with keys, and the stand-in where vLLM is."""
    overlay = neighbours.overlay()
    overlay["services"]["proxy"]["ports"] = [f"{LAN_ADDRESS}:{LAN_PORT}:8080"]
    with Stack(engine, ("compose.yaml", "model.yaml"), overlay) as made:
        made.model_alone()
        settings = {
            "PROXY_KEYS_FILE": "/etc/bulwark/keys.toml",
            "EGRESS_MODE": "upstream-only",
            "EGRESS_DNS": "none",
        }
        made.file("proxy.env", "".join(f"{name}={value}\n" for name, value in settings.items()))
        known = f'[[key]]\nid = "{key[6:14]}"\nsha256 = "{digest(key.encode()).hex()}"\n'
        made.file("keys/keys.toml", known)
        yield made.up()


def test_what_the_proxy_reaches(closed: Stack, report: Report) -> None:
    """Only the upstream's port."""
    targets = (*LAN, *HOST, *PUBLIC, *INTERNET, *SPELLINGS, *gateways(closed), *beside(closed))
    report.check(
        "From the proxy's container, upstream-only",
        [
            *rows(targets, REJECTED),
            Row("a public resolver", f"udp:{RESOLVER}:53", REJECTED),
            Row("the engine's resolver", "udp:127.0.0.11:53", REJECTED),
            *rows(IPV6, CLOSED),
            Row("the upstream", f"tcp:{closed.vllm}:8000", OPEN),
        ],
        from_container(closed, "proxy"),
    )


def test_no_names(closed: Stack, report: Report) -> None:
    """No name resolves, so none can carry anything out."""
    names = {"vllm": "", "example.com": ""}
    assert_names(closed, report, "Names in the proxy's container, EGRESS_DNS=none", names)


@pytest.mark.case("FW-03")
def test_a_chat_from_the_lan(closed: Stack, networks: Networks, key: str, report: Report) -> None:
    """A client on the LAN is answered, and can still not be connected to."""
    asked = {"host": LAN_ADDRESS, "key": key}
    Chat(networks.lan, LAN_PORT, f"count to {WORDS}", **asked).end().assert_counted_live(WORDS)
    back = [Row("the client that was answered", "tcp:192.168.1.10:22", REJECTED)]
    report.check("From the proxy's container, back", back, from_container(closed, "proxy"))


def test_a_key_that_is_not_in_the_file(closed: Stack, networks: Networks) -> None:
    """Others are refused."""
    chat = Chat(networks.lan, LAN_PORT, "hello", host=LAN_ADDRESS, key=generate())
    assert chat.end().status == 403


def test_the_keys_cannot_be_changed(closed: Stack) -> None:
    """The folder of keys is read-only, for root too."""
    tried = closed.run("proxy", "touch", "/etc/bulwark/keys.toml", check=False)
    assert "Read-only file system" in tried.stderr
