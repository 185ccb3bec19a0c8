"""How often one may guess a password: five times at once, then at ever longer intervals."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from dataclasses import dataclass

FREE = 5
"""Failures that cost no wait."""

LONGEST = 60.0
"""Seconds between two guesses at most: 1, 2, 4, 8, 16, 32, 60, 60 ..."""

FORGOTTEN = 900.0
"""Seconds after which a network's failures are forgotten."""

clock = time.monotonic

NETWORKS = 10_000
"""Networks that are remembered at most; the one that failed least lately makes room."""


@dataclass
class _Failures:
    count: int
    last: float
    free_at: float


class Attempts:
    """Failures by network: an IPv4 address, or the /64 of an IPv6 one, of which each client has very many.

    What is refused for now is not looked at at all: else the wait would slow down only who guesses honestly.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until this client may try again; 0: now."""
        found = self._failures.get(network_of(address))
        return 0.0 if found is None else max(0.0, found.free_at - clock())

    def failed(self, address: str) -> None:
        """A wrong guess."""
        network, now = network_of(address), clock()
        found = self._failures.pop(network, None)
        count = 1 if found is None or now - found.last > FORGOTTEN else found.count + 1
        pause = min(2.0 ** min(count - FREE, 10), LONGEST) if count >= FREE else 0.0
        self._failures[network] = _Failures(count, now, now + pause)
        if len(self._failures) > NETWORKS:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """A right one: what came before it is forgotten."""
        self._failures.pop(network_of(address), None)


def network_of(address: str) -> str:
    """Whom an address stands for; what is no IP address (a Unix socket's peer) stands for itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
