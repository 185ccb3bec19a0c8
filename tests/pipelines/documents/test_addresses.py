"""Which addresses a document may be fetched from."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.documents.addresses import is_public, may_reach, networks_of

# fmt: off
NOT_PUBLIC = (
    "127.0.0.1", "127.8.9.10", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.127.255.255", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.7",
    "203.0.113.7", "224.0.0.1", "224.0.1.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "192.88.99.1",
    "::1", "::", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8",
    "64:ff9b::8.8.8.8", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2001::1", "2002:7f00:1::", "2002:808:808::",
    "fe80::1", "fe80::1%2", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1", "100::1"
)
# fmt: on


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_what_is_not_the_public_internets_is_refused(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))
    assert not may_reach(ipaddress.ip_address(text), [])


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "1.1.1.1", "93.184.215.14", "100.63.255.255", "100.128.0.1", "2606:4700::1111"]
)
def test_public_addresses_are_allowed(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_the_operators_networks_are_allowed_and_nothing_beside_them() -> None:
    allowed = networks_of("10.1.0.0/16, fd00::/8")
    assert may_reach(ipaddress.ip_address("10.1.2.3"), allowed)
    assert may_reach(ipaddress.ip_address("fd00::7"), allowed)
    assert not may_reach(ipaddress.ip_address("10.2.0.1"), allowed)
    assert not may_reach(ipaddress.ip_address("::ffff:10.1.2.3"), allowed)


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        networks_of("10.1.0.0/16, 10.0.0.0/99")


@given(st.ip_addresses(v=4))
def test_an_address_inside_another_is_never_public(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    for around in ("::", "::ffff:0:0", "64:ff9b::"):
        assert not is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address(around)) + number))
    assert not is_public(ipaddress.IPv6Address((0x2002 << 112) + (number << 80)))


@given(st.ip_addresses())
def test_what_python_calls_special_is_never_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    special = address.is_private or address.is_loopback or address.is_link_local or address.is_reserved
    if special or address.is_multicast or address.is_unspecified:
        assert not is_public(address)
