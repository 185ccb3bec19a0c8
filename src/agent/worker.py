"""One lane -> one SAQ worker on the lane's own queue."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
import structlog
from redis.exceptions import RedisError
from saq import Worker
from saq.job import Job

from agent import logs
from agent.children import Children
from agent.errors import ConfigError
from agent.heartbeat import Heartbeat
from agent.lanes import CPU_LANES, load_task, queue_name, record_id_of, tasks_of
from agent.phoenix.execution import Execution
from agent.phoenix.queue import KEEPALIVE, LaneQueue
from agent.phoenix.relay import Relay
from agent.redis_client import connect
from agent.settings import Settings, load_settings, unknown_variables, variable
from agent.throttle import OncePer

if TYPE_CHECKING:
    from agent.lanes import Task

log = structlog.get_logger()

THREAD_PINS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
"""One slot is one core: child processes inherit these before any numeric library loads."""

SWEEP = 10
"""Seconds between looks for jobs whose worker died."""

DEQUEUE_TIMEOUT = 5.0
"""Seconds of one blocking wait for a job; below the connection's reply time-out."""

PROGRESS_PERIOD = 1.0
"""Seconds between two writes of a job's progress."""


class SlotWorker(Worker[Any]):
    """SAQ's worker with a stop that waits for running jobs only, as long as they run and `grace` seconds at most."""

    def __init__(self, queue: LaneQueue, *, grace: float, **options: Any) -> None:
        super().__init__(queue, **options)
        self._lane_queue = queue
        self._grace = grace

    async def stop(self) -> None:
        """Take no more jobs, let running ones finish, hand the rest back. Repeated calls wait for the first."""
        self.event.set()
        for slot in list(self._lane_queue.waiting):
            slot.cancel()
        running = [context["task"] for context in self.job_task_contexts.values()]
        if running and not self._stopped:
            log.info("worker.stopping", running=len(running), grace=self._grace)
            await asyncio.wait(running, timeout=self._grace)
            await asyncio.sleep(0.2)  # a finished job still has to be acknowledged
        await super().stop()


class LaneWorker:
    """Everything one lane needs in one process: queue, SAQ worker, child processes, relay, heartbeat."""

    def __init__(self, settings: Settings) -> None:
        if settings.redis_url is None:
            raise ConfigError(
                "PHAZE_REDIS_URL is not set; give the address of a Redis or Valkey server, or run `phaze up`"
            )
        if settings.agent_token is None:
            raise ConfigError(
                "PHAZE_AGENT_TOKEN is not set; give the agent's token, or a file with PHAZE_AGENT_TOKEN_FILE"
            )
        self.settings = settings
        self.lane = settings.agent_lane
        self.concurrency = settings.concurrency(self.lane)
        self.functions = {name: load_task(target) for name, target in tasks_of(self.lane).items()}
        self.redis = connect(settings.redis_url)
        self.queue = LaneQueue(self.redis, name=queue_name(settings.agent_id, self.lane), functions=self.functions)
        self.children = Children(self.concurrency, memory_mb=settings.child_memory_mb, max_jobs=settings.child_max_jobs)
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        token = settings.agent_token.get_secret_value()
        self.relay = Relay(
            self.redis, self.queue.name, hub_url=settings.hub_url, agent_id=settings.agent_id, token=token
        )
        self.heartbeat = Heartbeat(settings, self.queue, token) if settings.beats else None
        self._worker = SlotWorker(
            self.queue,
            grace=settings.shutdown_grace,
            functions=[(name, self._runner(name, function)) for name, function in self.functions.items()],
            concurrency=self.concurrency,
            dequeue_timeout=DEQUEUE_TIMEOUT,
            timers={"sweep": SWEEP, "schedule": 1, "worker_info": 10, "abort": 1},
            cancellation_hard_deadline_s=5.0,
            metadata={"lane": self.lane, "agent": settings.agent_id},
        )

    def announce(self) -> None:
        """Log the start line: the lane, its slots, and whether the ceiling clamped them."""
        knob = self.settings.worker_max_jobs if self.lane is None else self.settings.lane_knob(self.lane)
        log.info(
            "worker.started",
            lane=self.lane or "all",
            queue=self.queue.name,
            tasks=sorted(self.functions),
            concurrency=self.concurrency,
            knob=knob,
            ceiling=self.settings.worker_max_jobs,
            clamped=self.concurrency < knob,
            heartbeat=self.heartbeat is not None,
        )

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT; then finish or hand back what runs, and deliver what is left."""
        self.announce()
        background = [asyncio.create_task(self.relay.run(), name="relay")]
        if self.heartbeat is not None:
            background.append(asyncio.create_task(self.heartbeat.run(), name="heartbeat"))
        try:
            await self._worker.start()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self.children.close()
            await self.relay.drain(timeout=5.0)
            await self.relay.close()
            if self.heartbeat is not None:
                await self.heartbeat.close()
            with contextlib.suppress(RedisError, OSError):
                await self.queue.disconnect()
            log.info("worker.stopped", lane=self.lane or "all", delivered=self.relay.delivered)

    def _runner(self, service: str, function: Task) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def run(context: Any, **arguments: Any) -> dict[str, Any]:
            job: Job = context["job"]
            execution = Execution(
                service=service,
                record_id=record_id_of(job.key),
                function=function,
                redis=self.redis,
                queue=self.queue.name,
                children=self.children,
                worker=self.name,
                attempts=job.attempts,
                on_progress=_Progress(job),
                on_settled=self.relay.wake,
            )
            log.info("job.claimed", task=service, record_id=execution.record_id, attempts=job.attempts)
            keepalive = asyncio.create_task(_keep_alive(job))
            try:
                return await execution.run(arguments)
            except Exception as error:
                log.warning(
                    "job.failed",
                    task=service,
                    record_id=execution.record_id,
                    attempts=job.attempts,
                    error=f"{type(error).__name__}: {error}",
                )
                raise
            finally:
                keepalive.cancel()
                await asyncio.gather(keepalive, return_exceptions=True)

        run.__qualname__ = service
        return run


class _Progress:
    """Writes a job's progress into the queue, once a second at most."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._due = OncePer(PROGRESS_PERIOD)

    async def __call__(self, fraction: float, note: str) -> None:
        if self._due():
            with contextlib.suppress(RedisError, OSError):
                await self._job.update(progress=fraction, meta={**self._job.meta, "note": note})


async def _keep_alive(job: Job) -> None:
    while True:
        await asyncio.sleep(KEEPALIVE)
        with contextlib.suppress(RedisError, OSError):
            await job.update()


def pin_threads(lane: str | None) -> None:
    """Set the thread pins for child processes: on CPU lanes, and in all-mode, which runs their tasks too."""
    if lane is None or lane in CPU_LANES:
        os.environ.update(THREAD_PINS)


@click.command()
def worker() -> None:
    """Run one lane's worker until a signal; PHAZE_AGENT_LANE names the lane, unset means the base queue."""
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format, lane=settings.agent_lane or "all", agent=settings.agent_id)
    for name, near in unknown_variables():
        log.warning("settings.unknown_variable", name=name, did_you_mean=near)
    pin_threads(settings.agent_lane)
    if settings.ffmpeg is not None:
        os.environ[variable("ffmpeg")] = settings.ffmpeg
    asyncio.run(LaneWorker(settings).run())
