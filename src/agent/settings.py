"""Every variable, its default and its meaning, once.

Read from the environment, then from `.env` in the working directory. A secret NAME may also be given as NAME_FILE.
`.env.example` is written from this file (`phaze settings --example`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from dotenv import dotenv_values
from platformdirs import user_data_path
from pydantic import (
    AliasChoices,
    Field,
    SecretStr,
    ValidationError,
    create_model,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from agent import forms
from agent.compose_variables import COMPOSE
from agent.errors import ConfigError
from agent.lanes import CPU_LANES, HEARTBEAT_LANE, LANES
from agent.redaction import redact_text
from pipelines.documents.page import MOST_PAGES
from pipelines.music.models.catalogue import OFFICIAL
from pipelines.music.profiles import Profile

PREFIX = "PHAZE_"
ENV_FILE = ".env"
UTF8 = "utf-8-sig"
"""UTF-8, also with the mark at its beginning that editors on Windows write, which is no part of the first name."""

WORKER_MARGIN = 20.0
"""Seconds that a stopping worker may take on top of its own grace: to kill children and deliver what is left in the
outbox."""

SHOWN = 100
"""Characters of a bad value that are shown."""

LANE_SLOTS = 2
"""Slots of a lane for which no field says more: one that another package adds."""

T = TypeVar("T", bound=BaseSettings)


def with_every_lanes_knob(settings: type[T]) -> type[T]:
    """The class with a field `lane_<lane>_concurrency` for each lane of the table that has none yet."""
    missing = [lane for lane in LANES if f"lane_{lane}_concurrency" not in settings.model_fields]
    knobs: dict[str, Any] = {
        f"lane_{lane}_concurrency": (int, Field(LANE_SLOTS, ge=1, le=1000, description=_slots_of(lane)))
        for lane in missing
    }
    return create_model(settings.__name__, __base__=settings, __module__=__name__, **knobs) if knobs else settings


def _slots_of(lane: str) -> str:
    return f"Slots of the {lane} lane{' (CPU: one core each)' if lane in CPU_LANES else ''}."


@with_every_lanes_knob
class Settings(BaseSettings):
    """All settings. `load_settings()` is how to get them: it turns errors into one line each."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_file_encoding=UTF8,
        extra="ignore",
        frozen=True,
        env_ignore_empty=True,
        populate_by_name=True,
    )

    agent_id: str = Field("local", description="Names this agent; part of its queues' names.")
    agent_lane: forms.MaybeStr = Field(
        None, description=f"The lane a worker runs ({', '.join(LANES)}); unset: all tasks, on the base queue."
    )
    agent_heartbeat: bool = Field(
        True, description=f"Whether a worker beats for its agent; only one on the {HEARTBEAT_LANE} lane does."
    )
    agent_token: SecretStr | None = Field(None, description="The bearer token with which the agent reports to the hub.")

    worker_max_jobs: int = Field(
        8,
        ge=1,
        le=1000,
        validation_alias=AliasChoices("WORKER_MAX_JOBS", "PHAZE_WORKER_MAX_JOBS"),
        description="Ceiling on every lane's concurrency, and the concurrency of all-mode.",
    )
    lane_analyze_concurrency: int = Field(
        4, ge=1, le=1000, description="Slots of the analyze lane (CPU: one core each)."
    )
    lane_fingerprint_concurrency: int = Field(
        2, ge=1, le=1000, description="Slots of the fingerprint lane (CPU: one core each)."
    )
    lane_meta_concurrency: int = Field(2, ge=1, le=1000, description="Slots of the meta lane.")
    lane_io_concurrency: int = Field(4, ge=1, le=1000, description="Slots of the io lane.")
    lane_router_concurrency: int = Field(2, ge=1, le=1000, description="Slots of the router lane (CPU: one core each).")
    lane_parser_concurrency: int = Field(2, ge=1, le=1000, description="Slots of the parser lane (CPU: one core each).")
    lane_grouper_concurrency: int = Field(
        2, ge=1, le=1000, description="Slots of the grouper lane (CPU: one core each)."
    )

    redis_url: SecretStr | None = Field(
        None,
        description="Redis or Valkey server (redis://, rediss://, unix://); unset: `phaze up` starts its own.",
    )
    hub_url: str = Field("http://127.0.0.1:8080", description="Where workers reach the hub.")
    hub_host: str = Field("127.0.0.1", description="The address on which the hub listens.")
    hub_port: int = Field(8080, ge=0, le=65535, description="The port on which the hub listens; 0 takes a free one.")
    hub_names: str = Field(
        "", description="More names under which the hub answers, as an address bar shows them, separated by commas."
    )
    hub_proxies: str | None = Field(
        None,
        description="Networks (10.0.0.5, 172.16.0.0/12) of proxies before the hub; whom their X-Forwarded-For names is "
        "believed.",
    )
    hub_user: str = Field("phaze", min_length=1, description="The name with which people log in to the hub.")
    hub_password: SecretStr | None = Field(
        None, description="Their password; unset: no login, on a loopback address outside a container only."
    )
    hub_open_metrics: bool = Field(False, description="Whether the hub's /metrics, counts alone, wants no login.")
    hub_drain: bool = Field(
        False, description="Whether a drain is on: /saq then shows the base queues also while they are empty."
    )
    data_dir: Path = Field(
        default_factory=lambda: user_data_path("phaze"),
        description="Where the catalogue, the embedded server's files, tokens and logs live.",
    )

    metrics_host: str = Field("127.0.0.1", description="The address on which a worker shows its metrics.")
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="The port of a worker's /metrics for Prometheus; unset: none."
    )
    s3_bucket: forms.MaybeStr = Field(
        None, description="The bucket that s3_upload fills; unset: no uploads. For the hub."
    )
    s3_endpoint: str = Field("", description="The object store's URL (http:// or https://); unset: AWS.")
    s3_region: str = Field("us-east-1", description="The bucket's region; stores that have none take any.")
    s3_access_key_id: SecretStr | None = Field(None, description="With it the hub signs what agents send to the store.")
    s3_secret_access_key: SecretStr | None = Field(None, description="Its secret; it never leaves the hub.")
    s3_session_token: SecretStr | None = Field(None, description="Of temporary credentials.")
    s3_prefix: str = Field("", description="Put before every object's key, such as `archive/`.")
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto", description="Whether the bucket stands in the URL's path or in its host name."
    )
    s3_checksum: Literal["sha256", "md5"] = Field(
        "sha256", description="Which hash goes with every part; md5 is for stores that refuse x-amz-checksum-sha256."
    )
    s3_url_lifetime: int = Field(900, ge=10, le=604_800, description="Seconds for which a signed request can be begun.")

    push_to: forms.MaybeStr = Field(None, description="Where `phaze offload` pushes: ssh://USER@HOST[:PORT]/FOLDER.")
    push_host_keys: Path | None = Field(
        None, description="File with that host's public keys (as in known_hosts); no other is accepted."
    )
    push_key: SecretStr | None = Field(None, description="The private key (OpenSSH) with which the agent pushes.")

    billing_url: forms.MaybeStr = Field(
        None, description="The service that makes users' API keys, such as a LiteLLM proxy; unset: none are made."
    )
    billing_path: str = Field("/keys/generate", description="Where it makes one (POST); LiteLLM: /key/generate.")
    billing_token: SecretStr | None = Field(None, description="The bearer token for it; LiteLLM: its master key.")
    billing_user_field: str = Field("user_id", min_length=1, description="What it calls the user, in the request.")
    billing_key_field: str = Field(
        "key,api_key", min_length=1, description="What it calls the key, in the answer; of several the first; data.key."
    )
    billing_fields: dict[str, Any] = Field(
        {}, description='More for the request, as a JSON object, such as {"duration": "7d"}.'
    )
    llm_url: forms.MaybeStr = Field(
        None,
        description="Where users' keys are good: an OpenAI-compatible address with its /v1; unset: the library's.",
    )
    key_variables: str = Field(
        "OPENAI_API_KEY", description="What a user's child process calls the key; several are separated by commas."
    )
    key_environment: str = Field(
        "", description="More variables that such a child gets from the worker's environment, separated by commas."
    )

    health_file: Path | None = Field(
        None,
        description="A file that a worker or watcher touches while it is healthy, for `phaze health`; unset: none.",
    )

    shutdown_grace: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="Seconds that running jobs get to finish at shutdown before they are handed back.",
    )
    child_memory_mb: int = Field(
        4096, ge=128, le=2**24, description="Memory cap of one child process in MiB; a job that passes it fails alone."
    )
    child_max_jobs: int = Field(100, ge=1, description="Jobs after which a child process is replaced.")
    fingerprint_engine: forms.MaybeStr = Field(
        None,
        description="Address of another fingerprint engine (pipelines/music/sidecar.py) that gets every file as well.",
    )
    move_roots: forms.MaybeStr = Field(
        None,
        description="Folders, parted by colons, outside of which this agent moves and tags nothing; unset: the job's.",
    )
    document_roots: forms.MaybeStr = Field(
        None,
        description="Folders, parted by colons, below which the router reads local documents; unset: it reads none.",
    )
    document_networks: forms.MaybeStr = Field(
        None,
        description="Networks (10.0.0.0/8, fd00::/8) from which documents are fetched although they are not public.",
    )
    document_max_mb: int = Field(100, ge=1, le=1024, description="Largest document, in MiB; a larger one is rejected.")
    document_max_pages: int = Field(
        500, ge=1, le=MOST_PAGES, description="Pages of a document that are read; the others are skipped."
    )
    document_model: forms.MaybeStr = Field(
        None,
        description="The model that router and parser ask besides their rules, at PHAZE_LLM_URL, at the user's cost; "
        "unset: rules alone.",
    )
    document_model_seconds: float = Field(
        120.0,
        ge=1,
        le=3600,
        description="Seconds that one answer of that model may take (at most 8,192 tokens).",
    )
    mineru_url: forms.MaybeStr = Field(
        None, description="Address of a mineru-api (4.0 or later) that reads documents; unset: they are read here."
    )
    mineru_tier: Literal["flash", "basic", "standard", "advanced"] | None = Field(
        None, description="How thoroughly it reads; unset: as it likes."
    )
    ffmpeg: forms.MaybeStr = Field(
        None, description="An ffmpeg program to use; unset: the one in imageio-ffmpeg, else from PATH."
    )

    watch_settle: float = Field(
        10.0, ge=1, le=3600, description="Seconds without a change after which `phaze watch` has a file scanned."
    )
    watch_poll: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether `phaze watch` looks for itself; auto: on network mounts, never: only where it must.",
    )
    watch_poll_seconds: float = Field(
        60.0, ge=1, le=86_400, description="Seconds between two such looks of `phaze watch`."
    )
    watch_rescan_hours: float = Field(
        6.0, ge=0, le=8760, description="Hours after which `phaze watch` has everything scanned again; 0: never."
    )

    profile: Profile = Field(
        "default", description="How much is measured of a file: fast, default, or full (adds installed models)."
    )
    set_minutes: float = Field(
        20.0, ge=0, description="Minutes from which a file is a set, whose tracks are looked for; 0: never by itself."
    )
    models_dir: forms.MaybeStr = Field(
        None, description="Where pretrained models are installed; unset: models in the data folder."
    )
    models_url: str = Field(
        OFFICIAL, description="Where `phaze models install` finds essentia's models; a mirror serves too."
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="console for people, json for machines; auto: console on a terminal."
    )

    _lowered = field_validator("log_level", "log_format", "profile", "watch_poll", mode="before")(forms.lowered)
    _absolute = field_validator("data_dir")(forms.absolute)
    _usable_agent_id = field_validator("agent_id")(forms.usable_agent_id)
    _known_lane = field_validator("agent_lane")(forms.known_lane)
    _queue_server = field_validator("redis_url")(forms.queue_server)
    _header_safe = field_validator("agent_token", "billing_token")(forms.header_safe)
    _user_name = field_validator("hub_user")(forms.user_name)
    _ssh_address = field_validator("push_to")(forms.ssh_address)
    _proxies = field_validator("hub_proxies")(forms.networks)
    _host_names = field_validator("hub_names")(forms.host_names)
    _private_key = field_validator("push_key")(forms.private_key)
    _key_prefix = field_validator("s3_prefix")(forms.key_prefix)
    _endpoint = field_validator("s3_endpoint")(forms.endpoint)
    _rooted = field_validator("billing_path")(forms.rooted)
    _key_variables = field_validator("key_variables")(forms.key_variables)
    _variable_names = field_validator("key_environment")(forms.variable_names)
    _folders = field_validator("move_roots", "document_roots")(forms.folders)
    _networks = field_validator("document_networks")(forms.networks)
    _plain_address = field_validator("fingerprint_engine", "billing_url", "llm_url", "mineru_url")(forms.plain_address)
    _folder = field_validator("models_dir")(forms.folder)
    _http_address = field_validator("hub_url", "models_url")(forms.http_address)

    @property
    def models_folder(self) -> Path:
        """Where pretrained models are, also while there is no such folder yet."""
        return forms.absolute(Path(self.models_dir)) if self.models_dir else self.data_dir / "models"

    def lane_knob(self, lane: str) -> int:
        """The lane's own concurrency, before the ceiling."""
        return int(getattr(self, f"lane_{lane}_concurrency"))

    def concurrency(self, lane: str | None) -> int:
        """Effective slots: min(lane knob, WORKER_MAX_JOBS); in all-mode (None) WORKER_MAX_JOBS itself."""
        return self.worker_max_jobs if lane is None else min(self.lane_knob(lane), self.worker_max_jobs)

    @property
    def redis_address(self) -> str | None:
        """The queue server's URL with its password; never logged."""
        return None if self.redis_url is None else self.redis_url.get_secret_value()

    @property
    def beats(self) -> bool:
        """Whether a worker with these settings is the one that beats for its agent."""
        return self.agent_heartbeat and self.agent_lane == HEARTBEAT_LANE


