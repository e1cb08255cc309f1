"""An address of each range, and those at its edges: what the tests send to."""

from ipaddress import ip_address, ip_network

REPRESENTATIVES = {
    "0.0.0.0/8": "0.1.2.3",
    "10.0.0.0/8": "10.0.0.5",
    "100.64.0.0/10": "100.100.100.200",  # where a cloud has its metadata
    "127.0.0.0/8": "127.99.0.1",
    "168.63.129.16/32": "168.63.129.16",
    "169.254.0.0/16": "169.254.169.254",  # where most have it
    "172.16.0.0/12": "172.16.3.4",
    "192.0.0.0/24": "192.0.0.192",  # and another
    "192.88.99.0/24": "192.88.99.1",
    "192.168.0.0/16": "192.168.1.10",
    "198.18.0.0/15": "198.18.0.1",
    "224.0.0.0/4": "239.1.2.3",
    "240.0.0.0/4": "240.0.0.1",
    "::/96": "::10.0.0.5",
    "::ffff:0.0.0.0/96": "::ffff:10.0.0.5",
    "::ffff:0:0:0/96": "::ffff:0:10.0.0.5",
    "64:ff9b::/96": "64:ff9b::10.0.0.5",
    "64:ff9b:1::/48": "64:ff9b:1::10.0.0.5",
    "100::/64": "100::1",
    "2001::/23": "2001:1::1",  # whose owner opens ports on the home's router (RFC 7723)
    "2002::/16": "2002:a00:5::1",
    "3fff::/20": "3fff::1",
    "5f00::/16": "5f00::1",
    "fc00::/7": "fd00:ec2::254",  # metadata over IPv6
    "fe80::/10": "fe80:1::1",  # not in fe80::/64, which is on the link and refused for that
    "fec0::/10": "fec0::10",
    "ff00::/8": "ff02::4242",
}
"""An address of each range. The LAN has it, but for those that have no meaning there (below)."""

MAPPED = "::ffff:0.0.0.0/96"
"""No ordinary socket sends to these: the kernel makes IPv4 of them. A raw one does."""

MULTICAST = ("224.0.0.0/4", "ff00::/8")
"""No TCP; the neighbour on the bridge has joined the groups."""

LINK_LOCAL = "fe80::/10"
"""The neighbour on the bridge."""

LOOPBACK = "127.0.0.0/8"
"""The host's own: a socket that is bound to an interface sends there, and hosts let it in where
``route_localnet`` is set, as some orchestrators do."""

LONE = (MAPPED, LINK_LOCAL, LOOPBACK, *MULTICAST)
ROUTED = [cidr for cidr in REPRESENTATIVES if cidr not in LONE]

SPECIAL = [ip_network(cidr) for cidr in REPRESENTATIVES]


def bracketed(address: str) -> str:
    """As it is written before a port."""
    return f"[{address}]" if ":" in address else address


def edges(cidr: str) -> tuple[list[str], list[str]]:
    """The first and last address of a range, and those just outside that are in no other."""
    net = ip_network(cidr)
    first, last = net.network_address, net.broadcast_address
    inside = [str(one) for one in dict.fromkeys((first, last)) if not one.is_unspecified]
    inside = [one for one in inside if one != "255.255.255.255"]  # broadcast: no TCP
    beside = [
        number for number in (int(first) - 1, int(last) + 1) if 0 <= number < 1 << net.max_prefixlen
    ]
    make = type(first)
    outside = [one for one in map(str, map(make, beside)) if not _special(one)]
    return inside, outside


def _special(address: str) -> bool:
    return any(ip_address(address) in net for net in SPECIAL)


INSIDE = [(cidr, address) for cidr in ROUTED for address in edges(cidr)[0]]
OUTSIDE = [(cidr, address) for cidr in REPRESENTATIVES for address in edges(cidr)[1]]
