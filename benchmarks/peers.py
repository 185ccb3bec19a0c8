"""The job queues that are measured: how to send a job to each, and how to start its worker.

Each runs as its own documentation says, on the same server, in one worker process. A peer whose package the
environment lacks is left out. To add one: a class here and a line in PEERS.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from os import environ
from pathlib import Path
from typing import Any

from slots import record

URL = environ.get("BENCH_URL", "")
LOG = environ.get("BENCH_LOG", "")
"""The file that the worker's output goes to."""

QUEUE = "bench"


class Peer:
    """One system. `python`: the environment that it needs, because no one redis-py suits them all."""

    package = ""
    python = "main"
    promise = ""
    jobs = 10_000

    def worker_command(self, python: str, name: str) -> list[str]:
        """The command line of the worker; by default `run_worker` in a fresh process."""
        return [python, str(Path(__file__)), "worker", name]

    def run_worker(self) -> None:
        """Work until a signal."""
        raise NotImplementedError

    async def open(self) -> None:
        """Connect the producer."""

    async def send(self, i: int) -> None:
        """Enqueue the job whose body is `record(i)`."""
        raise NotImplementedError

    async def send_many(self, ids: Sequence[int]) -> None:
        """Enqueue many, in the way that the system offers for it."""
        await asyncio.gather(*(self.send(i) for i in ids))


class Saq(Peer):
    package = "saq"
    promise = "at least once; result kept"

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    def make_queue(self) -> Any:
        from saq import Queue

        return Queue.from_url(URL, name=QUEUE)

    async def open(self) -> None:
        self.queue = self.make_queue()
        await self.queue.connect()

    async def send(self, i: int) -> None:
        await self.queue.enqueue("noop", i=i)

    def make_worker(self, queue: Any) -> Any:
        from saq import Worker

        return Worker(queue, functions=[("noop", noop)], concurrency=self.concurrency)

    def run_loop(self, main: Any) -> None:
        import uvloop

        uvloop.run(main)

    def run_worker(self) -> None:
        async def main() -> None:
            queue = self.make_queue()
            await queue.connect()
            await self.make_worker(queue).start()

        self.run_loop(main())


async def noop(ctx: Any, *, i: int) -> None:
    """SAQ's task, and ours."""
    record(i)


class Ours(Saq):
    """Our queue and worker. `lean`: on asyncio's own event loop, as the package installs; SAQ's row has uvloop too."""

    package = "agent"

    def __init__(self, concurrency: int, *, outbox: bool = True, lean: bool = False) -> None:
        super().__init__(concurrency)
        self.outbox, self.lean = outbox, lean
        self.promise = "exactly once recorded; result kept" + (", outbox" if outbox else "")

    def make_queue(self) -> Any:
        from agent.phoenix.queue import LaneQueue
        from agent.redis_client import connect

        return LaneQueue(connect(URL), name=QUEUE)

    async def send(self, i: int) -> None:
        await self.queue.enqueue("noop", key=f"noop:{i}", i=i)

    def make_worker(self, queue: Any) -> Any:
        from agent import heap
        from agent.phoenix.worker import LaneWorker

        worker = LaneWorker(queue, [("noop", noop)], lane="bench", outbox=self.outbox, concurrency=self.concurrency)
        heap.settle()  # as `phaze worker` does
        return worker

    def run_loop(self, main: Any) -> None:
        from agent import logs

        logs.configure("info", "json", lane="bench", agent="bench")
        if self.lean:
            asyncio.run(main)
        else:
            super().run_loop(main)


class Arq(Peer):
    package = "arq"
    python = "arq"
    promise = "at least once; result kept"

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    async def open(self) -> None:
        from arq import create_pool
        from arq.connections import RedisSettings

        self.pool = await create_pool(RedisSettings.from_dsn(URL))

    async def send(self, i: int) -> None:
        await self.pool.enqueue_job("noop", i)

    def run_worker(self) -> None:
        import uvloop
        from arq.connections import RedisSettings
        from arq.worker import Worker, func

        async def body(ctx: Any, i: int) -> None:
            record(i)

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        settings = RedisSettings.from_dsn(URL)
        Worker(functions=[func(body, name="noop")], redis_settings=settings, max_jobs=self.concurrency).run()


class Taskiq(Peer):
    package = "taskiq_redis"
    python = "taskiq"
    promise = "at most once (list); no result"

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    async def open(self) -> None:
        self.broker = taskiq_app()
        self.task = self.broker.find_task("noop")
        await self.broker.startup()

    async def send(self, i: int) -> None:
        await self.task.kiq(i)

    def worker_command(self, python: str, name: str) -> list[str]:
        slots = str(self.concurrency)
        return [python, "-m", "taskiq", "worker", "peers:taskiq_app_instance", "--workers", "1",
                "--max-async-tasks", slots, "--log-level", "WARNING"]  # fmt: skip


@cache
def taskiq_app() -> Any:
    from taskiq_redis import ListQueueBroker

    broker = ListQueueBroker(URL, queue_name=QUEUE)

    @broker.task("noop")
    async def body(i: int) -> None:
        record(i)

    return broker


class Streaq(Peer):
    package = "streaq"
    promise = "at least once; result kept"

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    def make_worker(self) -> Any:
        from streaq import Worker

        worker: Any = Worker(
            redis_url=URL, concurrency=self.concurrency, queue_name=QUEUE, anyio_kwargs={"use_uvloop": True}
        )

        @worker.task(name="noop")
        async def body(i: int) -> None:
            record(i)

        return worker, body

    async def open(self) -> None:
        worker, self.task = self.make_worker()
        self.worker = await worker.__aenter__()

    async def send(self, i: int) -> None:
        await self.task.enqueue(i)

    async def send_many(self, ids: Sequence[int]) -> None:
        await self.worker.enqueue_many([self.task.enqueue(i) for i in ids])

    def run_worker(self) -> None:
        self.make_worker()[0].run_sync()


