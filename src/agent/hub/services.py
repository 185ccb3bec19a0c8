"""The hub's parts, as its HTTP handlers find them."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis.asyncio import Redis

from agent.hub.activity import Activity
from agent.hub.beats import Beats
from agent.hub.catalogue import Catalogue
from agent.hub.index import IndexProcess
from agent.hub.live import Live
from agent.hub.reconciler import Reconciler
from agent.hub.signing import Signing


@dataclass(frozen=True)
class Services:
    """`app.state.services`."""

    catalogue: Catalogue
    activity: Activity
    reconciler: Reconciler | None
    """None where the hub has no queue server: then it only shows and records."""
    redis: Redis | None
    """The queue server."""
    index: IndexProcess
    live: Live
    """Who listens to records' progress."""
    signing: Signing | None = None
    """None where no object store is set."""
    beats: Beats = field(default_factory=Beats)
    """Which workers beat."""

    def poke(self) -> None:
        """Something new may be owed."""
        if self.reconciler is not None:
            self.reconciler.poke()
