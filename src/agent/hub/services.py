"""The hub's parts, as its HTTP handlers find them."""

from __future__ import annotations

from dataclasses import dataclass

from agent.hub.activity import Activity
from agent.hub.catalogue import Catalogue
from agent.hub.index import IndexProcess
from agent.hub.reconciler import Reconciler


@dataclass(frozen=True)
class Services:
    """`app.state.services`."""

    catalogue: Catalogue
    activity: Activity
    reconciler: Reconciler | None
    """None where the hub has no queue server: then it only shows and records."""
    index: IndexProcess

    def poke(self) -> None:
        """Something new may be owed."""
        if self.reconciler is not None:
            self.reconciler.poke()
