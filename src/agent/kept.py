"""Secrets that a first start makes and every later one finds again, each in a file that only its user can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agent.errors import ConfigError

AGENT_TOKEN = "agent.token"  # noqa: S105 - the file's name
HUB_PASSWORD = "hub.password"  # noqa: S105 - the file's name
HUB_KEY = "hub.key"

BYTES = 32
"""Of randomness in each."""


def secret(path: Path) -> tuple[str, bool]:
    """What the file holds, and whether it was made just now, for there was none or it was blank.

    Raises OSError, and ConfigError for what is no text.
    """
    try:
        if found := path.read_text("utf-8-sig").strip():
            return found, False
    except FileNotFoundError:
        pass
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; remove it to have a new secret made") from None
    made = secrets.token_urlsafe(BYTES)
    write_private(path, made)
    return made, True


def write_private(path: Path, text: str) -> None:
    """A file that only this user can read, from its first moment, whole or not at all. Raises OSError that names it."""
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        error.filename = error.filename or str(draft)  # a full disk says so when the file is closed, and not of which
        raise


def in_container() -> bool:
    """Whether the image or its engine says so, by the variable `container` that both set for this purpose.

    https://systemd.io/CONTAINER_INTERFACE: podman and systemd set it; our image does, since Docker does not.
    """
    return bool(os.environ.get("container"))  # noqa: SIM112 - its name is in small letters
