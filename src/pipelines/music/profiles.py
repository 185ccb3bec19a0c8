"""How much a user wants to know of a file, and what it costs: the profile is half of an analysis's version.

| profile | beats | key, loudness and the rest | models | CPU seconds a minute of sound |
|---|---|---|---|---|
| fast | one detection function, no confidence | yes; no onset rate | no | 0.5 |
| default | five that vote, with confidence | yes | no | 0.7 |
| full | as default | yes | every installed one: tags, moods, embeddings, a second tempo | 2.5 with the two of PyPI |
"""

from __future__ import annotations

from typing import Literal, get_args

Profile = Literal["fast", "default", "full"]

PROFILES: tuple[Profile, ...] = get_args(Profile)

SCHEMA = 2
"""Grows when a field of `Analysis` is added or changes its meaning, or a measure is measured otherwise."""


def profile_name(profile: Profile) -> str:
    """What follows the hash in a version: `default` -> `default-2`."""
    return f"{profile}-{SCHEMA}"


def profile_of(version: str) -> Profile:
    """The profile that a version names: `<sha256>:fast-2`, `<sha256>+fast`; default where it names none.

    Raises ValueError for a name that is no profile.
    """
    _, found, name = version.replace("+", ":", 1).partition(":")
    name = name.partition("-")[0]
    if not found or not name:
        return "default"
    for profile in PROFILES:
        if name == profile:
            return profile
    raise ValueError(f"{name!r} is not a profile; the profiles are {', '.join(PROFILES)}")
