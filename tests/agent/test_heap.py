"""What the collector of cycles looks at in a worker."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from agent import heap
import agent.phoenix.worker
heap.settle()
kept = gc.get_freeze_count()
assert kept > 10_000, kept
assert len(gc.get_objects()) < kept / 10
assert gc.get_threshold()[0] == heap.OBJECTS
"""


def test_what_was_imported_is_never_walked_again() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
