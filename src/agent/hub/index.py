"""The index of fingerprints works in a process of its own, which can be ended at any moment.

    hub: IndexProcess --starts--> `python -m agent.hub.index CATALOGUE PRINTS HUB_PID`
         {"id", "do": "sync"}  one JSON a line  -->  {"id", "more", "indexed", "waiting", "comparison"}
         {"id", "do": "find", "raw": base64}    -->  {"id", "found": [...], "indexed", "waiting"}

Minutes of pure computing in a thread of the hub would slow every answer down (one interpreter runs one thread at a
time), hold half a gigabyte there, and outlast a SIGTERM. The process reads the catalogue itself, writes only its own
folder, and ends with the hub. Work comes in slices, so that a question waits for one slice at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from agent.cancelling import end
from agent.hub.database import CatalogueError, Database
from agent.hub.duplicates import Comparison, DuplicateGroups
from agent.throttle import OncePer
from pipelines.lifeline import die_with_parent

log = structlog.get_logger()

PERIOD = 2.0
"""Seconds between looks for new fingerprints."""

SLICE = 1.0
"""Seconds of work between two answers."""

PATIENCE = 300.0
"""Seconds for an answer; a checkpoint of a large library on a slow disk takes a minute."""

NICENESS = 10
"""Nobody waits for it: analyses and answers come first."""

BEHIND = 0.05
"""Share of the fingerprints that may still wait to be indexed when a question is answered."""

DYING = 5.0
"""Seconds from the end of a process's answers to its own end."""

MOST = 256 * 2**20
"""Bytes of one answer."""


class IndexUnavailable(Exception):
    """The index cannot answer now; ask again later."""


class IndexProcess:
    """`run()` for as long as the hub lives; `find()` meanwhile. The process is started when first needed."""

    def __init__(self, catalogue: Path, folder: Path, groups: DuplicateGroups) -> None:
        self._catalogue, self._folder, self._groups = catalogue, folder, groups
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._starting = asyncio.Lock()
        self._last_words = ""
        self._behind = False
        """The process is newer than the last comparison: it has read its checkpoint and nothing since."""
        self.indexed = 0.0
        """All fingerprints that were recorded before this moment (Unix seconds) are in the index."""

    async def run(self) -> None:
        """Keep index and groups up to date until cancelled; what fails is tried again after a rest."""
        complain = OncePer(60.0)
        try:
            while True:
                started = time.monotonic()
                try:
                    if self._behind or await asyncio.to_thread(self._groups.due):
                        await self._sync()
                except Exception as error:
                    self._groups.rest(time.monotonic() - started)
                    if complain():
                        log.warning("prints.waiting", error=str(error) or repr(error))
                await asyncio.sleep(PERIOD)
        finally:
            await self.close()

    async def _sync(self) -> None:
        started, more, now = time.monotonic(), True, time.time()
        while more:
            answer = await self._ask({"do": "sync", "seconds": SLICE})
            more = answer["more"]
        comparison = Comparison.of(answer["comparison"])
        self._groups.take(comparison)
        self._behind, self.indexed = False, now
        log.info("prints.indexed", prints=answer["indexed"], seconds=round(time.monotonic() - started, 1))

    async def find(self, raw: str) -> dict[str, Any]:
        """{"found": [{"file_id", "start", "end", ...}], "indexed", "waiting"} for a print.

        Raises IndexUnavailable, also while so much is not indexed yet that the answer would mislead.
        """
        answer = await self._ask({"do": "find", "raw": raw})
        total = answer["indexed"] + answer["waiting"]
        if answer["waiting"] > BEHIND * total:
            raise IndexUnavailable(f"the index is being built: {answer['indexed']:,} of {total:,} fingerprints")
        return answer

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        async with self._starting:
            process = await self._running()
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"id": number, **question}).encode() + b"\n")
            async with asyncio.timeout(PATIENCE):
                await process.stdin.drain()
                found = await answer
        except TimeoutError:
            await self.close()
            raise IndexUnavailable(f"the index did not answer within {PATIENCE:g} s; it is started anew") from None
        except OSError as error:
            raise IndexUnavailable(f"the index ended ({error}); it is started anew") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in found:
            raise IndexUnavailable(found["error"])
        return found

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self.close()
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, str(self._catalogue), str(self._folder), str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MOST,
            start_new_session=True,  # a Ctrl-C is for the hub, which ends it
        )
        self._last_words, self._behind = "", True
        self._readers = [asyncio.create_task(self._read(process)), asyncio.create_task(self._listen(process))]
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # an answer of over MOST bytes
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if "damage" in answer:
                    log.warning("prints.damaged", reason=answer["damage"], remedy="built anew from the catalogue")
                    continue
                waiting = self._waiting.get(answer["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DYING):  # a kill now could reap it, and its exit code would be lost
                await process.wait()
        self._kill(process)
        self._give_up(f"the index ended with {await process.wait()}: {self._last_words}")

    def _give_up(self, reason: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(IndexUnavailable(reason))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while said := await process.stderr.read(4096):
            self._last_words = said.decode("utf-8", "replace").strip().rpartition("\n")[2][-300:]

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            self._kill(process)
            await process.wait()
            self._give_up("the index was ended")
            await end(self._readers)


def main() -> None:
    """Answer questions on standard input, one JSON a line, until it ends."""
    from agent.hub.library import Library, sole_writer

    catalogue, folder, parent = sys.argv[1:]
    die_with_parent(int(parent))
    os.nice(NICENESS)
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever prints by mistake spoils no answer
    database = Database(Path(catalogue), read_only=True)
    with contextlib.closing(database), sole_writer(Path(folder)):
        library = Library(database.read, Path(folder), read_only=False)
        if library.index.damage:
            _say(out, {"damage": library.index.damage})
        for line in sys.stdin:
            question = json.loads(line)
            _say(out, {"id": question["id"], **_answer(library, question)})


def _answer(library: Any, question: dict[str, Any]) -> dict[str, Any]:
    from agent.hub.library import items_of

    try:
        if question["do"] == "find":
            found = library.find(items_of(question))
            return {"found": found, "indexed": len(library.index), "waiting": library.waiting}
        started = time.monotonic()
        more = library.sync(question["seconds"])
        said = {} if more else {"comparison": asdict(library.comparison(time.monotonic() - started))}
        return {"more": more, "indexed": len(library.index), "waiting": library.waiting, **said}
    except (CatalogueError, OSError) as error:  # busy, or a full disk: the index itself is whole
        return {"error": f"{type(error).__name__}: {error}"}


def _say(out: Any, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
