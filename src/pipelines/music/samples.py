"""A small set of music of known tempo and key, so that anybody sees the work without a library of their own.

Drums, bass and chords from arithmetic alone: the same files each time, free of anybody's rights. One pair is the
same recording encoded twice. Imports numpy when called, not with the module.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import ToolMissing
from pipelines.music.ffmpeg import ffmpeg_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Sound = NDArray[np.float64]

ARTIST = "phaze samples"
RATE = 44_100
NOTES = ("C", "C#", "D", "Eb", "E", "F", "F#", "G", "Ab", "A", "Bb", "B")

# Degrees of one chord a bar, in semitones above the tonic, with the third of each: both loops leave no doubt about
# the tonic (it opens, closes and is touched on the way), which four-chord pop loops do.
LOOPS = {
    "major": ((0, 4), (5, 4), (7, 4), (0, 4)),
    "minor": ((0, 3), (5, 3), (7, 3), (0, 3)),
}


@dataclass(frozen=True)
class Sample:
    """One file and the truth about it. `duplicate_of` is the file that holds the same recording."""

    path: Path
    title: str
    bpm: float
    key: str
    scale: str
    duplicate_of: Path | None = None


@dataclass(frozen=True)
class _Piece:
    name: str
    title: str
    bpm: int
    key: str
    scale: str
    bars: int
    copy_of: str = ""


PIECES = (
    _Piece("01-harbour-lights.flac", "Harbour Lights", 92, "A", "minor", 10),
    _Piece("02-paper-kites.mp3", "Paper Kites", 100, "C", "major", 12),
    _Piece("03-night-bus.ogg", "Night Bus", 110, "D", "minor", 12),
    _Piece("04-glass-garden.flac", "Glass Garden", 120, "F", "major", 14),
    _Piece("05-undertow.mp3", "Undertow", 124, "G", "minor", 14),
    _Piece("06-signal-fires.ogg", "Signal Fires", 128, "E", "minor", 14),
    _Piece("07-long-meadow.flac", "Long Meadow", 138, "Bb", "major", 16),
    _Piece("08-glass-garden-again.mp3", "Glass Garden", 120, "F", "major", 14, "04-glass-garden.flac"),
)


def write_samples(folder: Path) -> list[Sample]:
    """Write the set into `folder` (made if missing; files of the same name are replaced) and tell the truth about it.

    Raises ToolMissing where there is no ffmpeg, or one without the encoders for MP3 and Vorbis.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for piece in PIECES:
        _encode(render(piece.bpm, piece.key, piece.scale, piece.bars), folder / piece.name, piece.title)
        source = folder / piece.copy_of if piece.copy_of else None
        written.append(Sample(folder / piece.name, piece.title, piece.bpm, piece.key, piece.scale, source))
    return written


def render(bpm: float, key: str, scale: str, bars: int) -> Sound:
    """Four beats a bar: drums, a bass on the chord's root, a chord a bar. Mono at 44.1 kHz, peak 0.8, shape (n,)."""
    import numpy as np

    beat = 60 / bpm
    sound = np.zeros(int((bars * 4 * beat + 1.5) * RATE))
    noise = np.random.default_rng(7).standard_normal(RATE)  # seeded: the same drums each time
    kick, snare, hat = _kick(), 0.5 * noise[: RATE // 6] * _decay(RATE // 6, 18), 0.2 * _hat(noise)
    tonic = 45 + (NOTES.index(key) - 9) % 12  # A2 to G#3, as MIDI numbers
    for bar in range(bars):
        root, third = LOOPS[scale][bar % 4]
        start = bar * 4 * beat
        for interval in (0, third, 7):
            _add(sound, start, 0.10 * _note(tonic + root + interval + 12, 4 * beat, 1.0))
        for step in range(4):
            at = start + step * beat
            _add(sound, at, 0.9 * kick)
            _add(sound, at, 0.28 * _note(tonic + root - 12, 0.8 * beat, 3.0))
            _add(sound, at + beat / 2, hat)
            if step % 2:
                _add(sound, at, snare)
    loudest: Sound = 0.8 * sound / np.max(np.abs(sound))
    return loudest


def _add(sound: Sound, seconds: float, part: Sound) -> None:
    start = round(seconds * RATE)
    room = sound[start : start + part.size]
    room += part[: room.size]


def _decay(size: int, speed: float) -> Sound:
    """exp(-speed t), `speed` per second."""
    import numpy as np

    fall: Sound = np.exp(-speed * np.arange(size) / RATE)
    return fall


@lru_cache(maxsize=64)  # a piece plays a dozen different notes some hundred times
def _note(midi: int, seconds: float, speed: float) -> Sound:
    """A plucked tone of five harmonics, faded at its end so that it does not click."""
    import numpy as np

    size = int(seconds * RATE)
    phase = 2 * np.pi * 440 * 2 ** ((midi - 69) / 12) * np.arange(size) / RATE
    tone = sum((np.sin(n * phase) / n**1.5 for n in range(1, 6)), start=np.zeros(size))
    fade = np.minimum(1, np.arange(size, 0, -1) / (0.01 * RATE))
    return np.asarray(tone * fade * _decay(size, speed))


def _kick() -> Sound:
    """A sine that falls from 150 to 50 Hz within 0.2 s."""
    import numpy as np

    t = np.arange(int(0.2 * RATE)) / RATE
    phase = 2 * np.pi * (50 * t + 100 * (1 - np.exp(-30 * t)) / 30)
    return np.asarray(np.sin(phase) * _decay(t.size, 15))


def _hat(noise: Sound) -> Sound:
    """Noise without its lower half, gone in 50 ms."""
    import numpy as np

    bright = np.diff(noise[: RATE // 20 + 1])
    return np.asarray(bright * _decay(bright.size, 80))


def _encode(sound: Sound, path: Path, title: str) -> None:
    argv = [ffmpeg_path(), "-nostdin", "-v", "error", "-y"]
    argv += ["-f", "f64le", "-ar", str(RATE), "-ac", "1", "-i", "pipe:0", "-ac", "2", "-fflags", "+bitexact"]
    argv += ["-flags:a", "+bitexact", "-metadata", f"artist={ARTIST}", "-metadata", f"title={title}"]
    argv += ["-metadata", "album=Known Tempo, Known Key"]
    argv += [] if path.suffix == ".flac" else ["-b:a", "128k"]
    argv += ["-sample_fmt", "s16"] if path.suffix == ".flac" else []
    done = subprocess.run([*argv, f"file:{path}"], input=sound.astype("<f8").tobytes(), capture_output=True, timeout=60)
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ToolMissing(f"this ffmpeg cannot write {path.suffix} ({why}): pip install imageio-ffmpeg")