SECRETS = tuple(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))
FROM_FILES = (*SECRETS, "hub_user")
"""What may also be given as NAME_FILE."""


def variable(name: str) -> str:
    """The environment variable of a field: `agent_id` -> `PHAZE_AGENT_ID`."""
    return "WORKER_MAX_JOBS" if name == "worker_max_jobs" else f"{PREFIX}{name.upper()}"


VARIABLES = {variable(name): name for name in Settings.model_fields}
ACCEPTED = {*VARIABLES, *COMPOSE, "PHAZE_WORKER_MAX_JOBS", *(f"{variable(name)}_FILE" for name in FROM_FILES)}


def load_settings(**overrides: Any) -> Settings:
    """Settings from environment, `.env` and secret files; `overrides` (by field name) win.

    Raises ConfigError with one line that names the variable.
    """
    from_files = {name: value for name in FROM_FILES if (value := _secret_file(name)) is not None}
    values: dict[str, Any] = {**from_files, **overrides}
    try:
        return Settings(**values)
    except UnicodeDecodeError:
        raise ConfigError(f"{ENV_FILE} is not UTF-8 text; save it as UTF-8, or remove it") from None
    except OSError as error:
        raise ConfigError(
            f"{ENV_FILE} of the working directory cannot be read ({error.strerror}); let this user, or go elsewhere"
        ) from None
    except SettingsError as error:
        raise ConfigError(_unparsed(str(error))) from None
    except ValidationError as error:
        problem = error.errors()[0]
        field = str(problem["loc"][0]) if problem["loc"] else "settings"
        name = variable(field) if field in Settings.model_fields else field
        shown = "" if field in SECRETS else f"={_one_line(redact_text(str(problem['input'])), SHOWN)}"
        raise ConfigError(f"{name}{shown} {_one_line(_explain(problem['msg']), 5 * SHOWN)}") from None


