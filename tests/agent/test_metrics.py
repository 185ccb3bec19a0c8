"""What a worker counts is what happened, under names that Prometheus takes."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from agent import metrics
from agent.errors import ConfigError
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from pipelines.errors import RecordNotFoundError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def values(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The samples of one name, by the values of `labels`."""
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


async def test_each_run_is_counted_by_what_came_of_it(redis: Redis) -> None:
    async def counted(_context: Any, *, how: str) -> str:
        if how == "gone":
            raise RecordNotFoundError("gone")
        if how == "fails":
            raise OSError("not now")
        return "done"

    port = free_port()
    metrics.serve("127.0.0.1", port)
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    worker = LaneWorker(queue, [("counted", counted)], lane="io", concurrency=3)
    starting = asyncio.create_task(worker.start())
    for number, how in enumerate(["fine", "fine", "gone", "fails"]):
        await queue.enqueue("counted", key=f"counted:{number}", how=how)
    await queue.enqueue("nobody-knows-it", key="other:1")
    wanted = {("counted", "done"): 2, ("counted", "dead-letter"): 1, ("counted", "retried"): 1}
    async with httpx.AsyncClient() as client, asyncio.timeout(20):
        while True:
            text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            runs = values(text, "phaze_runs_total", "task", "outcome")
            if runs.items() >= wanted.items() and runs.get(("unknown", "quarantined"), 0) >= 1:
                break
            await asyncio.sleep(0.05)
    worker.event.set()
    await starting
    assert values(text, "phaze_slots", "lane")[("io",)] == 3
    assert values(text, "phaze_in_flight", "lane")[("io",)] in range(4)
    assert values(text, "phaze_wait_seconds_count", "task")[("counted",)] == 4
    assert values(text, "phaze_run_seconds_count", "task")[("counted",)] == 4
    assert values(text, "phaze_script_seconds_count", "script")[("step",)] >= 2


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 10_000)), max_size=50))
def test_what_is_observed_by_task_is_what_the_librarys_histogram_would_show(observed: list[tuple[str, float]]) -> None:
    ours, theirs = metrics.TaskSeconds("t_seconds", "x", registry=CollectorRegistry()), CollectorRegistry()
    histogram = Histogram("t_seconds", "x", ("task",), buckets=metrics.MINUTES, registry=theirs)
    for task, seconds in observed:
        ours.observe(task, seconds)
        histogram.labels(task).observe(seconds)
    names = "t_seconds_bucket", "t_seconds_count", "t_seconds_sum"
    shown = [sample for family in ours.collect() for sample in family.samples]
    expected = [sample for family in theirs.collect() for sample in family.samples if sample.name in names]
    assert {(s.name, *s.labels.items()): s.value for s in shown} == pytest.approx(
        {(s.name, *s.labels.items()): s.value for s in expected}
    )


def test_names_follow_the_rules_of_prometheus() -> None:
    for family in metrics.REGISTRY.collect():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert family.documentation
        if family.name.startswith("phaze"):
            assert not re.search(r"(_total|_count|_sum|_bucket)$", family.name), "the client adds these"
            assert not re.search(r"milli|_ms\b|minutes", family.name), "base units"


def test_a_port_in_use_stops_the_start_with_one_line_that_names_the_variable(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"PHAZE_METRICS_PORT={port} cannot be used"):
            metrics.serve("127.0.0.1", port)
