"""The pass over one file behind `analyze`: decode, ask about every window, combine. Imports numeric libraries."""

from __future__ import annotations

from pathlib import Path

from pipelines.music import essentia_windows as ask
from pipelines.music.aggregate import KeyVote, TempoVote, camelot, combine_key, combine_tempo
from pipelines.music.analyze import SCHEMA, UNSURE, Analysis
from pipelines.music.decode import RATE, Decoder, Measures, Samples
from pipelines.music.ffmpeg import ffmpeg_path, ffmpeg_version


class Votes:
    """What the windows said so far."""

    def __init__(self) -> None:
        self.tempo: list[TempoVote] = []
        self.key: list[KeyVote] = []
        self.dance: list[tuple[float, float]] = []
        self.windows = 0

    def hear(self, window: Samples) -> None:
        """Ask about one window; silent ones have nothing to say (silence is 738 BPM in A minor)."""
        if ask.is_silent(window):
            return
        self.windows += 1
        if (tempo := ask.tempo(window)) is not None:
            self.tempo.append(tempo)
        if (key := ask.key(window)) is not None:
            self.key.append(key)
        if (dance := ask.danceability(window)) is not None:
            self.dance.append((dance, window.size / RATE))


def measure(path: Path) -> Analysis:
    """Analyse one file in windows: flat memory, whatever its length."""
    ask.warm_up()
    votes = Votes()
    with Decoder(path) as decoder:
        for window in decoder.windows():
            votes.hear(window)
    return conclude(votes, decoder.measures)


def conclude(votes: Votes, found: Measures) -> Analysis:
    """Everything that was found as one result; what is missing gets a warning that says why."""
    result = Analysis(
        duration=round(found.duration, 3),
        declared_duration=found.declared,
        loudness=found.loudness,
        loudness_range=found.loudness_range,
        leading_silence=round(found.leading_silence, 3),
        trailing_silence=round(found.trailing_silence, 3),
        windows=votes.windows,
        versions={
            "schema": str(SCHEMA),
            "essentia": ask.essentia_version(),
            "ffmpeg": ffmpeg_version(ffmpeg_path()),
        },
        warnings=list(found.warnings),
    )
    if found.short:
        result.outcome = "partial"
        result.reason = "short"
        result.warnings.append(f"short: {found.duration:.1f} s of {found.declared or 0:.1f} s could be decoded")
    why = "silent" if not votes.windows else f"{found.duration:.2f} s are too short, or the sound has none"
    if (tempo := combine_tempo(votes.tempo)) is not None:
        result.bpm = round(tempo.bpm, 2)
        result.bpm_confidence = round(tempo.confidence, 2)
        result.bpm_agreement = round(tempo.agreement, 2)
        if tempo.confidence < UNSURE:
            result.warnings.append(f"unsure-tempo: confidence {tempo.confidence:.2f} of 5.32")
    else:
        result.warnings.append(f"no-tempo: {why}")
    if (key := combine_key(votes.key)) is not None:
        result.key, result.scale = key.key, key.scale
        result.key_strength = round(key.strength, 3)
        result.camelot = camelot(key.key, key.scale)
    else:
        result.warnings.append(f"no-key: {why}")
    if votes.dance:
        seconds = sum(length for _, length in votes.dance)
        result.danceability = round(sum(value * length for value, length in votes.dance) / seconds, 3)
    else:
        result.warnings.append(f"no-danceability: {why}")
    return result