def _unparsed(said: str) -> str:
    """Of a field that is JSON and did not parse, which is all that pydantic-settings names."""
    field = next((name for name in Settings.model_fields if f'"{name}"' in said), "settings")
    return f"{variable(field)} must be a JSON object, such as {{}}"


def _one_line(text: str, most: int) -> str:
    """The text without control characters, cut where it is very long."""
    clean = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return clean if len(clean) <= most else f"{clean[:most]}..."


def _explain(message: str) -> str:
    """Pydantic's sentence as a remark on the variable before it: `Input should be ...` -> `should be ...`."""
    return message.removeprefix("Value error, ").removeprefix("Input ")


def secret_file(name: str) -> str | None:
    """The file that NAME_FILE names for a field; None where it names none, or NAME itself is given.

    A path as PHAZE_REDIS_URL names it too: Compose can hand on whichever of the two is set, but not unset the other.
    """
    environment = _environment()
    given = environment.get(variable(name))
    if name == "redis_url" and given and given.startswith("/"):
        return given
    return None if given else environment.get(f"{variable(name)}_FILE") or None


def _secret_file(name: str) -> str | None:
    if (path := secret_file(name)) is None:
        return None
    try:
        found = Path(path).read_text(UTF8).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(
            f"{variable(name)}_FILE={path} cannot be read ({reason}); give the path of a readable file"
        ) from None
    if not found:
        raise ConfigError(f"{variable(name)}_FILE={path} is empty; write the secret into it, or unset the variable")
    return found


