"""What an operator decides about documents: where they may come from, how large they may be, who reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.documents.addresses import Network, networks_of
from pipelines.documents.fetch import FetchLimits
from pipelines.documents.mineru import MinerU, Tier

PREFIX = "PHAZE_DOCUMENT_"


@dataclass(frozen=True)
class RouterSettings:
    """What an operator decides. `roots`: folders below which local documents may lie; none: no local ones."""

    roots: tuple[Path, ...] = ()
    networks: tuple[Network, ...] = ()
    limits: FetchLimits = field(default_factory=FetchLimits)
    most_pages: int = 500
    mineru: MinerU | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> RouterSettings:
        """From an environment. Raises ValueError, which names the variable."""
        most_mb, pages = (_number(variables, name, usual) for name, usual in (("MAX_MB", 100), ("MAX_PAGES", 500)))
        try:
            networks = networks_of(variables.get(f"{PREFIX}NETWORKS", ""))
        except ValueError as error:
            raise ValueError(f"{PREFIX}NETWORKS: {error}") from None
        roots = [Path(part) for part in variables.get(f"{PREFIX}ROOTS", "").split(os.pathsep) if part]
        url = variables.get("PHAZE_MINERU_URL")
        reader = MinerU(url, tier=_tier(variables)) if url else None
        return cls(tuple(roots), networks, FetchLimits(bytes=most_mb << 20), pages, reader)


def _number(variables: Mapping[str, str], name: str, usual: int) -> int:
    text = variables.get(PREFIX + name) or str(usual)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{PREFIX}{name}={text} is no whole number above 0")
    return int(text)


def _tier(variables: Mapping[str, str]) -> Tier | None:
    tiers: dict[str, Tier] = {name: name for name in ("flash", "basic", "standard", "advanced")}
    text = variables.get("PHAZE_MINERU_TIER") or None
    if text is not None and text not in tiers:
        raise ValueError(f"PHAZE_MINERU_TIER={text} is no tier; the tiers are {', '.join(tiers)}")
    return None if text is None else tiers[text]
