"""Whether the libraries that documents want are installed."""

from __future__ import annotations

import importlib.util

from agent.errors import StartError

REMEDY = "pip install 'phaze-agent[documents]'"


def missing() -> list[str]:
    """Those that are not."""
    return [name for name in ("pypdfium2", "pint", "rapidfuzz") if importlib.util.find_spec(name) is None]


def libraries_are_there() -> None:
    """Raises StartError, which names the remedy."""
    if missing():
        raise StartError(f"the libraries for documents are not installed; {REMEDY}")
