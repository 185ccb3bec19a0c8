"""The installed models on windows of sound: tags, moods, embeddings, a second tempo. Only child processes import this.

One patch at a time (`batchSize=1`): 336 MB instead of 1,176 MB at 64, for the same time. Patches do not overlap, and a
sound shorter than one is repeated to fill it (`lastPatchMode="repeat"`; otherwise it gives nothing at all).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.music.aggregate import TempoVote, combine_tempo
from pipelines.music.decode import RATE, Samples
from pipelines.music.essentia_windows import standard
from pipelines.music.models.catalogue import Description, folder, sha256_of

if TYPE_CHECKING:
    from pipelines.music.analyze import Analysis

Patches = NDArray[np.float32]
"""One row a patch, shape (patches, values)."""

MOST_LABELS = 50
"""Labels of one model that are kept, the strongest first; a model may have 400."""

SHORTEST = 0.1
"""Seconds under which a window says nothing, however often it is repeated."""

HEAD = "TensorflowPredict2D"
"""The algorithm of a model that takes another's embeddings instead of sound."""

TEMPO = "TempoCNN"

RATES = {"TensorflowPredictMusiCNN": 16_000, "TensorflowPredictEffnetDiscogs": 16_000, TEMPO: 11_025}
"""What takes sound, and the rate in Hz at which it must come."""


class BrokenModel(Exception):
    """An installed model's graph cannot be loaded or run. Says which, and the remedy."""


@dataclass
class Sums:
    """Rows so far: their sum, and how many there were."""

    total: NDArray[np.float64] | None = None
    count: int = 0

    def add(self, rows: Patches) -> None:
        summed = rows.sum(0, dtype=np.float64)
        self.total = summed if self.total is None else self.total + summed
        self.count += len(rows)

    def mean(self, digits: int) -> list[float]:
        return [] if self.total is None else [round(value, digits) for value in (self.total / self.count).tolist()]


@dataclass
class Model:
    """One installed model and what it said so far."""

    graph: Path
    said: Description
    predictions: Sums = field(default_factory=Sums)
    embeddings: Sums = field(default_factory=Sums)

    def ask(self, output: str, heard: NDArray[np.float32], **options: Any) -> Any:
        """Whatever the algorithm answers, going by one node. Raises BrokenModel."""
        try:
            return _load(self.said.algorithm, self.graph, _changed(self.graph), self.said.input, output, **options)(
                heard
            )
        except RuntimeError as error:  # all that essentia raises
            raise BrokenModel(f"{self.graph.name} cannot be run ({error}); see phaze models verify") from error

    def run(self, output: str, heard: NDArray[np.float32], **options: Any) -> Patches:
        """The values of one node. Raises BrokenModel."""
        rows: Patches = np.atleast_2d(self.ask(output, heard, **options))
        return rows

    def labels(self) -> dict[str, float]:
        """The strongest classes by name, each 0 to 1. Raises BrokenModel where there are more or fewer than names."""
        means = self.predictions.mean(4)
        if len(means) != len(self.said.classes):
            raise BrokenModel(f"{self.graph.name} has {len(means)} outputs and {len(self.said.classes)} names")
        named = sorted(zip(self.said.classes, means, strict=True), key=lambda pair: -pair[1])
        return dict(named[:MOST_LABELS])


class Listener:
    """`hear` each window, then `conclude` into an analysis. What is loaded stays for the process's next file."""

    def __init__(self, models: list[Model]) -> None:
        self._sound = [model for model in models if model.said.algorithm in RATES]
        self._heads = [model for model in models if model.said.algorithm == HEAD]
        self._tempo: list[TempoVote] = []

    @classmethod
    def installed(cls, where: Path | None = None) -> Listener:
        """All models whose two files lie in the folder; falsy without any that takes sound."""
        graphs = sorted((where or folder()).glob("*.pb"))
        return cls([Model(path, Description.read(path.with_suffix(".json"))) for path in graphs if _described(path)])

    def __bool__(self) -> bool:
        return bool(self._sound)

    def hear(self, window: Samples) -> None:
        """One window of mono sound at 44.1 kHz. Raises BrokenModel."""
        if window.size < SHORTEST * RATE:
            return
        resampled = {rate: _resampler(rate)(window) for rate in {RATES[model.said.algorithm] for model in self._sound}}
        for model in self._sound:
            sound = resampled[RATES[model.said.algorithm]]
            if model.said.algorithm == TEMPO:
                self._ask_tempo(model, sound, window.size / RATE)
            else:
                self._ask(model, sound)

    def _ask(self, model: Model, sound: NDArray[np.float32]) -> None:
        heads = [head for head in self._heads if head.said.listens_to == model.said.algorithm]
        if model.said.embeddings:
            rows = model.run(model.said.embeddings, sound)
            model.embeddings.add(rows)
            for head in heads:
                head.predictions.add(head.run(head.said.predictions, rows, dimensions=rows.shape[1]))
        # A head of the same classes says the same at no cost.
        told = model.said.embeddings and any(head.said.classes == model.said.classes for head in heads)
        if model.said.predictions and model.said.classes and not told:
            model.predictions.add(model.run(model.said.predictions, sound))

    def _ask_tempo(self, model: Model, sound: NDArray[np.float32], seconds: float) -> None:
        bpm, _, certain = model.ask(model.said.predictions, sound)
        if bpm > 0 and len(certain):
            self._tempo.append(TempoVote(float(bpm), float(np.mean(certain)), seconds))

    def conclude(self, result: Analysis) -> None:
        """Write down what was heard, under the models' names."""
        for model in (*self._sound, *self._heads):
            name = model.graph.stem
            result.versions[name] = _fingerprint(model.graph, _changed(model.graph))
            if model.predictions.count:
                result.tags[name] = model.labels()
            if model.embeddings.count:
                result.embeddings[name] = model.embeddings.mean(5)
        if (tempo := combine_tempo(self._tempo)) is not None:
            result.model_bpm, result.model_bpm_confidence = round(tempo.bpm, 2), round(tempo.confidence, 3)


def _described(graph: Path) -> bool:
    return graph.with_suffix(".json").is_file()


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


@lru_cache(maxsize=4)
def _resampler(rate: int) -> Any:
    return standard().Resample(inputSampleRate=RATE, outputSampleRate=rate, quality=4)


@lru_cache(maxsize=64)
def _load(algorithm: str, graph: Path, _changed_ns: int, source: str, output: str, **options: Any) -> Any:
    """Built once a process for each graph as it is now."""
    if algorithm != HEAD:
        options["lastPatchMode"] = "repeat"
        options["patchHopSize"] = 128 if algorithm == TEMPO else 0
    build = getattr(standard(), algorithm)
    return build(graphFilename=str(graph), input=source, output=output, batchSize=1, **options)


@lru_cache(maxsize=64)
def _fingerprint(graph: Path, _changed_ns: int) -> str:
    """Twelve hexadecimal digits of the file's sha256."""
    return sha256_of(graph)[:12]
