"""What a cgroup leaves of the machine, by files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from agent import budget
from agent.lanes import lanes_for
from agent.settings import load_settings

MACHINE = float(budget.machine_cores())
TOTAL = psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, MACHINE, TOTAL),
        ({"cpu.max": "50000 100000\n", "memory.max": "1073741824\n"}, 0.5, 2**30),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, MACHINE, TOTAL),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.25, TOTAL),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, MACHINE, TOTAL),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE, TOTAL),
        ({"memory/memory.limit_in_bytes": "536870912\n"}, MACHINE, 2**29),
        ({"cpu.max": "100000000 100000\n"}, MACHINE, TOTAL),
        ({"cpu.max": "\n", "memory.max": "much\n"}, MACHINE, TOTAL),
    ],
)
def test_the_budget_is_the_machines_or_what_the_cgroup_leaves(
    tmp_path: Path, files: dict[str, str], cores: float, memory: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "ascii")
    assert budget.cores(tmp_path) == cores
    assert budget.memory(tmp_path) == memory


def test_cpu_slots_are_the_effective_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_LANE_ANALYZE_CONCURRENCY", "50")
    monkeypatch.setenv("WORKER_MAX_JOBS", "3")
    found = budget.lanes(load_settings(), lanes_for())
    assert {lane.lane: lane.effective for lane in found if lane.cpu} == {"analyze": 3, "fingerprint": 2}
