"""The scripts name a few keys themselves; they are the ones that keys.py builds."""

from __future__ import annotations

import pytest

from agent.phoenix import keys
from agent.phoenix.scripts import PARTS, text

ALL = "".join(text(script) for script in PARTS)


@pytest.mark.parametrize(
    "named",
    [
        keys.TOKENS,
        keys.PAUSED,
        str(keys.FAR_FUTURE),
        keys.lock_key("", "").rstrip(":"),
        keys.marker_key("", "").rstrip(":"),
        keys.parked_key(""),
        keys.ended_key(""),
        keys.PROBES,
        keys.JOB_PREFIX,
    ],
)
def test_a_key_that_a_script_names_is_the_one_that_is_built_here(named: str) -> None:
    assert f"'{named}" in ALL or f"^{named}" in ALL or f" {named}" in ALL
