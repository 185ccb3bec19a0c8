"""The bridge from a service's stream to its lane: entries become jobs, and stay pending until those are settled.

    stream --XREADGROUP--> this bridge --bridge.lua--> queued --> ... --settle.lua--> XACK + XDEL
      ^                         |  '--bury.lua--> dead letters (nothing can be made of it)
      '---(idle for 5 minutes: XAUTOCLAIM by whichever bridge)

One runs in every worker of a lane for each of its services; any number may, on any number of machines: the script that
makes a job looks first whether the entry is still this bridge's, whether its version is done, and whether its record
has a job on whatever queue. So a kill at any moment neither loses an entry nor runs one twice at a time. What was read
and not made a job of is read again: by this bridge after a failed call, by another one after RECLAIM_IDLE.

It takes no more than the lane will soon want (AHEAD): the stream is the backlog, and XLEN and XPENDING tell the truth.
An entry whose record is busy with another version waits here for that one's end. The server's errors are waited out; a
group that somebody flushed away is made anew, at 0, so that it misses nothing that is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog
from redis.exceptions import RedisError, ResponseError
from saq.job import Job, Status
from saq.utils import now

from agent.phoenix import keys
from agent.phoenix.endings import DEFAULT_TTL, MARKER_IDLE, MARKER_LIFE
from agent.phoenix.streams import BadEntry, StreamEntry, as_text, decoded, progress_message
from agent.redis_client import Line
from agent.redis_trouble import trouble
from agent.throttle import OncePer

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from agent.phoenix.queue import LaneQueue

log = structlog.get_logger()

AHEAD = 2
"""Jobs that wait on the queue for each slot of the lane, beside those that run."""

MOST_UNSETTLED = 10_000
"""Jobs of the queue, failed and parked ones too, with which a bridge adds none: what waits belongs in the stream."""

BATCH = 100
"""Entries that one script looks at, so that none holds the server for long."""

MOST_BEHIND = 1_000
"""Entries that wait here for another version's end; more of them are found again when they were idle long enough."""

BLOCK = 5.0
"""Seconds of one wait for new entries."""

REPLY = 10.0
"""Seconds on top of that for the answer: the connection's time-out is above the block time."""

LOOK = 1.0
"""Seconds between two looks at what waits for another version, and at what holds the lane back."""

RECLAIM_IDLE = 300.0
"""Seconds for which nobody touched an entry that another bridge holds, until it is taken from it."""

RECLAIM_EVERY = 10.0
"""Seconds between two rounds in which such entries are looked for."""

MAX_BACKOFF = 10.0

NO_GROUP = ("NOGROUP", "UNBLOCKED")
"""How the server says that the stream or its group is gone: before a read, and during one."""


