"""One lane -> one SAQ worker on the lane's own queue."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
import structlog
from redis.exceptions import RedisError
from saq.worker import Worker

from agent import budget, heap, logs, metrics, profile_models
from agent.cancelling import end
from agent.children import Children
from agent.compose_variables import stop_grace
from agent.desk import Desk
from agent.documents import libraries
from agent.errors import ConfigError
from agent.forms import names_in
from agent.health import must_be_writable
from agent.heartbeat import Heartbeat
from agent.lanes import CPU_LANES, DOCUMENT_LANES, lanes_for, load_checked, queue_name, tasks_of
from agent.phoenix.billing import ApiKeyManager
from agent.phoenix.boot import wait_for_server
from agent.phoenix.breaker import Breakers
from agent.phoenix.bridge import Bridge
from agent.phoenix.execution import Execution
from agent.phoenix.paying import Paying
from agent.phoenix.queue import LaneQueue
from agent.phoenix.relay import Relay
from agent.phoenix.worker import LaneWorker
from agent.processors import BaseProcessor
from agent.processors.task import task_of
from agent.redaction import mask_output
from agent.redis_client import connect
from agent.settings import SECRETS, WORKER_MARGIN, Settings, load_settings, unknown_variables, variable
from agent.user_children import UserChildren
from pipelines.files import ssh

if TYPE_CHECKING:
    from agent.lanes import Task
    from agent.phoenix.endings import Result

log = structlog.get_logger()

THREAD_PINS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
"""One slot is one core: child processes inherit these before any numeric library loads."""


class AgentWorker:
    """Everything one lane needs in one process: queue, lane worker, child processes, relay, heartbeat."""

    def __init__(self, settings: Settings) -> None:
        address = settings.redis_address
        if address is None:
            raise ConfigError(
                "PHAZE_REDIS_URL is not set; give the address of a Redis or Valkey server, or run `phaze up`"
            )
        if settings.agent_token is None:
            raise ConfigError(
                "PHAZE_AGENT_TOKEN is not set; give the agent's token, or a file with PHAZE_AGENT_TOKEN_FILE"
            )
        if settings.agent_lane in DOCUMENT_LANES and (lacking := libraries.missing()):
            raise ConfigError(
                f"PHAZE_AGENT_LANE={settings.agent_lane} wants {', '.join(lacking)}, not installed; {libraries.REMEDY}"
            )
        self.settings = settings
        self.lane = settings.agent_lane
        self.concurrency = settings.concurrency(self.lane)
        loaded = {name: load_checked(name) for name in tasks_of(self.lane)}
        self.redis = connect(address)
        self.queue = LaneQueue(self.redis, name=queue_name(settings.agent_id, self.lane))
        self.breakers = Breakers(self.queue.scripts, self.redis)
        api_keys = ApiKeyManager.of(settings, self.redis, self.breakers)
        self.processors: dict[str, BaseProcessor] = {
            name: found(name, self.redis, api_keys) for name, found in loaded.items() if isinstance(found, type)
        }
        self.functions: dict[str, Task] = {
            name: task_of(self.processors[name]) if isinstance(found, type) else found for name, found in loaded.items()
        }
        self.children = Children(self.concurrency, memory_mb=settings.child_memory_mb, max_jobs=settings.child_max_jobs)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        token = settings.agent_token.get_secret_value()
        self.relay = Relay(
            self.redis, self.queue.name, hub_url=settings.hub_url, agent_id=settings.agent_id, token=token
        )
        self.desk = Desk(settings, token)
        self.paying = Paying(
            api_keys,
            UserChildren(
                self.concurrency,
                memory_mb=settings.child_memory_mb,
                variables=names_in(settings.key_variables),
                more=names_in(settings.key_environment),
            ),
            settings.llm_url,
        )
        self.heartbeat = Heartbeat(settings, self.queue, token) if settings.beats else None
        self._worker = LaneWorker(
            self.queue,
            functions=[(name, self._runner(function)) for name, function in self.functions.items()],
            id=self.name,
            lane=self.lane or "all",
            grace=settings.shutdown_grace,
            outbox=True,
            timeout_of=lambda job: 0.0,  # the task's policy says so, whatever a producer left in the job
            health=settings.health_file,
            concurrency=self.concurrency,
            cancellation_hard_deadline_s=5.0,
            metadata={"lane": self.lane, "agent": settings.agent_id, "phoenix": True},
            startup=self._announce,
        )
        # The base queue is only ever drained: nothing new comes to it from streams.
        self.bridges = [self._bridge(processor) for processor in self.processors.values() if self.lane is not None]

    def _bridge(self, processor: BaseProcessor) -> Bridge:
        return Bridge(
            self.queue,
            processor.service_name,
            lane=self.lane or "",
            slots=self.concurrency,
            claimed=self._worker.claimed,
            drops_pages=processor.last_to_read_pages,
        )

    async def _announce(self, _context: Any) -> None:
        """Log the start line, once the worker hears signals: the lane, its slots, whether the ceiling clamped them."""
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
        self._warn_of_misfits()

    def _warn_of_misfits(self) -> None:
        """Of more CPU slots than cores, and of a grace that Compose does not grant."""
        documents, cores = self.lane in DOCUMENT_LANES, budget.cores()
        beside = budget.lanes(self.settings, lanes_for(files=not documents, documents=documents))
        each = {lane.lane: lane.effective for lane in beside if lane.cpu}
        if self.lane in CPU_LANES and (slots := sum(each.values())) > cores:
            most = max(each, key=lambda lane: each[lane])
            lower = f"lower {variable(f'lane_{most}_concurrency')}" if each[most] > 1 else "give them more cores"
            log.warning("lanes.more_slots_than_cores", slots=slots, cores=cores, **each, meaning="they share the cores",
                        remedy=f"{lower} if it matters")  # fmt: skip
        grace, killed_after = self.settings.shutdown_grace, stop_grace()
        if killed_after is not None and killed_after < grace + WORKER_MARGIN:
            log.warning("worker.killed_too_soon", stop_grace=killed_after, shutdown_grace=grace,
                        meaning="a stopping worker is killed before it has handed over what it runs",
                        remedy=f"set PHAZE_STOP_GRACE={grace + WORKER_MARGIN:.0f}s or more, or lower "
                               "PHAZE_SHUTDOWN_GRACE")  # fmt: skip

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT; then finish or hand back what runs, and deliver what is left."""
        heap.settle()
        background: list[asyncio.Task[None]] = []
        try:
            if await self._finds_its_server():
                background.append(asyncio.create_task(self.relay.run(), name="relay"))
                background += [asyncio.create_task(bridge.run(), name="bridge") for bridge in self.bridges]
                if self.heartbeat is not None:
                    background.append(asyncio.create_task(self.heartbeat.run(), name="heartbeat"))
                await self._worker.start()
        finally:
            _on_signals(lambda: None)  # a second one, as a group of processes gets, must not end what is being finished
            await end(background)
            await self.children.close()
            if background:
                await self.relay.drain(timeout=5.0)
            await self.relay.close()
            await self.desk.close()
            await self.paying.api_keys.close()
            if self.heartbeat is not None:
                await self.heartbeat.close()
            with contextlib.suppress(RedisError, OSError):
                await self.queue.disconnect()
        log.info("worker.stopped", lane=self.lane or "all", delivered=self.relay.delivered)

    async def _finds_its_server(self) -> bool:
        """Wait for the server; False if a signal came before it did. Raises ConfigError for one that cannot be used."""
        stop = asyncio.Event()
        _on_signals(stop.set)
        looking = wait_for_server(self.queue, streams=bool(self.bridges), tasks=self.functions)
        found = asyncio.create_task(looking, name="server")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait([found, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(task for task in (found, stopped) if not task.done())
        if found.done() and not found.cancelled():
            found.result()
        return not stop.is_set()

    def _runner(self, function: Task) -> Callable[..., Awaitable[Result]]:
        async def run(context: Any, /, **arguments: Any) -> Result:
            execution = Execution(
                context["run"],
                function=function,
                queue=self.queue,
                children=self.children,
                breakers=self.breakers,
                worker=self.name,
                desk=self.desk,
                paying=self.paying,
            )
            return await execution.run(arguments)

        return run


DOCUMENTS = tuple(n for n in Settings.model_fields if n.startswith(("document_", "mineru_")) or n == "llm_url")
"""Settings that the document lanes read from the environment (`pipelines.documents.router_settings`)."""


def _on_signals(do: Callable[[], object]) -> None:
    """Until the worker's `start` sets its own, and once it has taken them away."""
    for number in Worker.SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, do)


def pin_threads(lane: str | None) -> None:
    """Set the thread pins for child processes: on CPU lanes, and in all-mode, which runs their tasks too."""
    if lane is None or lane in CPU_LANES:
        os.environ.update(THREAD_PINS)


@click.command()
def worker() -> None:
    """Run one lane's worker until a signal; PHAZE_AGENT_LANE names the lane, unset means the base queue."""
    settings = load_settings()
    for name in SECRETS:  # programs that read strangers' files get none of them
        os.environ.pop(variable(name), None)
    mask_output()
    logs.configure(settings.log_level, settings.log_format, lane=settings.agent_lane or "all", agent=settings.agent_id)
    for name, near in unknown_variables():
        log.warning("settings.unknown_variable", name=name, did_you_mean=near)
    if "process_file" in tasks_of(settings.agent_lane) and (wanted := profile_models.missing(settings)) is not None:
        log.warning("models.missing", detail=wanted, remedy=profile_models.REMEDY)
    if "push_file" in tasks_of(settings.agent_lane):
        ssh.sweep()
    pin_threads(settings.agent_lane)
    must_be_writable(settings.health_file)
    if settings.ffmpeg is not None and shutil.which(settings.ffmpeg) is None:
        raise ConfigError(f"PHAZE_FFMPEG={settings.ffmpeg} is not a program; unset it or name an ffmpeg 5 or newer")
    if settings.metrics_port is not None:
        metrics.serve(settings.metrics_host, settings.metrics_port)
    os.environ[variable("data_dir")] = str(settings.data_dir)
    for name in ("ffmpeg", "move_roots", *DOCUMENTS):
        if (value := getattr(settings, name)) is not None:
            os.environ[variable(name)] = str(value)
    os.environ[variable("models_dir")] = str(settings.models_folder)
    asyncio.run(AgentWorker(settings).run())
