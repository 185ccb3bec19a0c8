"""The forms that settings' values have: each function returns its value, or raises ValueError with what it must be."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, SecretStr

from agent.lanes import LANES
from pipelines.documents.addresses import networks_of
from pipelines.files.ssh_target import ssh_target


def unset_if_empty(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


MaybeStr = Annotated[str | None, BeforeValidator(unset_if_empty)]


def names_in(value: str) -> list[str]:
    """What is separated by commas."""
    return [name.strip() for name in value.split(",") if name.strip()]


def usable_agent_id(value: str) -> str:
    """The id. Raises ValueError for one that cannot name an agent's queues."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", value):
        raise ValueError(
            "must be 1 to 63 letters, digits, dots, dashes or underscores, starting with a letter or digit"
        )
    for lane in LANES:
        if value.endswith(f"-{lane}"):
            raise ValueError(
                f"must not end in -{lane}: its base queue would be another agent's {lane} lane; choose another id"
            )
    return value


def is_http(value: str) -> bool:
    """Whether it is an address with a host and, if any, a port."""
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in value
    except ValueError:
        return False


def absolute(path: Path) -> Path:
    """The path from the root. Raises ValueError for ~NAME of nobody."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ValueError("must be a folder; there is no home of the user after its ~") from None


def lowered(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def known_lane(value: str | None) -> str | None:
    if value is not None and value not in LANES:
        raise ValueError(f"is not a lane; the lanes are {', '.join(LANES)} (leave it unset to drain the base queue)")
    return value


def queue_server(value: SecretStr | None) -> SecretStr | None:
    if value is not None and not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must start with redis://, rediss:// or unix://")
    return value


def header_safe(value: SecretStr | None) -> SecretStr | None:
    if value is not None and not re.fullmatch(r"[\x21-\x7e]+", value.get_secret_value()):
        raise ValueError("must be visible ASCII characters without spaces, as an HTTP header carries them")
    return value


def user_name(value: str) -> str:
    if ":" in value or not value.isprintable():
        raise ValueError("must be one line without a colon, which HTTP sets between the name and the password")
    return value


def ssh_address(value: str | None) -> str | None:
    if value is not None:
        ssh_target(value)
    return value


def host_names(value: str) -> str:
    if not all(re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*)(?::\d{1,5})?", name) for name in names_in(value)):
        raise ValueError("must be names such as hub.example or hub.example:8443, without http://, and commas between")
    return value


def private_key(value: SecretStr | None) -> SecretStr | None:
    if value is not None and not value.get_secret_value().startswith("-----BEGIN "):
        raise ValueError("must be a private key in OpenSSH's or PEM format; PHAZE_PUSH_KEY_FILE names its file")
    return value


def key_prefix(value: str) -> str:
    if value.startswith("/") or {".", ".."} & set(value.split("/")):
        raise ValueError("must not begin with a slash, nor hold . or .. as a folder")
    return value


def endpoint(value: str) -> str:
    if value and not is_http(value):
        raise ValueError("must start with http:// or https:// and name a host (leave it unset for AWS)")
    return value.rstrip("/")


def rooted(value: str) -> str:
    if not re.fullmatch(r"/[^\s?#]*", value):
        raise ValueError("must be a path from the root, such as /key/generate")
    return value


def variable_names(value: str) -> str:
    """Names of environment variables."""
    if not all(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in names_in(value)):
        raise ValueError("must be names of environment variables, separated by commas")
    return value


def key_variables(value: str) -> str:
    """The variables that a library reads its key from: one at least."""
    if not names_in(value):
        raise ValueError("must name a variable; libraries for OpenAI read OPENAI_API_KEY")
    return variable_names(value)


def folders(value: str | None) -> str | None:
    for folder in filter(None, (value or "").split(os.pathsep)):
        if not folder.startswith("/") or {".", ".."} & set(folder.split("/")):
            raise ValueError("must be absolute folders, parted by colons, without . and ..")
    return value


def networks(value: str | None) -> str | None:
    networks_of(value or "")
    return value


def plain_address(value: str | None) -> str | None:
    if value is not None and not (is_http(value) and re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", value)):
        raise ValueError("must be an http:// or https:// address without user, password and query")
    return None if value is None else value.rstrip("/")


def folder(value: str | None) -> str | None:
    if value is not None:
        absolute(Path(value))
    return value


def http_address(value: str) -> str:
    if not is_http(value):
        raise ValueError("must start with http:// or https:// and name a host")
    return value.rstrip("/")
