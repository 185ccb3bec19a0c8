"""Whether the models that PHAZE_PROFILE=full listens with are there: without them every analysis fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.settings import Settings

REMEDY = "phaze models install musicnn tempocnn, or set PHAZE_PROFILE to another profile"


def missing(settings: Settings) -> str | None:
    """What is missing, for people; None where nothing is."""
    from pipelines.music.models.catalogue import some_take_sound

    if settings.profile != "full" or some_take_sound(settings.models_folder):
        return None
    return f"PHAZE_PROFILE=full, and {settings.models_folder} holds no models"
