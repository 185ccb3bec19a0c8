"""The pass over one file behind `analyze`: decode, ask about every window, combine. Imports numeric libraries."""

from __future__ import annotations

import cmath
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import ToolMissing
from pipelines.music import essentia_windows as ask
from pipelines.music import grid
from pipelines.music.aggregate import KeyVote, Tempo, TempoVote, best_key, camelot, combine_key, combine_tempo
from pipelines.music.analyze import UNSURE, Analysis, GridMarker, KeyAlternative, TempoAlternative, WindowView
from pipelines.music.decode import RATE, WINDOW_SECONDS, Decoder, Measures, Samples
from pipelines.music.ffmpeg import ffmpeg_path, ffmpeg_version
from pipelines.music.profiles import SCHEMA, Profile
from pipelines.music.rhythm import Beats, beats, onset_rate
from pipelines.music.tonal import Tonal, tonal
from pipelines.saying import say

if TYPE_CHECKING:
    from pipelines.music.models.listen import Listener

REFERENCE = -18.0
"""LUFS to which ReplayGain 2.0 brings a track."""

SURE_TEMPO = 1.5
"""Confidence from which essentia's authors trust a beat; where some windows have it, the others do not judge."""

LEAST_CONCENTRATION = 0.1
"""Length of the mean of the tuning's vectors (0: anything, 1: all peaks in tune) under which there is no tuning."""


@dataclass
class Mean:
    """A mean weighted by seconds; None while nothing was added."""

    total: float = 0.0
    seconds: float = 0.0

    def add(self, value: float | None, seconds: float) -> None:
        if value is not None:
            self.total, self.seconds = self.total + value * seconds, self.seconds + seconds

    def value(self, digits: int) -> float | None:
        return round(self.total / self.seconds, digits) if self.seconds else None


@dataclass
class Heard:
    """What the windows said so far."""

    profile: Profile
    windows: list[WindowView] = field(default_factory=list)
    tempo: list[TempoVote] = field(default_factory=list)
    beats: list[tuple[float, Beats]] = field(default_factory=list)
    key: list[KeyVote] = field(default_factory=list)
    tuning: complex = 0j
    tuning_weight: float = 0.0
    dance: Mean = field(default_factory=Mean)
    dynamics: Mean = field(default_factory=Mean)
    onsets: Mean = field(default_factory=Mean)
    centroid: Mean = field(default_factory=Mean)

    def hear(self, window: Samples, start: float) -> None:
        """Ask about one window that is not silent, `start` seconds into the piece."""
        seconds = window.size / RATE
        view = WindowView(start=start)
        if (found := beats(window, quick=self.profile == "fast")) is not None:
            self._beats(found, seconds, view)
        if (pitch := tonal(window)) is not None:
            self._pitch(pitch, seconds, view)
        self.dance.add(ask.danceability(window), seconds)
        self.dynamics.add(ask.dynamic_complexity(window), seconds)
        if self.profile != "fast":
            self.onsets.add(onset_rate(window), seconds)
        self.windows.append(view)

    def _beats(self, found: Beats, seconds: float, view: WindowView) -> None:
        self.beats.append((view.start, found))
        self.tempo.append(TempoVote(found.bpm, found.confidence or 0.0, seconds, found.alternation, found.between))
        view.bpm = round(found.bpm, 2)
        view.confidence = None if found.confidence is None else round(found.confidence, 2)

    def _pitch(self, pitch: Tonal, seconds: float, view: WindowView) -> None:
        self.tuning += pitch.tuning
        self.tuning_weight += pitch.weight
        self.centroid.add(pitch.centroid, seconds)
        if pitch.strengths is not None:
            self.key.append(KeyVote(pitch.strengths, seconds))
            best = best_key(pitch.strengths)
            view.key, view.scale, view.strength = best.key, best.scale, round(best.strength, 3)
            view.camelot = camelot(best.key, best.scale)

    def tuned_to(self) -> float | None:
        """Hz of A4: the mean direction of the peaks' distances from the nearest semitone."""
        if abs(self.tuning) <= LEAST_CONCENTRATION * self.tuning_weight or not self.tuning_weight:
            return None
        return float(round(440 * 2 ** (cmath.phase(self.tuning) / cmath.tau / 12), 2))


def measure(path: Path, profile: Profile = "default") -> Analysis:
    """Analyse one file in windows: flat memory, whatever its length."""
    ask.standard()
    models = _models() if profile == "full" else None
    heard = Heard(profile)
    with Decoder(path) as decoder:
        for number, window in enumerate(decoder.windows()):
            start = float(number * WINDOW_SECONDS)
            if not ask.is_silent(window):  # silence is 738 BPM in A minor
                heard.hear(window, start)
                if models is not None:
                    models.hear(window)
            _say_how_far(start + window.size / RATE, decoder.probe.duration)
    result = conclude(heard, decoder.measures)
    if models is not None:
        models.conclude(result)
    return result