def _environment() -> Mapping[str, str | None]:
    try:
        return {**dotenv_values(ENV_FILE, encoding=UTF8), **os.environ}
    except UnicodeDecodeError:
        raise ConfigError(f"{ENV_FILE} is not UTF-8 text; save it as UTF-8, or remove it") from None
    except OSError as error:
        raise ConfigError(
            f"{ENV_FILE} of the working directory cannot be read ({error.strerror}); let this user, or go elsewhere"
        ) from None


def unknown_variables() -> Iterator[tuple[str, str | None]]:
    """(name, nearest right name or None) of each PHAZE_ variable that nothing reads."""
    for name in sorted(_environment()):
        if name.startswith(PREFIX) and name not in ACCEPTED:
            near = difflib.get_close_matches(name, ACCEPTED, n=1, cutoff=0.75)
            yield name, near[0] if near else None


def example() -> str:
    """The text of `.env.example`: every variable, commented out, with its meaning and default."""
    lines = [
        "# phaze-agent: every variable with its default. Copy to .env and uncomment what you change.",
        "# A value with $, # or spaces stands between single quotes: Compose would read variables in it, or cut it.",
        "",
    ]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=False)
        shown = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        if name == "data_dir":
            shown = "~/.local/share/phaze"
        lines.append(f"# {field.description}")
        if name in FROM_FILES:
            secret = "A secret: " if name in SECRETS else ""
            lines.append(f"# {secret}{variable(name)}_FILE may name a file that holds it instead.")
        lines += [f"#{variable(name)}={shown}", ""]
    lines += ["# Read by compose/agent.yml and compose/cloud-agent.yml alone.", ""]
    for name, (default, said) in COMPOSE.items():
        lines += [f"# {said}", f"#{name}={default}", ""]
    return "\n".join(lines)