class Dramatiq(Peer):
    package = "dramatiq"
    promise = "at least once; no result"

    def __init__(self, threads: int) -> None:
        self.threads = threads

    async def open(self) -> None:
        self.actor = dramatiq_app().get_actor("noop")

    async def send(self, i: int) -> None:
        self.actor.send(i)

    def worker_command(self, python: str, name: str) -> list[str]:
        threads = str(self.threads)
        return [python, "-m", "dramatiq", "peers:dramatiq_app_instance", "--processes", "1", "--threads", threads]


@cache
def dramatiq_app() -> Any:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=URL)
    dramatiq.set_broker(broker)
    dramatiq.actor(record, actor_name="noop", broker=broker)
    return broker


class Huey(Peer):
    package = "huey"
    promise = "at most once; no result"

    def __init__(self, threads: int) -> None:
        self.threads = threads

    async def open(self) -> None:
        self.task = huey_app().noop

    async def send(self, i: int) -> None:
        self.task(i)

    def worker_command(self, python: str, name: str) -> list[str]:
        threads = str(self.threads)
        return [python, "-m", "huey.bin.huey_consumer", "peers.huey_app_instance", "-k", "thread", "-w", threads, "-q"]


@cache
def huey_app() -> Any:
    from huey import RedisHuey

    app = RedisHuey(QUEUE, url=URL)
    app.noop = app.task(name="noop")(record)
    return app


class Celery(Peer):
    package = "celery"
    promise = "at most once (its default); no result"

    def __init__(self, threads: int) -> None:
        self.threads = threads

    async def open(self) -> None:
        self.task = celery_app().tasks["noop"]

    async def send(self, i: int) -> None:
        self.task.delay(i)

    def worker_command(self, python: str, name: str) -> list[str]:
        threads = str(self.threads)
        return [python, "-m", "celery", "-A", "peers:celery_app_instance", "worker", "-P", "threads", "-c", threads,
                "-l", "WARNING"]  # fmt: skip


@cache
def celery_app() -> Any:
    from celery import Celery as App

    app = App("peers", broker=URL)
    app.conf.update(broker_connection_retry_on_startup=True)
    app.task(record, name="noop")
    return app


class Rq(Peer):
    package = "rq"
    promise = "at least once; result kept"
    jobs = 1_000

    async def open(self) -> None:
        from redis import Redis
        from rq import Queue

        self.queue = Queue(QUEUE, connection=Redis.from_url(URL))

    async def send(self, i: int) -> None:
        self.queue.enqueue(record, i)

    async def send_many(self, ids: Sequence[int]) -> None:
        self.queue.enqueue_many([self.queue.prepare_data(record, (i,)) for i in ids])

    def worker_command(self, python: str, name: str) -> list[str]:
        script = str(Path(python).with_name("rq"))
        return [script, "worker", "--quiet", "--worker-class", "rq.worker.SimpleWorker", QUEUE]


PEERS: dict[str, Callable[[], Peer]] = {
    "saq-10": partial(Saq, 10),
    "phaze-10": partial(Ours, 10),
    "phaze-10-no-outbox": partial(Ours, 10, outbox=False),
    "phaze-10-as-installed": partial(Ours, 10, lean=True),
    "dramatiq-10": partial(Dramatiq, 10),
    "saq-100": partial(Saq, 100),
    "phaze-100": partial(Ours, 100),
    "phaze-100-no-outbox": partial(Ours, 100, outbox=False),
    "phaze-100-as-installed": partial(Ours, 100, lean=True),
    "huey-10": partial(Huey, 10),
    "taskiq-10": partial(Taskiq, 10),
    "arq-10": partial(Arq, 10),
    "streaq-10": partial(Streaq, 10),
    "celery-10": partial(Celery, 10),
    "rq-1": Rq,
}

APPS = {"taskiq": taskiq_app, "dramatiq": dramatiq_app, "huey": huey_app, "celery": celery_app}


def __getattr__(name: str) -> Any:
    """What the systems' own command lines import as `peers:<system>_app_instance`."""
    system = name.removesuffix("_app_instance")
    if system == name or system not in APPS:
        raise AttributeError(name)
    return APPS[system]()


async def produce(peer: Peer, first: int, count: int, rate: float) -> None:
    """Enqueue `count` jobs: at once (rate 0), or one at a time at `rate` a second, with the time of each."""
    import time

    from slots import slots

    await peer.open()
    if not rate:
        for start in range(first, first + count, 1_000):
            await peer.send_many(range(start, min(start + 1_000, first + count)))
        return
    begin = time.monotonic()
    for n, i in enumerate(range(first, first + count)):
        await asyncio.sleep(max(0.0, begin + n / rate - time.monotonic()))
        slots().sent[i] = time.monotonic()
        await peer.send(i)


def main(argv: Sequence[str]) -> None:
    """`worker NAME`, `produce NAME FIRST COUNT RATE`, or `has NAME`, each in a process of its own."""
    command, name, *rest = argv
    peer = PEERS[name]()
    if command == "worker":
        peer.run_worker()
    elif command == "has":
        import_module(peer.package)
    else:
        first, count, rate = rest
        asyncio.run(produce(peer, int(first), int(count), float(rate)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import_module("peers").main(sys.argv[1:])  # the importable module, so that tasks are named the same everywhere