class Bridge:
    """`run()` until cancelled.

    Args:
        queue: the lane's.
        service: whose stream it reads.
        lane: the name that `phoenix:paused` knows the lane by.
        slots: of the lane in this process.
        claimed: set whenever this process took jobs off the queue.
        drops_pages: whether a record that is done needs its pages no more.
        idle: seconds, see RECLAIM_IDLE.
    """

    def __init__(
        self,
        queue: LaneQueue,
        service: str,
        *,
        lane: str = "",
        slots: int = 1,
        claimed: asyncio.Event | None = None,
        drops_pages: bool = False,
        idle: float = RECLAIM_IDLE,
    ) -> None:
        self._queue = queue
        self._service = service
        self._stream, self._group = keys.stream_key(service), keys.group_name(service)
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex}"
        self._lane = lane
        self._ahead = AHEAD * slots
        self._claimed = claimed or asyncio.Event()
        self._drops_pages = drops_pages
        self._idle_ms = int(idle * 1000)
        self._rest = min(RECLAIM_EVERY, idle / 10)
        self._from: bytes | str = "0"
        """Up to which of its own entries it has looked again; '>' once it has looked at all: new ones."""
        self._behind: dict[bytes, Sequence[bytes]] = {}
        """Entry -> fields of those that wait for another version's end, the oldest first."""
        self._looked = self._reclaimed = float("-inf")
        self._cursor: bytes | str = "0-0"
        self._held = False
        self._complain = OncePer(60.0)

    async def run(self) -> None:
        """Bring entries to the lane, for ever."""
        line, failures = Line(self._queue.redis, BLOCK + REPLY), 0
        try:
            while True:
                try:
                    await self._turn(line)
                    failures = 0
                except ResponseError as error:
                    if not str(error).startswith(NO_GROUP) or not await self._made_group(line):
                        failures += 1
                        self._tell(error)
                except (RedisError, OSError) as error:
                    failures += 1
                    self._from = "0"  # what was on its way to us is ours already
                    self._tell(error)
                except Exception:  # a fault of ours must not end the service
                    failures += 1
                    log.exception("bridge.failed", service=self._service, failures=failures)
                if failures:
                    await asyncio.sleep(min(0.1 * 2 ** min(failures, 10), MAX_BACKOFF))
        finally:
            await line.close()
            await self._leave()

    def _tell(self, error: Exception) -> None:
        if self._complain():
            found = trouble(error)
            log.warning("bridge.waiting", stream=self._stream, error=found.said, remedy=found.remedy)

    async def _made_group(self, line: Line) -> bool:
        """Make the group, at 0: at `$` it would miss what was there before. False if that fails as well."""
        try:
            await line.execute_command("XGROUP", "CREATE", self._stream, self._group, "0", "MKSTREAM")
            log.info("bridge.group_created", stream=self._stream, group=self._group)
        except ResponseError as error:
            return str(error).startswith("BUSYGROUP")
        except (RedisError, OSError):
            return False
        return True

    async def _turn(self, line: Line) -> None:
        await self._look(line)
        if (room := await self._room(line)) < 1:
            await self._until_claimed()
            return
        if entries := await self._reclaim(line, room):
            await self._bring(line, entries)
            return
        wait = min(BLOCK, LOOK if self._behind else BLOCK, self._idle_ms / 1000)
        block = ("BLOCK", int(wait * 1000)) if self._from == ">" else ()
        group = ("GROUP", self._group, self.consumer)
        call = ("XREADGROUP", *group, "COUNT", room, *block, "STREAMS", self._stream, self._from)
        answer = await line.execute_command(*call)
        entries = answer[0][1] if answer else []
        if self._from != ">":
            self._from = entries[-1][0] if entries else ">"
        await self._bring(line, entries)

    # How much, and when.

    async def _look(self, line: Line) -> None:
        """Now and then: is the lane held back, and has what was in the way of others come to its end?"""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        paused = await line.execute_command("SMISMEMBER", keys.PAUSED, self._service, self._lane or self._service)
        unsettled = await line.execute_command("ZCARD", keys.incomplete_key(self._queue.name))
        self._held = any(paused) or unsettled >= MOST_UNSETTLED
        if self._behind and not self._held:
            await self._bring(line, [[entry, fields] for entry, fields in sorted(self._behind.items(), key=_order)])

    async def _room(self, line: Line) -> int:
        """Entries that the lane will soon want."""
        if self._held:
            return 0
        self._claimed.clear()
        return min(BATCH, self._ahead - int(await line.execute_command("LLEN", keys.queued_key(self._queue.name))))

    async def _until_claimed(self) -> None:
        """Until this process took a job off the queue; another one's claims are seen at the next look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await self._claimed.wait()

    async def _reclaim(self, line: Line, room: int) -> list[Any]:
        """A page of entries that nobody touched for long, following the cursor; nothing between two rounds."""
        if self._cursor in (b"0-0", "0-0") and time.monotonic() - self._reclaimed < self._rest:
            return []
        answer = await line.execute_command(
            "XAUTOCLAIM", self._stream, self._group, self.consumer, self._idle_ms, self._cursor, "COUNT", room
        )
        self._cursor, entries = answer[0], answer[1]
        if self._cursor == b"0-0":
            self._reclaimed = time.monotonic()
            await self._queue.scripts("consumers", [], [self._service, self._idle_ms, ""], over=line)
        return list(entries)

    # From entries to jobs.

    async def _bring(self, line: Line, entries: Sequence[Any]) -> None:
        """Make jobs of entries, or letters of those of which none can be made."""
        wanted: list[tuple[bytes, Sequence[bytes], StreamEntry]] = []
        for entry, fields in entries:
            if fields is None:  # deleted, and yet pending: a server before Redis 7 would say so as well
                await line.execute_command("XACK", self._stream, self._group, entry)
                continue
            try:
                wanted.append((entry, fields, decoded(fields)))
            except BadEntry as error:
                await self._bury(line, entry, fields, error)
        for at in range(0, len(wanted), BATCH):
            await self._insert(line, wanted[at : at + BATCH])

    async def _insert(self, line: Line, wanted: Sequence[tuple[bytes, Sequence[bytes], StreamEntry]]) -> None:
        arguments: list[Any] = [
            self._queue.prefix, self._queue.name, self._service, self.consumer,
            MARKER_IDLE * 1000, MARKER_LIFE * 1000, int(self._drops_pages),
        ]  # fmt: skip
        for entry, _, asked in wanted:
            said = progress_message(self._service, asked.record_id, "queued")
            arguments += [entry, asked.record_id, asked.version, self._job(entry, asked), said]
        answers, _ = await self._queue.scripts("bridge", self._queue.keys, arguments, over=line)
        for (entry, fields, asked), answer in zip(wanted, answers, strict=True):
            if answer == b"behind" and len(self._behind) < MOST_BEHIND:
                self._behind[entry] = fields
            else:
                self._behind.pop(entry, None)
            log.debug("bridge.entry", service=self._service, record_id=asked.record_id, entry=entry.decode(),
                      became=answer.decode())  # fmt: skip

    def _job(self, entry: bytes, asked: StreamEntry) -> bytes | str:
        """The stored job. Its result is the marker's; the job itself is shown for a while, as any other."""
        return self._queue.serialize(
            Job(
                function=self._service,
                kwargs={"version": asked.version, "user_id": asked.user_id, "data": asked.data},
                queue=self._queue,
                key=f"{self._service}:{asked.record_id}",
                ttl=DEFAULT_TTL,
                queued=now(),
                status=Status.QUEUED,
                meta={"stream": self._stream, "entry": entry.decode()},
            )
        )

    async def _bury(self, line: Line, entry: bytes, fields: Sequence[bytes], error: BadEntry) -> None:
        said = as_text(fields)
        written = int(entry.partition(b"-")[0]) / 1000
        letter = json.dumps(
            {
                "service": self._service,
                "record_id": said.get("record_id", ""),
                "stream": self._stream,
                "entry": entry.decode(),
                "error": f"bad-entry: {error}",
                "attempts": 0,
                "first": written,
                "last": time.time(),
                "worker": self.consumer,
                "fields": said,
            }
        )
        if await self._queue.scripts("bury", [], [self._service, self.consumer, entry, letter], over=line):
            log.warning("bridge.bad_entry", stream=self._stream, entry=entry.decode(), error=str(error))

    async def _leave(self) -> None:
        """Take our name off the list of consumers, if nothing is pending for it; whatever is, others will take."""
        line = Line(self._queue.redis, 2.0)
        with contextlib.suppress(RedisError, OSError):
            await self._queue.scripts("consumers", [], [self._service, 2**52, self.consumer], over=line)
        await line.close()


async def release_entries(redis: Redis, service: str) -> None:
    """Let the next bridge have at once what bridges that are known to be dead had taken. Raises RedisError."""
    stream, group, start = keys.stream_key(service), keys.group_name(service), "-"
    while True:
        try:
            rows = await redis.xpending_range(stream, group, start, "+", BATCH)
        except ResponseError as error:  # no such stream, or nobody has read it yet
            if str(error).startswith("NOGROUP"):
                return
            raise
        for row in rows:
            await redis.xclaim(
                stream, group, row["consumer"], 0, [row["message_id"]], idle=int(RECLAIM_IDLE * 1000), justid=True
            )
        if len(rows) < BATCH:
            return
        start = f"({rows[-1]['message_id'].decode()}"


def _order(item: tuple[bytes, Sequence[bytes]]) -> tuple[int, int]:
    """Entries in the order in which they were written."""
    milliseconds, _, number = item[0].partition(b"-")
    return int(milliseconds), int(number)
