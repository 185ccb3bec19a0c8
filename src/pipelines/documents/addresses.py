"""Which addresses of the network a stranger's URL may lead to: public ones, and what the operator allows besides."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

TRANSLATED: tuple[Network, ...] = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "::/96",  # IPv4-compatible, RFC 4291 2.5.5.1
        "::ffff:0:0/96",  # IPv4-mapped, RFC 4291 2.5.5.2
        "::ffff:0:0:0/96",  # IPv4-translated, RFC 2765
        "64:ff9b::/96",  # NAT64, RFC 6052
        "64:ff9b:1::/48",  # NAT64 for local use, RFC 8215
        "2001::/32",  # Teredo, RFC 4380
        "2002::/16",  # 6to4, RFC 3056
    )
)
"""An IPv4 address inside an IPv6 one: what it leads to is the translator's choice. No public server is named so."""

NOT_PUBLIC: tuple[Network, ...] = (
    ipaddress.IPv4Network("100.64.0.0/10"),  # carrier-grade NAT, RFC 6598
    ipaddress.IPv4Network("192.88.99.0/24"),  # 6to4 relays, RFC 7526
    ipaddress.IPv6Network("fec0::/10"),  # site-local, RFC 3879
)
"""What `is_global` does not rule out in every Python from 3.11 on."""


def is_public(address: Address) -> bool:
    """Whether the address is one of the internet's own servers: by IANA's registries of special-purpose addresses
    (RFC 6890), and no group (multicast), translation, or address with a zone."""
    if getattr(address, "scope_id", None) or not address.is_global:
        return False
    if address.is_multicast or address.is_unspecified or address.is_reserved:
        return False
    return not any(address in network for network in (*TRANSLATED, *NOT_PUBLIC) if network.version == address.version)


def may_reach(address: Address, allowed: Iterable[Network]) -> bool:
    """Whether a document may be fetched from there. `allowed` are the operator's exceptions, taken to the letter: a
    mapped address is in an IPv6 network, not in the IPv4 one that it maps."""
    return is_public(address) or any(address in network for network in allowed if network.version == address.version)


def networks_of(text: str) -> tuple[Network, ...]:
    """`10.0.0.0/8, fd00::/8` as networks. Raises ValueError, which names the part that is none."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
