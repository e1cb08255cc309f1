"""That no range of ``ranges.txt`` is without a probe, nor lost from it. Needs no root."""

from ipaddress import ip_address, ip_network

from tests.firewall.egress import ranges
from tests.firewall.representatives import REPRESENTATIVES


def test_every_range_has_a_representative() -> None:
    """The table here and the file have the same ranges: none is without its probe, none is lost."""
    assert sorted(ranges(4) + ranges(6)) == sorted(REPRESENTATIVES)


def test_representatives_are_in_their_ranges() -> None:
    """An address that is in another range would prove nothing about this one."""
    for cidr, address in REPRESENTATIVES.items():
        assert ip_address(address) in ip_network(cidr)
