"""What this process counts, in Prometheus' words, and the port where it is asked for.

A worker counts what it does itself; how much waits on a queue is counted by the hub alone, once for all workers.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from itertools import accumulate

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from agent.errors import ConfigError

log = structlog.get_logger()

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

MINUTES = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800, 7200)
"""Bounds in seconds from a database call to an analysis of a night's recording."""

RUNS = Counter(
    "phaze_runs",
    "Runs of jobs that came to an end, by what came of them: done, partial, rejected, skipped, answered from the "
    "marker, retried, parked, released, dead-letter, quarantined, aborted, stale",
    ("task", "outcome"),
    registry=REGISTRY,
)


class TaskSeconds(Collector):
    """A histogram by task, observed on the event loop alone: without the library's locks it costs a tenth of theirs."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._name, self._documentation = name, documentation
        self._tasks: dict[str, tuple[list[int], list[float]]] = {}
        registry.register(self)

    def observe(self, task: str, seconds: float) -> None:
        """Count one."""
        if task not in self._tasks:
            self._tasks[task] = [0] * (len(MINUTES) + 1), [0.0]
        counts, total = self._tasks[task]
        counts[bisect_left(MINUTES, seconds)] += 1
        total[0] += seconds

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for, in the thread of whoever asks for the page."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=("task",))
        for task, (counts, total) in list(self._tasks.items()):
            bounds = [*(str(float(bound)) for bound in MINUTES), "+Inf"]
            family.add_metric((task,), list(zip(bounds, accumulate(counts), strict=True)), total[0])
        yield family


RUN_SECONDS = TaskSeconds("phaze_run_seconds", "How long a run took, from its claim to its settling")
WAIT_SECONDS = TaskSeconds("phaze_wait_seconds", "How long a job waited from when it was due to its claim")
SLOTS = Gauge("phaze_slots", "Jobs that this worker runs at a time: its lane's capacity", ("lane",), registry=REGISTRY)
IN_FLIGHT = Gauge(
    "phaze_in_flight", "Jobs that this worker runs now; over phaze_slots: saturation", ("lane",), registry=REGISTRY
)
TAKEOVERS = Counter("phaze_takeovers", "Jobs of dead workers that this one put back on the queue", registry=REGISTRY)
GIVEN_BACK = Counter(
    "phaze_claims_given_back", "Jobs whose claim was never heard of, put back on the queue", registry=REGISTRY
)
STEP_FAILURES = Counter("phaze_step_failures", "Round trips to the queue server that failed", registry=REGISTRY)
SCRIPT_SECONDS = Histogram(
    "phaze_script_seconds",
    "Round trip of one script, by script",
    ("script",),
    buckets=(0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1, 5),
    registry=REGISTRY,
)
CHILDREN_ENDED = Counter(
    "phaze_children_ended",
    "Child processes that ended under a job, by why: died, memory, timeout",
    ("why",),
    registry=REGISTRY,
)
TOKENS = Counter(
    "phaze_llm_tokens",
    "Tokens that calls to models came to, failed runs' too, by kind: prompt, completion",
    ("task", "kind"),
    registry=REGISTRY,
)
DELIVERED = Counter("phaze_results_delivered", "Results that the control plane acknowledged", registry=REGISTRY)


# Finding a labelled child costs more than counting with it.
runs = cache(RUNS.labels)


@contextlib.contextmanager
def timed(script: str) -> Iterator[None]:
    """Observe how long the body takes."""
    began = time.perf_counter()
    try:
        yield
    finally:
        SCRIPT_SECONDS.labels(script).observe(time.perf_counter() - began)


def serve(host: str, port: int) -> None:
    """Answer GET /metrics on `port`, from a thread of its own: a busy event loop does not silence it."""
    try:
        start_http_server(port, host, registry=REGISTRY)
    except OSError as error:
        raise ConfigError(
            f"PHAZE_METRICS_PORT={port} cannot be used on {host} ({error.strerror}); choose a free port, or unset it"
        ) from None
    log.info("metrics.serving", host=host, port=port)