def _models() -> Listener:
    from pipelines.music.models.listen import Listener

    models = Listener.installed()
    if not models:
        raise ToolMissing("the profile full wants models and none is installed: phaze models install musicnn tempocnn")
    return models


def _say_how_far(seconds: float, declared: float | None) -> None:
    minutes = f"{int(seconds // 60)}:{int(seconds % 60):02}"
    if declared and declared >= seconds:
        say(seconds / declared, f"{minutes} of {int(declared // 60)}:{int(declared % 60):02}")
    else:  # nobody knows how long it is: always a little further
        say(1 - 1 / (1 + seconds / 600), f"{minutes} so far")


def conclude(heard: Heard, found: Measures) -> Analysis:
    """Everything that was found as one result; what is missing gets a warning that says why."""
    result = Analysis(
        profile=heard.profile,
        decoded_duration=round(found.duration, 3),
        declared_duration=None if found.declared is None else round(found.declared, 3),
        duration=round(found.declared if found.short and found.declared else found.duration, 3),
        loudness=found.loudness,
        loudness_range=found.loudness_range,
        sample_peak=found.sample_peak,
        replaygain=None if found.loudness is None else round(REFERENCE - found.loudness, 1),
        leading_silence=round(found.leading_silence, 3),
        trailing_silence=round(found.trailing_silence, 3),
        danceability=heard.dance.value(3),
        dynamic_complexity=heard.dynamics.value(2),
        onset_rate=heard.onsets.value(2),
        spectral_centroid=heard.centroid.value(0),
        tuning=heard.tuned_to(),
        windows=heard.windows,
        versions={
            "schema": str(SCHEMA),
            "essentia": ask.essentia_version(),
            "ffmpeg": ffmpeg_version(ffmpeg_path()),
        },
        warnings=list(found.warnings),
    )
    if found.short:
        result.outcome, result.reason, result.partial = "partial", "short", True
        whole = (
            f"of {found.declared:.1f} s" if (found.declared or 0) > found.duration + 1 else "of a file that is cut off"
        )
        result.warnings.append(f"short: {found.duration:.1f} s {whole} could be decoded")
    why = "silent" if not heard.windows else f"{found.duration:.2f} s are too short, or the sound has none"
    _say_tempo(result, heard, why)
    _say_key(result, heard, why)
    if result.danceability is None:
        result.warnings.append(f"no-danceability: {why}")
    return result


def _say_tempo(result: Analysis, heard: Heard, why: str) -> None:
    tempo = combine_tempo(heard.tempo)
    if tempo is None:
        result.warnings.append(f"no-tempo: {why}")
        return
    result.bpm = round(tempo.bpm, 2)
    result.bpm_agreement = round(tempo.agreement, 2)
    result.bpm_alternatives = [
        TempoAlternative(bpm=round(bpm, 2), share=round(share, 2)) for bpm, share in tempo.others
    ]
    if heard.profile != "fast":
        result.bpm_confidence = round(tempo.confidence, 2)
        if tempo.confidence < UNSURE:
            result.warnings.append(f"unsure-tempo: confidence {tempo.confidence:.2f} of 5.32")
    _say_grid(result, heard, tempo)


def _say_grid(result: Analysis, heard: Heard, tempo: Tempo) -> None:
    """Grid and steadiness, counted in the piece's octave."""
    counted = [([start + time for time in _counted(found, tempo)], found.confidence) for start, found in heard.beats]
    markers = grid.fit_grid([time for times, _ in counted for time in times])
    result.grid = [
        GridMarker(at=round(marker.at, 3), bpm=round(marker.bpm, 3), beats=marker.beats) for marker in markers
    ]
    sure = [times for times, confidence in counted if confidence is None or confidence >= SURE_TEMPO]
    steady = grid.is_steady(sure or [times for times, _ in counted])
    if steady is not None:
        result.tempo = "steady" if steady else "variable"


def _counted(found: Beats, tempo: Tempo) -> list[float]:
    return grid.at_octave(found.times.tolist(), found.bpm, tempo.bpm, found.stronger)


def _say_key(result: Analysis, heard: Heard, why: str) -> None:
    key = combine_key(heard.key)
    if key is None:
        result.warnings.append(f"no-key: {why}")
        return
    result.key, result.scale = key.key, key.scale
    result.key_strength, result.key_agreement = round(key.strength, 3), round(key.agreement, 2)
    result.camelot = camelot(key.key, key.scale)
    result.key_alternatives = [
        KeyAlternative(key=tonic, scale=scale, camelot=camelot(tonic, scale), strength=round(strength, 3))
        for tonic, scale, strength in key.others
    ]
