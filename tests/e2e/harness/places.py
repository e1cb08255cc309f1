"""The places that are knocked at: pairs of what it is and where, as `Row` has them."""

from tests.e2e.harness.probes import Row
from tests.e2e.harness.stack import Stack

LAN = (
    ("a machine of the LAN", "tcp:192.168.1.10:22"),
    ("its web server", "tcp:192.168.1.10:80"),
    ("RFC 1918, 10/8", "tcp:10.0.0.5:80"),
    ("RFC 1918, 172.16/12", "tcp:172.16.3.4:80"),
    ("CGNAT", "tcp:100.64.0.7:80"),
    ("the metadata service", "tcp:169.254.169.254:80"),
    ("AWS's, for containers", "tcp:169.254.170.2:80"),
    ("Alibaba's", "tcp:100.100.100.200:80"),
    ("Azure's", "tcp:168.63.129.16:80"),
    ("a resolver at home, UDP", "udp:192.168.1.10:53"),
    ("RFC 1918, UDP", "udp:10.0.0.5:80"),
)

HOST = (
    ("the host on the LAN", "tcp:192.168.1.1:22"),
    ("the host on docker0", "tcp:172.17.0.1:22"),
    ("the host on docker0, UDP", "udp:172.17.0.1:9999"),
)

# What a container cannot know: no range has it, and it is on no link of the container's. EGRESS_DENY is for it.
PUBLIC = (("the host's public address", "tcp:203.0.113.1:22"),)

INTERNET = (
    ("the internet", "tcp:203.0.113.10:443"),
    ("the internet, plain", "tcp:8.8.8.8:80"),
)

IPV6 = (
    ("IPv6 on the LAN", "tcp:[fd00:1::10]:80"),
    ("IPv6 on the internet", "tcp:[2001:db8:1::10]:443"),
    ("AWS's metadata service over IPv6", "tcp:[fd00:ec2::254]:80"),
)

SPELLINGS = (
    ("in decimal", "tcp:167772165:80"),
    ("in hexadecimal", "tcp:0x0a000005:80"),
    ("in octal", "tcp:012.0.0.05:80"),
    ("with parts left out", "tcp:10.5:80"),
    ("mapped into IPv6", "tcp:[::ffff:10.0.0.5]:80"),
    ("the metadata service in decimal", "tcp:2852039166:80"),
    ("the metadata service mapped into IPv6", "tcp:[::ffff:a9fe:a9fe]:80"),
)


def rows(pairs: tuple[tuple[str, str], ...], expected: str) -> list[Row]:
    """Targets of which all are expected to be the same."""
    return [Row(what, target, expected) for what, target in pairs]


def gateways(stack: Stack) -> tuple[tuple[str, str], ...]:
    """The host, on the bridges of a deployment."""
    return (
        ("the gateway of the tunnel", f"tcp:{stack.net}.1:22"),
        ("the gateway of the tunnel, UDP", f"udp:{stack.net}.1:9999"),
        ("the gateway of the monitoring", f"tcp:{stack.net}.33:22"),
    )


def beside(stack: Stack) -> tuple[tuple[str, str], ...]:
    """Who else is on the proxy's networks."""
    return (
        ("the tunnel", f"tcp:{stack.tunnel}:80"),
        ("the tunnel, UDP", f"udp:{stack.tunnel}:9999"),
        ("who is beside vLLM", f"tcp:{stack.net}.20:80"),
        ("vLLM on another port", f"tcp:{stack.vllm}:9999"),
        ("vLLM on its port, UDP", f"udp:{stack.vllm}:9999"),
        ("who is on the monitoring network", f"tcp:{stack.net}.36:80"),
    )
